"""The metrics of a run: JSON lines that are the same however often it was stopped, and TensorBoard.

A line holds a step and, for each metric, one number per member. What depends on the machine, as
steps per second, is not among them.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from etils import epath

from distattn_jax.train.tensorboard import EventWriter

Line = dict[str, Any]


class Journal:
    """Appends to `metrics.jsonl` of a run, and to its TensorBoard events.

    Args:
      directory: of the run.
      resume_at: lines of later steps, written before the run was stopped, are taken back.
      tensorboard: whether events are written too (to a local folder only).
    """

    def __init__(self, directory: epath.Path, *, resume_at: int = 0, tensorboard: bool = True):
        self._path = directory / "metrics.jsonl"
        kept = [line for line in read(directory) if line["step"] <= resume_at]
        self._lines = [_text(line) for line in kept]
        self._path.write_text("".join(self._lines))
        self._local = "://" not in str(directory)
        self._events = (
            EventWriter(str(directory / "events")) if tensorboard and self._local else None
        )

    def write(self, step: int, metrics: Mapping[str, np.ndarray]) -> None:
        """One line: each metric an array over members."""
        values = {name: [float(x) for x in array] for name, array in metrics.items()}
        text = _text({"step": step, **values})
        self._lines.append(text)
        if self._local:
            with self._path.open("a") as file:
                file.write(text)
        if self._events is not None:
            means = {name: float(np.mean(column)) for name, column in values.items()}
            several = len(next(iter(values.values()))) > 1
            each = {
                f"{name}/{member}": value
                for name, column in values.items()
                for member, value in enumerate(column)
                if several
            }
            self._events.write(step, means | each)

    def flush(self) -> None:
        """Makes sure that what was written can be read; a bucket gets the whole file anew."""
        if not self._local:
            self._path.write_text("".join(self._lines))
        if self._events is not None:
            self._events.flush()

    def close(self) -> None:
        """No more lines."""
        self.flush()
        if self._events is not None:
            self._events.close()


def read(directory: epath.Path) -> list[Line]:
    """The lines of a run; a last one cut short by a kill does not count."""
    path = directory / "metrics.jsonl"
    if not path.exists():
        return []
    return [
        json.loads(line) for line in path.read_text().splitlines(keepends=True) if line[-1:] == "\n"
    ]


def _text(line: Line) -> str:
    return json.dumps(line) + "\n"
