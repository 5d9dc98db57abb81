"""Time training steps: the jitted step alone, several steps in one call, and the training loop.

`time_parts` shows which part of the training loop takes how long. All times are milliseconds per
step, unless a function says otherwise.
"""

import contextlib
import functools
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from etils import epath

from distattn_jax.sharding import place_batch
from distattn_jax.train import Run, Trainer, TrainState
from distattn_jax.train.batching import BatchLoader
from distattn_jax.train.optimizer import make_schedule
from distattn_jax.train.step import make_train_step

CALL_SIZES = (1, 10, 100)  # steps in one call of the program
PLACED_BATCHES = 100  # batches that the bare step cycles through
STACKS = 3  # stacks that are made to time their making


class Steps(NamedTuple):
    """Numbers of steps to run.

    Attributes:
      warm: Steps before the clock starts.
      timed: Steps that are timed.
    """

    warm: int
    timed: int


class FinishedError(Exception):
    """Raised after the last timed step, so that the run neither validates nor saves."""


class Stopwatch:
    """Callback that measures the mean time of a training step.

    Before the stopwatch stores a time, it waits until the device has finished the step.

    Args:
      steps: Numbers of warm-up steps and of timed steps.
    """

    def __init__(self, steps: Steps):
        self._pending = [steps.warm, steps.warm + steps.timed]
        self._times: list[tuple[int, float]] = []
        self._calls = 0

    def __call__(self, step: int, state: TrainState) -> None:
        """Store the time after the last warm-up step and after the last timed step."""
        self._calls += len(self._times) == 1
        if self._pending and step >= self._pending[0]:
            jax.block_until_ready(state)
            self._pending.pop(0)
            self._times.append((step, time.perf_counter()))

    @property
    def is_finished(self) -> bool:
        """True after the last timed step."""
        return not self._pending

    @property
    def milliseconds(self) -> float:
        """Mean milliseconds of a timed step."""
        (first, start), (last, end) = self._times
        return 1e3 * (end - start) / (last - first)

    @property
    def steps_per_call(self) -> float:
        """Mean number of timed steps in a call of the program."""
        (first, _), (last, _) = self._times
        return (last - first) / self._calls


def make_bare_step(trainer: Trainer) -> Any:
    """Return a jitted training step on one batch.

    The training loop uses another program, which makes several steps in one call.
    """
    schedule = make_schedule(trainer.config.optimizer, trainer.steps)
    step = make_train_step(trainer.task, schedule, group=trainer.group)
    return functools.partial(jax.jit(step, donate_argnums=(1, 2)), {})


def place_batches(trainer: Trainer, count: int) -> list[Any]:
    """Copy the first `count` batches of a trainer to its devices, and return them."""
    batches = [trainer.batches[i] for i in range(count)]
    for batch in batches:
        batch.pop("index")
    return [place_batch(batch, trainer.mesh, trainer.task.layout) for batch in batches]


def step_seconds(trainer: Trainer, bare_step: Any) -> float:
    """Return the duration of one jitted training step in seconds, without compilation."""
    (batch,), (state, sums) = place_batches(trainer, 1), _initial_state(trainer)
    for _ in range(2):
        start = time.perf_counter()
        state, sums = bare_step(state, sums, trainer.settings, batch)
        jax.block_until_ready(state)
    return time.perf_counter() - start


def time_bare_step(trainer: Trainer, bare_step: Any, steps: Steps) -> float:
    """Return the mean milliseconds of the jitted step alone, on batches already on the device."""
    stopwatch = Stopwatch(steps)
    batches = place_batches(trainer, PLACED_BATCHES)
    state, sums = _initial_state(trainer)
    one_of_bucket = {trainer.batches.locate(i).bucket: batches[i] for i in range(PLACED_BATCHES)}
    for batch in one_of_bucket.values():  # to compile the step for every padded length
        state, sums = bare_step(state, sums, trainer.settings, batch)
    for step in range(1, steps.warm + steps.timed + 1):
        state, sums = bare_step(state, sums, trainer.settings, batches[step % len(batches)])
        stopwatch(step, state)
    return stopwatch.milliseconds


def time_loop(trainer: Trainer, steps: Steps) -> Stopwatch:
    """Time the whole training loop, with data, logging and progress.

    The returned stopwatch has the result. The trainer must have at least `steps.warm` +
    `steps.timed` steps.
    """
    trainer.compile(evaluation=False)
    stopwatch = Stopwatch(steps)

    def after_call(step: int, state: TrainState) -> None:
        stopwatch(step, state)
        if stopwatch.is_finished:
            raise FinishedError

    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(FinishedError):
        trainer.fit(Run(epath.Path(folder)), after_call)
    return stopwatch


def time_parts(trainer: Trainer, bare_step: Any, steps: Steps) -> Iterator[tuple[str, float]]:
    """Yield (name, milliseconds per step) for each part of the training loop.

    Args:
      trainer: Trainer whose parts are timed.
      bare_step: Result of `make_bare_step`.
      steps: Numbers of warm-up steps and of timed steps.
    """
    yield "host: one call of the bare step, without waiting", _time_call(trainer, bare_step)
    for size in CALL_SIZES:
        if size <= steps.timed:
            name = f"device: steps on a stack, at most {size} in a call"
            yield name, _time_calls(trainer, size, steps)
    with _make_loader(trainer) as loader:
        stack, _, _ = loader.take(1)
        size = len(stack["weight"])
        first = trainer.batches.locate(0)._replace(rank=0)
        made = [_seconds(lambda: trainer.batches.stack(first, size)) for _ in range(STACKS)]
        yield f"thread: making a stack of {size} batches", 1e3 * min(made) / size
        host = jax.device_get(stack)
        placements = {name: column.sharding for name, column in stack.items()}
        copied = [
            _seconds(lambda: jax.block_until_ready(jax.device_put(host, placements)))
            for _ in range(STACKS)
        ]
        yield f"thread: copying a stack of {size} batches", 1e3 * min(copied) / size


def _time_call(trainer: Trainer, bare_step: Any, calls: int = 10) -> float:
    """Return the milliseconds until a call of the bare step returns.

    The call returns before the device has finished the step.
    """
    (batch,) = place_batches(trainer, 1)
    state, sums = bare_step(*_initial_state(trainer), trainer.settings, batch)
    jax.block_until_ready(state)
    start = time.perf_counter()
    for _ in range(calls):
        state, sums = bare_step(state, sums, trainer.settings, batch)
    milliseconds = 1e3 * (time.perf_counter() - start) / calls
    jax.block_until_ready(state)
    return milliseconds


def _time_calls(trainer: Trainer, size: int, steps: Steps) -> float:
    """Return the mean milliseconds of a step if one call of the program makes several steps.

    A call makes at most `size` steps, on a stack of batches that is already on the device.
    """
    with _make_loader(trainer) as loader:
        stack, _, end = loader.take(size)
    stopwatch, step = Stopwatch(steps), 0
    state, sums = _initial_state(trainer)
    while not stopwatch.is_finished:
        state, sums = trainer.train_steps(state, sums, trainer.settings, stack, np.int32(0), end)
        step += int(end)
        stopwatch(step, state)
    return stopwatch.milliseconds


def _initial_state(trainer: Trainer) -> tuple[Any, Any]:
    """Return the initial state of the models, and the initial sums of the metrics."""
    training = trainer.initial_state()
    return training.state, training.sums


def _make_loader(trainer: Trainer) -> BatchLoader:
    """Return a loader of all batches of a trainer."""
    return BatchLoader(trainer.batches, trainer.mesh, trainer.task.layout, stop=trainer.steps)


def _seconds(function: Callable[[], Any]) -> float:
    """Return the duration of a call in seconds."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start
