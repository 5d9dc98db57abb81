"""Rows in memory: arrays of numbers, and sequences of different lengths laid end to end."""

import dataclasses
from collections.abc import Mapping

import numpy as np
from jaxtyping import Int, Int32, Int64

FILLER = -1  # the index of a row that is not there: zeros, of length 0


@dataclasses.dataclass(frozen=True, eq=False)
class Ragged:
    """Sequences of integers: row i is `values[offsets[i]:offsets[i + 1]]`.

    Args:
      values: all rows, end to end.
      offsets: where each row begins, and where the last one ends.
    """

    values: Int32[np.ndarray, " total"]
    offsets: Int64[np.ndarray, " bounds"]

    def __post_init__(self):
        ends = (self.offsets[0], self.offsets[-1]) if len(self.offsets) else None
        if ends != (0, len(self.values)) or (np.diff(self.offsets) < 0).any():
            raise ValueError(
                f"offsets must rise from 0 to the number of values, {len(self.values)}; "
                f"got {self.offsets}."
            )

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Int64[np.ndarray, " rows"]:
        """The length of every row."""
        return np.diff(self.offsets)

    def padded(
        self, indices: Int[np.ndarray, " B"], length: int
    ) -> tuple[Int32[np.ndarray, "B T"], Int32[np.ndarray, " B"]]:
        """Rows cut or padded with 0 to one length, and how much of each is real."""
        starts = self.offsets[indices]
        lengths = np.minimum(self.offsets[indices + 1] - starts, length)
        lengths = np.where(indices == FILLER, 0, lengths).astype(np.int32)
        positions = np.arange(length)
        real = positions < lengths[:, None]  # (B, T)
        padded = np.zeros(real.shape, np.int32)
        padded[real] = self.values[(starts[:, None] + positions)[real]]
        return padded, lengths


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """Columns with one entry for every example.

    Args:
      columns: by name, numbers of any shape per row, or sequences.
    """

    columns: Mapping[str, np.ndarray | Ragged]

    def __post_init__(self):
        if not self.columns:
            raise ValueError("columns must hold at least one column; got none.")
        first = next(iter(self.columns))
        for name, column in self.columns.items():
            if len(column) != len(self):
                raise ValueError(
                    f"columns must all have the {len(self)} rows of {first!r}; "
                    f"got {len(column)} rows in {name!r}."
                )
            if not isinstance(column, Ragged) and column.dtype.kind not in "biuf":
                raise ValueError(f"columns must hold numbers; got {column.dtype} in {name!r}.")

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def rows(self, indices: Int[np.ndarray, " B"], length: int) -> dict[str, np.ndarray]:
        """The rows of these indices; of sequences `name` (B, T) and `name_length` (B,)."""
        rows = {}
        for name, column in self.columns.items():
            if isinstance(column, Ragged):
                rows[name], rows[f"{name}_length"] = column.padded(indices, length)
            else:
                rows[name] = column[indices]  # a copy
                rows[name][indices == FILLER] = 0
        return rows
