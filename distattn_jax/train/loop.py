"""Training loop: trains all models of a run side by side, and resumes from checkpoints.

If steps are short, one call of the compiled program takes several steps. A call never goes beyond
the next logging, validation or checkpoint. The device sums the metrics of the steps between two log
lines. A thread writes these sums while the device computes the next steps. The host waits for the
device at validations and checkpoints, and about twice a second to show how many steps are done.
"""

import contextlib
import functools
import gc
import itertools
import math
import signal
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from distattn_jax import sharding
from distattn_jax.train.batching import BatchLoader, describe_batches, empty_stack, make_batches
from distattn_jax.train.checkpoint import Checkpoints
from distattn_jax.train.config import SHORT_RUN
from distattn_jax.train.dispatch import DispatchLimit
from distattn_jax.train.evaluation import evaluate, list_programs
from distattn_jax.train.interrupt import watch_for_stop
from distattn_jax.train.members import group_size, list_members, stack_members
from distattn_jax.train.optimizer import make_schedule
from distattn_jax.train.progress import show_elapsed
from distattn_jax.train.results import score
from distattn_jax.train.run import Run
from distattn_jax.train.run_logger import RunLogger
from distattn_jax.train.state import (
    BestParameters,
    InitialParameters,
    MetricSums,
    Training,
    TrainState,
    abstract_state,
    empty_sums,
    make_initial_state,
)
from distattn_jax.train.step import make_train_steps, update_best
from distattn_jax.train.task import Task

MIN_LOG_LINES = 5  # lines of training metrics in a run; with fewer, there is no learning curve
MAX_VALIDATIONS, MIN_VALIDATIONS = 50, 4  # if the config does not set their interval
PROFILED_STEPS = (9, 14)  # steps between which a profile is taken, when everything is compiled


class Terminated(Exception):  # noqa: N818  not an error: the run was asked to stop
    """Raised after SIGTERM or Ctrl-C, when the run has saved a checkpoint.

    Args:
      message: Message that names the step of the checkpoint.
      number: Signal that was received.
    """

    def __init__(self, message: str, number: signal.Signals):
        super().__init__(message)
        self.exit_status = 128 + number  # the exit status of a process ended by this signal


def choose_evaluate_every(steps: int, per_epoch: int) -> int:
    """Return the number of steps between two validations, if the config does not set it.

    Models are validated once an epoch. If epochs have few batches, models are validated less often.
    If the run is short, models are validated more often, for a learning curve.

    Args:
      steps: Number of steps of the run.
      per_epoch: Number of batches in an epoch.
    """
    every = max(per_epoch, math.ceil(steps / MAX_VALIDATIONS))
    return every if steps >= SHORT_RUN else min(every, max(steps // MIN_VALIDATIONS, 1))


class Trainer:
    """Train all models of a run side by side.

    There is one model for each seed and each point of the hyperparameter grid.

    Args:
      task: Model, loss and metrics, with the config of the run.
      tables: Examples of the splits "train", "validation" and "test".
      mesh: Devices.
      initial_parameters: Dict from parameter path to initial value, for parameters that do not
        start from random values.
      steps: Number of training steps. If None, `config.steps` is used. If `config.steps` is 0, the
        number is computed from `config.epochs`.
    """

    def __init__(
        self,
        task: Task,
        tables: Mapping[str, Any],
        mesh: Mesh,
        *,
        initial_parameters: InitialParameters | None = None,
        steps: int | None = None,
    ):
        config = self.config = task.config
        devices = mesh.shape["data"]
        if not config.data.batch_tokens and config.data.batch_size % devices:
            raise ValueError(
                f"--data.batch-size ({config.data.batch_size}) must be a multiple of the devices "
                f"that share a batch ({devices}, --mesh.data)."
            )
        self.task, self.tables, self.mesh = task, tables, mesh
        self.members = list_members(config)
        self.group = group_size(len(self.members), config.models_at_once)
        self.batches = make_batches(
            task,
            tables["train"],
            shuffle=True,
            devices=devices,
            token_devices=sharding.sequence_shards(mesh),
        )
        per_epoch = self.batches.batches_per_epoch
        self.steps = steps or config.count_steps(per_epoch)
        self.log_every = min(config.output.log_every, max(self.steps // MIN_LOG_LINES, 1))
        self.evaluate_every = config.output.evaluate_every or choose_evaluate_every(
            self.steps, per_epoch
        )
        self.save_every = config.output.checkpoint_every or self.evaluate_every
        self.settings = jax.device_put(stack_members(self.members)[1], sharding.replicated(mesh))
        self._abstract = abstract_state(task, mesh, initial_parameters)
        self._compute_initial_state = make_initial_state(
            task, initial_parameters or {}, self._abstract
        )
        shardings = jax.tree.map(lambda leaf: leaf.sharding, self._abstract)
        self.train_steps = make_train_steps(
            task,
            make_schedule(config.optimizer, self.steps),
            group=self.group,
            out_shardings=(shardings.state, shardings.sums),
            constants=jax.device_put(dict(task.constants), sharding.replicated(mesh)),
        )
        members = jnp.arange(len(self.members))
        self._empty_sums = jax.jit(
            lambda: jax.vmap(lambda _: empty_sums(task))(members), out_shardings=shardings.sums
        )()

    def initial_state(self) -> Training:
        """Return the state of all models before the first step."""
        return self._compute_initial_state()

    def compile(
        self,
        *,
        evaluation: bool = True,
        report: Callable[[Sequence[str]], None] = lambda names: None,
    ) -> list[str]:
        """Compile all programs of the run in parallel, instead of each at its first call.

        Args:
          evaluation: If False, compile only the programs of training steps.
          report: Function that is called whenever a program begins or ends to compile. It receives
            the names of the programs that are being traced or compiled.

        Returns:
          The names of all programs. Two programs of one name differ in the number of batches.
        """
        pool = ThreadPoolExecutor()
        names: dict[Future[Any], str] = {}
        try:
            for name, lower in self._list_programs(evaluation):
                report([*_list_running(names), name])
                with _pause_garbage_collection():
                    lowered = lower()
                names[pool.submit(lowered.compile)] = name
            for done in as_completed(names):
                done.result()
                report(_list_running(names))
            return list(names.values())
        finally:  # After Ctrl-C, a program that is being compiled is not waited for.
            pool.shutdown(wait=False, cancel_futures=True)

    def fit(
        self, run: Run, after_call: Callable[[int, TrainState], None] | None = None
    ) -> Training:
        """Train until the last step. If a checkpoint exists, resume from the newest one.

        Args:
          run: Folder of the run.
          after_call: Callback that receives the number of steps done and the new state, after every
            call of the compiled program. A call takes at most `config.steps_at_once` steps. The
            next call donates the state, so the callback must copy arrays that it stores.

        Raises:
          CheckpointError: Checkpoints exist but none can be read, or one cannot be written.
          NonFiniteError: A loss or a gradient was not finite.
          RunError: Another process is training this run.
          Terminated: SIGTERM or Ctrl-C arrived; a checkpoint was saved.
        """
        with (
            run.lock(),
            Checkpoints(run.checkpoints, keep=self.config.output.keep) as checkpoints,
            watch_for_stop() as stop_requested,
        ):
            start, training = self._resume(checkpoints)
            if jax.process_index() == 0:
                run.write_plan(self.steps)
            state, best, sums = training.state, training.best, training.sums
            step, calls = start, itertools.count()
            limit = DispatchLimit(self.config.steps_at_once)
            with (
                self._load_batches(start) as batches,
                self._make_logger(run, start, sums) as logger,
            ):
                while step < self.steps:
                    stacked = batches.take(min(limit.steps, self._next_stop(step, start) - step))
                    with self._name_first_step(step == start):
                        state, sums = limit.call(
                            self.train_steps, state, sums, self.settings, *stacked
                        )
                    step = batches.position
                    logger.update_progress(step, state)
                    self._profile(run, step - start, self.steps - start, state)
                    if after_call is not None:
                        after_call(step, state)
                    # Processes agree on the number of a call, which rises by 1.
                    stopping = stop_requested(next(calls))
                    if self._is_due(self.log_every, step):
                        logger.submit(step, sums)
                        sums = self._empty_sums
                    evaluating = self._is_due(self.evaluate_every, step)
                    saving = self._is_due(self.save_every, step) or stopping is not None
                    if evaluating or saving:
                        logger.pause_timing(state)
                        logger.write_pending()
                    if evaluating:
                        best = self._validate(step, state, best, logger)
                    if saving:
                        logger.check_finite(sums)  # A state that is not finite is never saved.
                        logger.flush()
                        checkpoints.save(step, Training(state, best, sums))
                        logger.checkpoint_saved(step)
                    if evaluating or saving:
                        logger.resume_timing()
                    if stopping is not None and step < self.steps:
                        raise Terminated(f"saved at step {step} of {self.steps}", stopping)
            return Training(state, best, sums)

    def _resume(self, checkpoints: Checkpoints) -> tuple[int, Training]:
        """Restore the newest checkpoint, or return the initial state if there is no checkpoint.

        Returns:
          The number of steps done and the training state.
        """
        step, training = checkpoints.restore(self._abstract) or (0, None)
        return step, training or self.initial_state()

    @contextlib.contextmanager
    def _name_first_step(self, is_first: bool) -> Iterator[None]:
        """Show the elapsed time of the first step, which has no progress line yet."""
        if is_first and jax.process_index() == 0:
            with show_elapsed("first step"):
                yield
        else:
            yield

    def _load_batches(self, start: int) -> BatchLoader:
        """Return the training batches from step `start` on."""
        return BatchLoader(self.batches, self.mesh, self.task.layout, start=start, stop=self.steps)

    def _is_due(self, every: int, step: int) -> bool:
        """Return True if `step` is a multiple of `every`, or the last step of the run."""
        return step % every == 0 or step == self.steps

    def _next_stop(self, step: int, start: int) -> int:
        """Return the next step after which the host logs, validates, saves, profiles or ends.

        `start` is the number of steps done before this process resumed the run.
        """
        intervals = (self.log_every, self.evaluate_every, self.save_every)
        stops = [step - step % every + every for every in intervals]
        if self.config.output.profile:
            stops += [start + done for done in PROFILED_STEPS if start + done > step]
        return min(self.steps, *stops)

    def _make_logger(self, run: Run, start: int, sums: MetricSums) -> RunLogger:
        return RunLogger(
            run,
            steps=self.steps,
            start=start,
            last_window=start - int(jax.device_get(sums.steps).max()),
            tensorboard=self.config.output.tensorboard,
        )

    def _validate(
        self, step: int, state: TrainState, best: BestParameters, logger: RunLogger
    ) -> BestParameters:
        """Evaluate all models on the validation set, and return the best parameters so far."""
        criterion = self.task.criterion
        metrics = evaluate(self.task, state.params, self.tables["validation"], self.mesh)
        logger.write(step, {f"validation/{name}": value for name, value in metrics.items()})
        scores = np.asarray(score(criterion, metrics[criterion])).astype(np.float32)
        best = update_best(
            best, state.step, jax.device_put(scores, best.score.sharding), state.params
        )
        logger.show_best(criterion, self._best_value(best))
        return best

    def _best_value(self, best: BestParameters) -> float:
        """Return the best validation result so far, as a table of results shows it.

        It is the mean over the seeds of the best setting. Each model has its best parameters.
        """
        scores: dict[Any, list[float]] = {}
        for member, value in zip(self.members, np.asarray(best.score), strict=True):
            scores.setdefault(tuple(sorted(member.setting.items())), []).append(float(value))
        return float(score(self.task.criterion, max(map(statistics.fmean, scores.values()))))

    def measure(self, training: Training) -> dict[str, Any]:
        """Evaluate every model with its best parameters, and return the content of result.json."""
        best = training.best
        measured = {
            split: evaluate(self.task, best.params, self.tables[split], self.mesh)
            for split in self._splits
        }
        train_table, best_steps = self.tables["train"], np.asarray(best.step)
        return {
            "method": self.config.method,
            "task": self.config.task,
            "criterion": self.task.criterion,
            "steps": self.steps,
            "baseline": {
                split: self.task.baseline(train_table, self.tables[split]) for split in measured
            },
            "parameters": sum(leaf.size for leaf in jax.tree.leaves(best.params))
            // len(self.members),
            "step_bytes": self.step_bytes(),
            "at_once": self.group or len(self.members),
            "members": [
                {
                    "seed": member.seed,
                    "setting": member.setting,
                    "best_step": int(best_steps[i]),
                    **{
                        split: {name: float(column[i]) for name, column in metrics.items()}
                        for split, metrics in measured.items()
                    },
                }
                for i, member in enumerate(self.members)
            ],
        }

    def step_bytes(self) -> int | None:
        """Return the compiler's estimate of the device memory of a training step, in bytes.

        The estimate is for a step of all models on a batch of the largest padded length. The result
        is None if the compiler reports no estimate.
        """
        used = self._lower_steps(len(self.batches.buckets) - 1).compile().memory_analysis()
        if used is None:
            return None
        held = used.argument_size_in_bytes + used.output_size_in_bytes - used.alias_size_in_bytes
        return held + used.temp_size_in_bytes

    def describe_batches(self) -> str:
        """Return a sentence about the padding and truncation of the training batches."""
        return describe_batches(self.task, self.batches)

    @property
    def _splits(self) -> tuple[str, ...]:
        """Names of the splits that are evaluated at the end of the run."""
        return ("validation", "test") if self.config.output.test else ("validation",)

    def _list_programs(self, evaluation: bool) -> Iterator[tuple[str, Callable[[], Any]]]:
        """Yield the name of each program of the run, and a function that lowers the program.

        If `evaluation` is False, yield only the programs of training steps.
        """
        unit = self.task.length_unit
        if evaluation:  # It is traced at once, so that all cores are busy from the beginning.
            create: Any = self._compute_initial_state
            yield "initial parameters", functools.partial(create.func.lower, *create.args)
        for bucket, length in enumerate(self.batches.buckets):
            yield f"training on {length} {unit}", functools.partial(self._lower_steps, bucket)
        if not evaluation:
            return
        params = self._abstract.state.params
        for split in self._splits:
            programs = list_programs(self.task, params, self.tables[split], self.mesh)
            for length, lower in programs:
                yield f"evaluation on {length} {unit}", lower

    def _lower_steps(self, bucket: int) -> Any:
        jitted: Any = self.train_steps.func
        stacked = empty_stack(self.task, self.batches, bucket, self.mesh)
        state, sums = self._abstract.state, self._abstract.sums
        return jitted.lower(*self.train_steps.args, state, sums, self.settings, *stacked)

    def _profile(self, run: Run, done: int, total: int, state: TrainState) -> None:
        """Start the JAX profiler before the first profiled step, and stop it after the last one.

        `done` is the number of steps that this process has done so far. `total` is the number of
        steps that this process will have done at the end of the run.
        """
        if not self.config.output.profile:
            return
        first, last = PROFILED_STEPS[0], min(PROFILED_STEPS[1], total)
        if done == first < last:
            jax.profiler.start_trace(run.path / "profile")
        elif first < done == last:
            jax.block_until_ready(state)
            jax.profiler.stop_trace()


@contextlib.contextmanager
def _pause_garbage_collection() -> Iterator[None]:
    """Do not look for garbage while a program is traced.

    Tracing makes hundreds of thousands of small objects, most of which stay in use. Looking for
    garbage among them would take a tenth of the time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _list_running(names: Mapping[Future[Any], str]) -> list[str]:
    """Return the names of the futures that are not done."""
    return [name for future, name in names.items() if not future.done()]
