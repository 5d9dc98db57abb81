"""Rows in memory: numbers, and sequences (and sequences of these) laid end to end."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float32, Int, Int32, Int64

PADDING_ROW = -1  # the index of a row that is not there: zeros, of length 0


@runtime_checkable
class TableLike(Protocol):
    """What batches are made of: a `Table`, or rows that lie elsewhere."""

    def __len__(self) -> int:
        """How many rows there are."""

    @property
    def sequence_columns(self) -> tuple[str, ...]:
        """The names of the columns that have lengths."""

    def lengths(self, names: tuple[str, ...]) -> Int64[np.ndarray, " rows"]:
        """The longest of these columns, row by row."""

    def take(self, indices: Int[np.ndarray, " B"], length: int) -> dict[str, np.ndarray]:
        """The rows of these indices, each column padded to one length."""


@dataclasses.dataclass(frozen=True, eq=False)
class Ragged:
    """Sequences of numbers: row i is `values[offsets[i]:offsets[i + 1]]`.

    Args:
      values: all rows, end to end.
      offsets: where each row begins, and where the last one ends.
    """

    values: Int32[np.ndarray, " total"] | Float32[np.ndarray, " total"]
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

    def pad(
        self, indices: Int[np.ndarray, " B"], length: int
    ) -> tuple[Int32[np.ndarray, "B T"] | Float32[np.ndarray, "B T"], Int32[np.ndarray, " B"]]:
        """Rows cut or padded with 0 to one length, and how much of each is real."""
        starts = self.offsets[indices]
        lengths = np.minimum(self.offsets[indices + 1] - starts, length)
        lengths = np.where(indices == PADDING_ROW, 0, lengths).astype(np.int32)
        positions = np.arange(length)
        real = positions < lengths[:, None]  # (B, T)
        padded = np.zeros(real.shape, self.values.dtype)
        padded[real] = self.values[(starts[:, None] + positions)[real]]
        return padded, lengths


@dataclasses.dataclass(frozen=True, eq=False)
class Nested:
    """Sequences of sequences: row i holds the sequences `offsets[i]` to `offsets[i + 1]`.

    Args:
      inner: the sequences of all rows, end to end.
      offsets: where each row begins, and where the last one ends.
      width: what an inner sequence is cut or padded to.
    """

    inner: Ragged
    offsets: Int64[np.ndarray, " bounds"]
    width: int

    @staticmethod
    def from_counts(inner: Ragged, counts: Sequence[int], width: int) -> "Nested":
        """From the number of sequences of every row."""
        return Nested(inner, np.cumsum([0, *counts], dtype=np.int64), width)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Int64[np.ndarray, " rows"]:
        """The number of sequences of every row."""
        return np.diff(self.offsets)

    @property
    def truncated(self) -> int:
        """How many inner sequences lose their end."""
        return int((self.inner.lengths > self.width).sum())

    @property
    def padding_share(self) -> float:
        """What share of the width of all inner sequences is padding."""
        real = np.minimum(self.inner.lengths, self.width).sum()
        return 1 - float(real) / max(len(self.inner) * self.width, 1)

    def pad(
        self, indices: Int[np.ndarray, " B"], length: int
    ) -> tuple[Int32[np.ndarray, "B S T"], Int32[np.ndarray, "B S"], Int32[np.ndarray, " B"]]:
        """Rows cut or padded to so many sequences; the lengths of these; how many are real."""
        starts = self.offsets[indices]
        counts = np.minimum(self.offsets[indices + 1] - starts, length)
        counts = np.where(indices == PADDING_ROW, 0, counts).astype(np.int32)
        places = np.arange(length)
        inside = np.where(places < counts[:, None], starts[:, None] + places, PADDING_ROW)  # (B, S)
        tokens, words = self.inner.pad(inside.reshape(-1), self.width)
        return tokens.reshape(*inside.shape, self.width), words.reshape(inside.shape), counts


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """Columns with one entry for every example.

    Args:
      columns: by name, numbers of any shape per row, sequences, or sequences of sequences.
    """

    columns: Mapping[str, np.ndarray | Ragged | Nested]

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
            if isinstance(column, np.ndarray) and column.dtype.kind not in "biuf":
                raise ValueError(f"columns must hold numbers; got {column.dtype} in {name!r}.")

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def lengths(self, names: tuple[str, ...]) -> Int64[np.ndarray, " rows"]:
        """The longest of these columns, row by row."""
        lengths = np.zeros(len(self), np.int64)
        for name in names:
            column = self.columns.get(name)
            if column is None or isinstance(column, np.ndarray):
                raise ValueError(
                    f"names must be columns of sequences, {list(self.sequence_columns)}; "
                    f"got {name!r}."
                )
            lengths = np.maximum(lengths, column.lengths)
        return lengths

    @property
    def sequence_columns(self) -> tuple[str, ...]:
        """The names of the columns that have lengths."""
        columns = self.columns.items()
        return tuple(name for name, column in columns if not isinstance(column, np.ndarray))

    def take(self, indices: Int[np.ndarray, " B"], length: int) -> dict[str, np.ndarray]:
        """The rows of these indices.

        Of sequences `name` (B, T) and `name_length` (B,); of sequences of sequences `name`
        (B, S, T), `name_words` (B, S) and `name_length` (B,).
        """
        rows = {}
        for name, column in self.columns.items():
            if isinstance(column, Ragged):
                rows[name], rows[f"{name}_length"] = column.pad(indices, length)
            elif isinstance(column, Nested):
                rows[name], rows[f"{name}_words"], rows[f"{name}_length"] = column.pad(
                    indices, length
                )
            else:
                rows[name] = column[indices]  # a copy
                rows[name][indices == PADDING_ROW] = 0
        return rows
