"""Logging of a run: metrics to files, progress to the terminal, and a check for finite losses.

Metrics are summed over a window of steps. A window is all steps between two log lines.
"""

import contextlib
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from distattn_jax.train.journal import Journal
from distattn_jax.train.progress import Progress
from distattn_jax.train.results import PERCENT_METRICS
from distattn_jax.train.run import Run
from distattn_jax.train.state import NEVER, MetricSums, TrainState

WAIT_SECONDS = 0.5  # time between two steps at which the host waits for the device


class NonFiniteError(Exception):
    """Raised when a loss or a gradient is not finite."""


class RunLogger(contextlib.AbstractContextManager):
    """Write the metrics of a run, and raise an error if a loss or a gradient is not finite.

    A thread copies the metric sums of a window to the host and writes them, while the device
    computes the next window. Only the first process writes files. All processes check that losses
    and gradients are finite.

    Args:
      run: Folder of the run.
      steps: Number of steps of the whole run.
      start: Number of steps that were completed before this process resumed the run.
      last_window: Step of the last training metrics before `start`. 0 if there were none.
      tensorboard: True to write TensorBoard events.
    """

    def __init__(
        self,
        run: Run,
        *,
        steps: int,
        start: int,
        last_window: int = 0,
        tensorboard: bool,
    ):
        self._run = run
        self._thread = ThreadPoolExecutor(1)
        self._pending: Future[None] | None = None
        # Values of the progress line. Another thread may replace these dicts, not change them.
        self._loss: dict[str, float] = {}
        self._best: dict[str, float] = {}
        self._saved_step = start
        self._start_time, self._start_step, self._step = time.monotonic(), start, start
        self._next_wait = start + 1
        self._spans: list[tuple[int, float]] = []  # (steps, seconds) between two pauses
        self._journal: Journal | None = None
        self._progress: Progress | None = None
        self._paused_time = self._start_time
        self.resume_timing()
        if jax.process_index() == 0:
            self._journal = Journal(
                run.path, resume_at=start, last_window=last_window, tensorboard=tensorboard
            )
            self._progress = Progress(steps)

    def update_progress(self, step: int, state: TrainState) -> None:
        """Update the progress display after steps were dispatched to the device.

        About every `WAIT_SECONDS`, wait until the device has done the last dispatched step, and
        show its number. The host is therefore never far ahead of the device.

        Args:
          step: Number of training steps dispatched.
          state: State after this step.
        """
        self._step = step
        if step >= self._next_wait:
            self._wait(state)

    def pause_timing(self, state: TrainState) -> None:
        """Wait until the dispatched steps are done, then stop measuring the time of training steps.

        Call this method before validation or saving, so that their time is not included.
        """
        self._wait(state)
        self._paused_time = time.monotonic()
        self._spans.append((self._step - self._span_step, self._paused_time - self._span_time))

    def resume_timing(self) -> None:
        """Start measuring the time of training steps again."""
        self._span_step, self._span_time = self._step, time.monotonic()
        self._waited_step, self._waited_time = self._span_step, self._span_time
        if self._progress is not None:
            self._progress.exclude(self._span_time - self._paused_time)
            if self._step > self._start_step:  # A validation may have changed the values.
                self._progress.update(self._step, {**self._loss, **self._best})

    def _wait(self, state: TrainState) -> None:
        """Wait until the dispatched steps are done, show progress and plan the next wait."""
        jax.block_until_ready(state.step)
        steps, seconds = self._step - self._waited_step, time.monotonic() - self._waited_time
        self._waited_step, self._waited_time = self._step, time.monotonic()
        self._next_wait = self._step + max(int(WAIT_SECONDS * steps / max(seconds, 1e-9)), 1)
        if self._progress is not None:
            self._progress.update(self._step, {**self._loss, **self._best})

    def submit(self, step: int, sums: MetricSums) -> None:
        """Let the thread write the metric sums of the latest window of steps.

        Args:
          step: Number of training steps completed.
          sums: Metric sums of the window that ends at this step. These arrays must not be donated.

        Raises:
          NonFiniteError: A loss or a gradient in the previous window was not finite.
        """
        self.write_pending()
        self._pending = self._thread.submit(lambda: self.write(step, self.check_finite(sums)))

    def write_pending(self) -> None:
        """Wait until the last submitted sums are written.

        Raises:
          NonFiniteError: The loss or the gradient of a step was not finite.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def check_finite(self, sums: MetricSums) -> dict[str, np.ndarray]:
        """Return a dict from metric name to the mean over a window, one value per model.

        Raises:
          NonFiniteError: The loss or the gradient of a step was not finite.
        """
        totals, steps, bad = jax.device_get((sums.sums, sums.steps, sums.first_bad_step))
        means = {name: column / np.maximum(steps, 1) for name, column in totals.items()}
        if bad.min() != NEVER:
            raise NonFiniteError(self._describe_failure(int(bad.argmin()), bad, means))
        return means

    def write(self, step: int, metrics: Mapping[str, np.ndarray]) -> None:
        """Write metrics to the files of the run.

        Args:
          step: Number of training steps completed.
          metrics: Dict from metric name to an array of shape (members,), one value per model.
        """
        if "train/loss" in metrics:
            self._loss = {"loss": float(np.mean(metrics["train/loss"]))}
        if self._journal is not None:
            self._journal.write(step, metrics)

    def show_best(self, criterion: str, value: float) -> None:
        """Show the best validation result so far in the progress line, in the unit of tables.

        Args:
          criterion: Name of the metric that selects the best parameters.
          value: Best value of this metric on the validation set.
        """
        unit, factor = (" (%)", 100) if criterion in PERCENT_METRICS else ("", 1)
        self._best = {f"best validation {criterion}{unit}": factor * value}

    def flush(self) -> None:
        """Write all metrics to disk. Call this method before a checkpoint is saved."""
        if self._journal is not None:
            self._journal.flush()

    def checkpoint_saved(self, step: int) -> None:
        """Store the step of the newest checkpoint, for error messages."""
        self._saved_step = step

    def _describe_failure(self, member: int, bad: np.ndarray, means: dict[str, np.ndarray]) -> str:
        rate = means["train/learning_rate"][member]
        kept = (
            f"The last good checkpoint is that of step {self._saved_step}, in "
            f"{self._run.checkpoints}."
            if self._saved_step
            else "There is no checkpoint yet."
        )
        return (
            f"the loss or its gradient is not finite at step {bad[member] + 1} (member {member}, "
            f"learning rate {rate:.3g} on average around it). {kept}"
        )

    def __exit__(self, *_: Any) -> None:
        self._thread.shutdown()
        if self._journal is not None and self._progress is not None:
            self._progress.close()
            self._journal.close()
            seconds, steps = time.monotonic() - self._start_time, self._step - self._start_step
            self._run.add_timing(seconds, steps, self._spans)
