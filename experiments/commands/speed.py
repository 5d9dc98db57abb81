"""Time training steps of several attention variants or guides, for several numbers of seeds.

The jitted step is timed alone and as part of the whole training loop.
"""

import functools
import tempfile
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from etils import epath
from jax.sharding import NamedSharding

from distattn_jax.train import Run, Trainer, TrainState
from distattn_jax.train.optimizer import make_schedule
from distattn_jax.train.options import options_to_dict, parse_options
from distattn_jax.train.run import environment
from distattn_jax.train.step import make_train_step
from experiments.bench.speed_trainers import SpeedConfig, default_config, make_speed_trainer
from experiments.commands.train import enable_compilation_cache
from experiments.papers import stored_results
from experiments.papers.formatting import EMPTY


def main(arguments: Sequence[str]) -> None:
    """Run `speed [--option value ...]`, and print the milliseconds of a training step.

    "bare" is the jitted step alone; "loop" is a step of the whole training loop.
    """
    config = parse_options(default_config(), list(arguments), program="python -m experiments speed")
    enable_compilation_cache()
    device = jax.devices()[0].device_kind
    print(f"{config.length} tokens x {config.data.batch_size}, on {device}")
    columns = (
        "parameters",
        "seeds",
        "bare ms",
        "loop ms",
        "loop/bare",
        "bare/one seed",
        "peak MiB",
    )
    print(f"{'method':<28}" + "".join(f"{name:>14}" for name in columns))
    about = {
        "experiment": "guiding_speed" if config.times_guides else "speed",
        "environment": environment(),
        "config": options_to_dict(config),
    }
    lines = []
    for method in config.methods:
        one_seed = None
        for seeds in config.seeds:
            timing = time_method(config, method, seeds)
            one_seed = one_seed or timing.bare / seeds
            figures = (
                timing.bare,
                timing.loop,
                timing.loop and timing.loop / timing.bare,
                timing.bare / one_seed,
                timing.peak_bytes and timing.peak_bytes / 2**20,
            )
            cells = (f"{EMPTY if x is None else format(x, '.3f'):>14}" for x in figures)
            print(f"{method:<28}{timing.parameters:>14,}{seeds:>14}" + "".join(cells))
            lines.append(timing._asdict())
            if config.output:  # Written after every line, in case the next one fails.
                written = stored_results.write_results(
                    stored_results.round_numbers({**about, "lines": lines}), config.output
                )
    if config.output:
        print(written)


class Timing(NamedTuple):
    """Time of a training step that updates several models side by side.

    Attributes:
      method: Name of the attention variant or guide.
      parameters: Number of parameters of a single model.
      seeds: Number of models.
      bare: Milliseconds of the jitted step alone.
      loop: Milliseconds of a step of the training loop; None if not timed.
      peak_bytes: Device memory that the compiler estimates, in bytes; None if it reports none.
    """

    method: str
    parameters: int
    seeds: int
    bare: float
    loop: float | None
    peak_bytes: int | None


def time_method(config: SpeedConfig, method: str, seeds: int) -> Timing:
    """Measure a training step that updates `seeds` models of one attention variant or guide."""
    trainer = make_speed_trainer(config, method, seeds)
    bare_step = make_bare_step(trainer)
    announce_duration(config, step_seconds(trainer, bare_step))
    bare, loop = [], []
    for _ in range(config.repeats):
        bare.append(bare_milliseconds(trainer, bare_step, config))
        if config.loop:
            loop.append(loop_milliseconds(trainer, config))
    params = jax.eval_shape(trainer.initial_state).state.params
    parameters = sum(leaf.size for leaf in jax.tree.leaves(params)) // seeds
    loop_median = float(np.median(loop)) if loop else None
    return Timing(
        method, parameters, seeds, float(np.median(bare)), loop_median, trainer.step_bytes()
    )


def announce_duration(config: SpeedConfig, seconds: float) -> None:
    """Print how long a line of the table takes, if this is longer than a minute.

    Args:
      config: Options, of which the numbers of steps and repetitions are used.
      seconds: Duration of a step.
    """
    steps = (config.warm + config.steps) * config.repeats * (2 if config.loop else 1)
    if steps * seconds > 60:
        lines = len(config.methods) * len(config.seeds)
        print(
            f"A step takes {seconds:.2g} s, and the next of {lines} lines about "
            f"{steps * seconds / 60:.0f} minutes. Smaller --steps, --warm or --repeats take less.",
            flush=True,
        )


def step_seconds(trainer: Trainer, bare_step: Any) -> float:
    """Return the seconds of one jitted training step, after its compilation."""
    training, batch = trainer.initial_state(), _place_batches(trainer, 1)[0]
    state, sums = training.state, training.sums
    for _ in range(2):
        start = time.perf_counter()
        state, sums = bare_step(state, sums, trainer.settings, batch)
        jax.block_until_ready(state)
    return time.perf_counter() - start


class Stopwatch:
    """Callback that measures the mean time of a training step.

    The stopwatch waits until the device has finished the step before it stores the time.
    """

    def __init__(self, config: SpeedConfig):
        self._pending = [config.warm, config.warm + config.steps]
        self._times: list[tuple[int, float]] = []

    def __call__(self, step: int, state: TrainState) -> None:
        """Store the time after the last warm-up step and after the last timed step."""
        if self._pending and step >= self._pending[0]:
            jax.block_until_ready(state)
            self._pending.pop(0)
            self._times.append((step, time.perf_counter()))

    @property
    def milliseconds(self) -> float:
        """Mean milliseconds of a timed step."""
        (first, start), (last, end) = self._times
        return 1e3 * (end - start) / (last - first)


def loop_milliseconds(trainer: Trainer, config: SpeedConfig) -> float:
    """Return the mean milliseconds of a training-loop step, with data, logging and progress."""
    stopwatch = Stopwatch(config)
    with tempfile.TemporaryDirectory() as folder:
        trainer.fit(Run(epath.Path(folder)), stopwatch)
    return stopwatch.milliseconds


def make_bare_step(trainer: Trainer) -> Any:
    """Return the jitted training step of one batch, which the training loop does not use."""
    schedule = make_schedule(trainer.config.optimizer, trainer.steps)
    step = make_train_step(trainer.task, schedule, group=trainer.group)
    return functools.partial(jax.jit(step, donate_argnums=(1, 2)), {})


def bare_milliseconds(trainer: Trainer, bare_step: Any, config: SpeedConfig) -> float:
    """Return the mean milliseconds of the jitted step alone, on batches already on the device."""
    stopwatch = Stopwatch(config)
    batches = _place_batches(trainer, 8)
    training = trainer.initial_state()
    state, sums = training.state, training.sums
    for step in range(1, config.warm + config.steps + 1):
        state, sums = bare_step(state, sums, trainer.settings, batches[step % 8])
        stopwatch(step, state)
    return stopwatch.milliseconds


def _place_batches(trainer: Trainer, count: int) -> list[Any]:
    """Return the first batches of a trainer, on its devices."""
    placement = NamedSharding(trainer.mesh, trainer.task.layout.batch)
    batches = jax.device_put([trainer.batches[i] for i in range(count)], placement)
    for batch in batches:
        batch.pop("index")
    return batches
