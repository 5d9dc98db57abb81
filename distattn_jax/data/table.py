"""Examples in memory, stored by column: numbers, sequences, and lists of sequences."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float32, Int, Int32, Int64

PADDING_ROW = -1  # row index of a padding example, which is all zeros and has length 0


@runtime_checkable
class TableLike(Protocol):
    """Interface that `Batches` requires of its examples. `Table` implements this interface."""

    def __len__(self) -> int:
        """Return the number of rows."""

    @property
    def sequence_columns(self) -> tuple[str, ...]:
        """Names of the columns that contain sequences."""

    def lengths(self, names: tuple[str, ...]) -> Int64[np.ndarray, " rows"]:
        """Return the length of every row, as `Table.lengths` does."""

    def take(self, indices: Int[np.ndarray, " B"], length: int) -> dict[str, np.ndarray]:
        """Return a dict of arrays with the selected rows, as `Table.take` does."""


@dataclasses.dataclass(frozen=True, eq=False)
class Ragged:
    """Column of sequences of varying length: row i is `values[offsets[i]:offsets[i + 1]]`.

    Args:
      values: Elements of all rows, concatenated.
      offsets: Start of each row in `values`, followed by the total number of elements.
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

    @staticmethod
    def from_rows(rows: Sequence[np.ndarray], dtype: type[np.number] = np.int32) -> "Ragged":
        """Concatenate rows of numbers.

        Args:
          rows: Elements of each row.
          dtype: Type of the elements.
        """
        values = np.concatenate([np.zeros(0, dtype), *rows]).astype(dtype, copy=False)
        return Ragged(values, np.cumsum([0, *map(len, rows)], dtype=np.int64))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Int64[np.ndarray, " rows"]:
        """Number of elements of every row."""
        return np.diff(self.offsets)

    def split(self) -> list[np.ndarray]:
        """Return every row as an array."""
        return np.split(self.values, self.offsets[1:-1]) if len(self) else []

    def select(self, mask: Bool[np.ndarray, " rows"]) -> "Ragged":
        """Return the rows where `mask` is True."""
        offsets = np.append(0, np.cumsum(self.lengths[mask]))
        return Ragged(self.values[np.repeat(mask, self.lengths)], offsets)

    def pad(
        self, indices: Int[np.ndarray, " B"], length: int
    ) -> tuple[Int32[np.ndarray, "B T"] | Float32[np.ndarray, "B T"], Int32[np.ndarray, " B"]]:
        """Truncate or pad the selected rows, so that each has `length` elements. Padding is 0.

        Args:
          indices: Row indices, shape (B,). The index -1 selects a row of padding only.
          length: Number of elements T of each returned row.

        Returns:
          The rows, shape (B, T), and the number of elements of each row without padding, shape
          (B,).
        """
        places, lengths = _select_places(self.offsets, indices, length)
        valid = places != PADDING_ROW
        padded = np.zeros(valid.shape, self.values.dtype)
        padded[valid] = self.values[places[valid]]
        return padded, lengths


@dataclasses.dataclass(frozen=True, eq=False)
class Nested:
    """Column of lists of sequences, for example the sentences of each document.

    Row i is the list of sequences `offsets[i]` to `offsets[i + 1] - 1` of `inner`.

    Args:
      inner: Sequences of all rows, concatenated.
      offsets: Index in `inner` of the first sequence of each row, followed by the total number of
        sequences.
      width: Length to which each sequence is truncated or padded.
    """

    inner: Ragged
    offsets: Int64[np.ndarray, " bounds"]
    width: int

    @staticmethod
    def from_counts(inner: Ragged, counts: Sequence[int], width: int) -> "Nested":
        """Build a column from the number of sequences in each row.

        Args:
          inner: Sequences of all rows, concatenated.
          counts: Number of sequences in each row.
          width: Length to which each sequence is truncated or padded.
        """
        return Nested(inner, np.cumsum([0, *counts], dtype=np.int64), width)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Int64[np.ndarray, " rows"]:
        """Number of sequences in every row."""
        return np.diff(self.offsets)

    @property
    def truncated(self) -> int:
        """Number of sequences that are longer than `width`."""
        return int((self.inner.lengths > self.width).sum())

    @property
    def padding_share(self) -> float:
        """Fraction of padding among all elements, after padding each sequence to `width`."""
        valid = np.minimum(self.inner.lengths, self.width).sum()
        return 1 - float(valid) / max(len(self.inner) * self.width, 1)

    def pad(
        self, indices: Int[np.ndarray, " B"], length: int
    ) -> tuple[Int32[np.ndarray, "B S T"], Int32[np.ndarray, "B S"], Int32[np.ndarray, " B"]]:
        """Truncate or pad the selected rows, so that each has `length` sequences. Padding is 0.

        Args:
          indices: Row indices, shape (B,). The index -1 selects a row of padding only.
          length: Number of sequences S of each returned row.

        Returns:
          Three arrays: the rows, shape (B, S, T), where T is `width`; the number of elements of
          each sequence without padding, shape (B, S); and the number of sequences of each row
          without padding, shape (B,).
        """
        sequences, counts = _select_places(self.offsets, indices, length)
        values, lengths = self.inner.pad(sequences.reshape(-1), self.width)
        shape = sequences.shape
        return values.reshape(*shape, self.width), lengths.reshape(shape), counts


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """Examples in memory, as columns with the same number of rows.

    Args:
      columns: Dict from name to column. A column is a numeric array whose first axis is the row, a
        `Ragged` column of sequences, or a `Nested` column of lists of sequences.
    """

    columns: Mapping[str, np.ndarray | Ragged | Nested]

    def __post_init__(self):
        if not self.columns:
            raise ValueError("columns must contain at least one column; got none.")
        first = next(iter(self.columns))
        for name, column in self.columns.items():
            if len(column) != len(self):
                raise ValueError(
                    f"columns must all have the {len(self)} rows of {first!r}; "
                    f"got {len(column)} rows in {name!r}."
                )
            if isinstance(column, np.ndarray) and column.dtype.kind not in "biuf":
                raise ValueError(f"columns must contain numbers; got {column.dtype} in {name!r}.")

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def lengths(self, names: tuple[str, ...]) -> Int64[np.ndarray, " rows"]:
        """Return the length of every row: the largest of its lengths in the named columns.

        In a column of sequences, the length is the number of elements of the sequence. In a column
        of lists of sequences, the length is the number of sequences in the list.
        """
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
        """Names of the columns that contain sequences or lists of sequences."""
        columns = self.columns.items()
        return tuple(name for name, column in columns if not isinstance(column, np.ndarray))

    def take(self, indices: Int[np.ndarray, " B"], length: int) -> dict[str, np.ndarray]:
        """Return a dict of arrays with the selected rows.

        Sequences are truncated or padded with 0. Lengths do not include padding.

        | elements of the column | arrays of the result |
        | --- | --- |
        | numbers | `name` (B, ...) |
        | sequences | `name` (B, T); `name_length` (B,): length of each sequence |
        | lists of sequences | `name` (B, S, T); `name_words` (B, S): length of each sequence; |
        | | `name_length` (B,): length of each list |

        Args:
          indices: Row indices, shape (B,). The index -1 selects a row of zeros and of length 0.
          length: T for columns of sequences, and S for columns of lists of sequences. In a list of
            sequences, T is the `width` of the column.
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
                rows[name] = column[indices]  # indexing by an array copies
                rows[name][indices == PADDING_ROW] = 0
        return rows


def _select_places(
    offsets: Int64[np.ndarray, " bounds"], indices: Int[np.ndarray, " B"], length: int
) -> tuple[Int64[np.ndarray, "B T"], Int32[np.ndarray, " B"]]:
    """Find the elements of the selected rows in the concatenation of all rows.

    Args:
      offsets: Start of each row in the concatenation, followed by the total number of elements.
      indices: Indices of the selected rows, shape (B,). `PADDING_ROW` selects a row of padding.
      length: Number of elements T to which each row is truncated or padded.

    Returns:
      The index of each element in the concatenation, shape (B, T), with `PADDING_ROW` for padding;
      and the number of elements of each row without padding, shape (B,).
    """
    starts = offsets[indices]
    lengths = np.minimum(offsets[indices + 1] - starts, length)
    lengths = np.where(indices == PADDING_ROW, 0, lengths).astype(np.int32)
    positions = np.arange(length)
    valid = positions < lengths[:, None]
    return np.where(valid, starts[:, None] + positions, PADDING_ROW), lengths
