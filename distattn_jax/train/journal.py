"""Log the metrics of a run to a file of JSON lines and to TensorBoard.

A run trains several models side by side. Each line contains the step and, for each metric, a list
with one number per model. Metrics that depend on the machine, such as steps per second, are not
logged. A resumed run therefore writes the same file as an uninterrupted run.

Before each checkpoint, `metrics_digest.json` records how many lines are written, and their digest.
If one of these lines is missing or changed later, the run is not resumed.
"""

import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from etils import epath

from distattn_jax.data.files import DataError
from distattn_jax.train.run_files import (
    hash_text,
    read_json,
    read_json_lines,
    write_atomically,
    write_json,
)
from distattn_jax.train.tensorboard import EventWriter

Line = dict[str, Any]


class Journal:
    """Append metrics to the file `metrics.jsonl` of a run and to its TensorBoard events.

    Args:
      directory: Directory of the run.
      resume_at: Step from which the run resumes. Lines of later steps are deleted, because the
        resumed run writes them again.
      last_window: Step of the last training metrics before `resume_at`. 0 if there were none.
      tensorboard: If True, also write TensorBoard events. Runs in a cloud bucket have no events.
    """

    def __init__(
        self,
        directory: epath.Path,
        *,
        resume_at: int = 0,
        last_window: int = 0,
        tensorboard: bool = True,
    ):
        self._path = directory / "metrics.jsonl"
        self._digest_path = directory / "metrics_digest.json"
        self._local = "://" not in str(directory)
        lines = read(directory)
        if resume_at and self._path.exists():
            self._check_complete(lines, resume_at, last_window)
        self._lines = [_format(line) for line in lines if line["step"] <= resume_at]
        # The digest of the lines that stay is true before and after the others are deleted.
        self._write_digest()
        write_atomically(self._path, "".join(self._lines))
        self._events = (
            EventWriter(str(directory / "events")) if tensorboard and self._local else None
        )

    def write(self, step: int, metrics: Mapping[str, np.ndarray]) -> None:
        """Append one line of metrics.

        TensorBoard events contain the mean of each metric over the models. If the run has several
        models, the events also contain the value of each model.

        Args:
          step: Number of training steps completed.
          metrics: Dict from metric name to an array of shape (members,), one value per model.
        """
        values = {name: [float(x) for x in array] for name, array in metrics.items()}
        text = _format({"step": step, **values})
        if self._local:
            with self._path.open("a") as file:
                file.write(text)
        self._lines.append(text)  # If the disk is full, the line counts as not written.
        if self._events is not None:
            means = {name: float(np.mean(column)) for name, column in values.items()}
            several = len(next(iter(values.values()))) > 1
            members = {
                f"{name}/{member}": value
                for name, column in values.items()
                for member, value in enumerate(column)
                if several
            }
            self._events.write(step, means | members)

    def flush(self) -> None:
        """Write all lines and events that are still in memory, and record the digest of the lines.

        In a cloud bucket, the whole file is written again, because lines cannot be appended.
        """
        if not self._local:
            write_atomically(self._path, "".join(self._lines))
        elif self._path.exists():
            with self._path.open("rb") as file:
                os.fsync(file.fileno())
        self._write_digest()
        if self._events is not None:
            self._events.flush()

    def close(self) -> None:
        """Flush all lines and close the TensorBoard events."""
        self.flush()
        if self._events is not None:
            self._events.close()

    def _write_digest(self) -> None:
        digest = hash_text("".join(self._lines))
        write_json(self._digest_path, {"lines": len(self._lines), "digest": digest})

    def _check_complete(self, lines: list[Line], resume_at: int, last_window: int) -> None:
        """Raise DataError if the file lacks lines that were written before the checkpoint.

        Runs of older versions have no digest. Their file must contain the last training metrics
        before the checkpoint.
        """
        remedy = "Restore the file, or remove it to resume without the earlier metrics."
        saved = read_json(self._digest_path)
        if saved is None:
            steps = [step for step in _training_steps(lines) if step <= resume_at]
            if last_window and last_window not in steps:
                raise DataError(
                    f"{self._path}: must contain the training metrics of step {last_window}, which "
                    f"the checkpoint of step {resume_at} follows; got lines up to step "
                    f"{max(steps, default=0)}. {remedy}"
                )
            return
        count = saved.get("lines")
        if type(count) is not int or count < 0:
            raise DataError(
                f"{self._digest_path}: must contain a number of lines. Remove it to resume without "
                "this check."
            )
        if len(lines) < count:
            raise DataError(
                f"{self._path}: must contain the {count} lines that the run has saved; got "
                f"{len(lines)}. {remedy}"
            )
        if hash_text("".join(map(_format, lines[:count]))) != saved.get("digest"):
            raise DataError(
                f"{self._path}: its first {count} lines changed after they were written. {remedy}"
            )


def read(directory: epath.Path) -> list[Line]:
    """Read the metrics of a run.

    If the process was killed while it wrote the last line, this incomplete line is skipped.

    Args:
      directory: Directory of the run.

    Returns:
      One dictionary per line, with the key `step` and one list of numbers per metric.
    """
    path = directory / "metrics.jsonl"
    lines = read_json_lines(path, ("step",))
    models = None  # number of models, from the first line
    for number, line in enumerate(lines, start=1):
        for name, values in line.items():
            if name == "step":
                continue
            if not isinstance(values, list) or not all(isinstance(x, int | float) for x in values):
                raise DataError(f"{path}:{number}: {name!r} must be a list of numbers.")
            models = models or len(values)
            if len(values) != models:
                raise DataError(
                    f"{path}:{number}: {name!r} must have {models} numbers, one for each model; "
                    f"got {len(values)}."
                )
    return lines


def last_step(directory: epath.Path) -> int:
    """Return the number of the last training step that a run has logged; 0 if there is none."""
    return max((line["step"] for line in read(directory)), default=0)


def _training_steps(lines: list[Line]) -> list[int]:
    """Return the steps of the lines with metrics of training."""
    return [line["step"] for line in lines if any(name.startswith("train/") for name in line)]


def _format(line: Line) -> str:
    """Return one line of JSON text."""
    return json.dumps(line) + "\n"
