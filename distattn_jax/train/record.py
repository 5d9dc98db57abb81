"""What is seen of a run while it goes on: metrics to the journal, a line to the person."""

import time
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from distattn_jax.train.journal import Journal
from distattn_jax.train.progress import Progress
from distattn_jax.train.run import Run
from distattn_jax.train.state import NEVER, Tally, TrainState


class NonFiniteError(Exception):
    """A loss or a gradient that is not a number any more."""


class Record:
    """Writes what a run measures, and stops it when that is not finite.

    The tally of a window is read when the next one is handed in, so that nobody waits for the
    device. Only the first process writes; all of them read and check.

    Args:
      run: where it is kept.
      steps: of the whole run.
      start: steps done before.
      tensorboard: whether events are written.
      evaluation: name of the metric shown beside the loss.
    """

    def __init__(self, run: Run, *, steps: int, start: int, tensorboard: bool, evaluation: str):
        self._run, self._evaluation = run, evaluation
        self._pending: tuple[int, Tally] | None = None
        self._seen: dict[str, float] = {}
        self._saved = start
        self._began, self._start, self._step = time.monotonic(), start, start
        self._spans: list[tuple[int, float]] = []
        self.resumed()
        self._journal: Journal | None = None
        self._progress: Progress | None = None
        if jax.process_index() == 0:
            self._journal = Journal(run.path, resume_at=start, tensorboard=tensorboard)
            self._progress = Progress(steps, start=start)

    def stepped(self, step: int) -> None:
        """One more step was handed to the device."""
        self._step = step
        if self._progress is not None:
            self._progress.update(step, self._seen)

    def paused(self, state: TrainState) -> None:
        """The steps come to a halt, when the device has done them, for something else."""
        jax.block_until_ready(state.step)
        self._spans.append((self._step - self._span_start, time.monotonic() - self._span_began))

    def resumed(self) -> None:
        """The steps go on."""
        self._span_start, self._span_began = self._step, time.monotonic()

    def window(self, step: int, tally: Tally) -> None:
        """Hands in the tally of the steps up to this one; reads the one before."""
        self.read()
        self._pending = step, tally

    def read(self) -> None:
        """Reads the tally handed in last, waiting for the device if it must."""
        if self._pending is None:
            return
        step, tally = self._pending
        self._pending = None
        self.metrics(step, self.checked(tally))

    def checked(self, tally: Tally) -> dict[str, np.ndarray]:
        """The means of a tally; waits for the device, and raises where a step was not finite."""
        sums, steps, bad = jax.device_get((tally.sums, tally.steps, tally.bad))
        means = {name: column / np.maximum(steps, 1) for name, column in sums.items()}
        if bad.min() != NEVER:
            raise NonFiniteError(self._what_was_lost(int(bad.argmin()), bad, means))
        return means

    def metrics(self, step: int, metrics: Mapping[str, np.ndarray]) -> None:
        """Writes metrics, each an array over members."""
        for name, shown in (("train/loss", "loss"), (self._evaluation, self._evaluation)):
            if name in metrics:
                self._seen[shown] = float(np.mean(metrics[name]))
        if self._journal is not None:
            self._journal.write(step, metrics)

    def saved(self, step: int) -> None:
        """A checkpoint of this step is being written: what was measured until then is, too."""
        self._saved = step
        if self._journal is not None:
            self._journal.flush()

    def _what_was_lost(self, member: int, bad: np.ndarray, means: dict[str, np.ndarray]) -> str:
        rate = means["train/learning_rate"][member]
        kept = (
            f"The last good checkpoint is that of step {self._saved}, in {self._run.checkpoints}."
            if self._saved
            else "There is no checkpoint yet."
        )
        return (
            f"the loss or its gradient is not finite at step {bad[member] + 1} (member {member}, "
            f"learning rate {rate:.3g} on average around it). {kept}"
        )

    def __enter__(self) -> "Record":
        return self

    def __exit__(self, *_: Any) -> None:
        if self._journal is not None and self._progress is not None:
            self._journal.close()
            self._progress.close()
            seconds, steps = time.monotonic() - self._began, self._step - self._start
            self._run.note_time(seconds, steps, self._spans)
