"""Batches of rows of similar length. No row is dropped.

Rows are grouped by length into buckets. In each epoch, the rows of every bucket are divided into
batches of equal size, and the last batch of a bucket is filled with padding rows of weight 0.
Therefore all epochs have the same number of batches. The batch size may differ between buckets, so
that all batches have about the same number of tokens.

Batch i depends only on i and the seed, so that training can resume at any step. If there are
several processes, each process makes a slice of the rows of every batch. The slices of all
processes together equal the batch that a single process would make.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int, Int32

from distattn_jax.data.table import PADDING_ROW, TableLike


class Batches:
    """Infinite sequence of batches of a table. `batches[i]` is the batch of step i, from 0.

    A batch is a dict of the columns of the table (see `Table.take`) and two more arrays of shape
    (B,). `weight` is 1 for rows of the table and 0 for padding rows. `index` is the row index in
    the table, or -1 for padding rows.

    Args:
      table: Examples to divide into batches.
      batch_size: Number of rows of a batch, summed over all processes. A tuple contains one number
        for each bucket.
      buckets: Sequence lengths that batches may have, in ascending order. A row belongs to the
        first bucket that is long enough. Rows longer than the last bucket are truncated to its
        length.
      length_columns: Name of the column whose sequences define the lengths of the rows. If several
        columns are named, the longest of their sequences defines the length of a row.
      seed: Seed of the order of rows and batches. Ignored unless `shuffle` is True.
      shuffle: True draws a new order in every epoch. False keeps the order of the table within each
        bucket, shortest bucket first.
      row_multiple: Every batch is filled with padding rows up to a multiple of this number, so that
        its rows can be divided equally, e.g. among devices. This number does not change which rows
        of the table a batch contains.
      process_index: Index of the process whose rows this object produces.
      process_count: Number of processes among which the rows of each batch are divided.

    Attributes:
      batch_sizes: For each bucket, the number of rows of the table in a full batch.
      array_sizes: For each bucket, `batch_sizes` rounded up to a multiple of `row_multiple`. This
        is the number of rows of the arrays of a batch.
      batches_per_epoch: Number of batches of an epoch. Every row of the table occurs once in an
        epoch.
      bucket_counts: For each bucket, the number of its batches in an epoch.
      truncated: Number of rows with a sequence that is longer than the bucket, and therefore
        truncated.
      padding_share: Fraction of padding among all positions of an epoch.
    """

    def __init__(
        self,
        table: TableLike,
        *,
        batch_size: int | tuple[int, ...],
        buckets: tuple[int, ...],
        length_columns: str | tuple[str, ...],
        seed: int = 0,
        shuffle: bool,
        row_multiple: int = 1,
        process_index: int = 0,
        process_count: int = 1,
    ):
        sizes = (batch_size,) * len(buckets) if isinstance(batch_size, int) else batch_size
        _check(
            len(sizes) == len(buckets),
            f"batch_size must be one number, or one for each of the {len(buckets)} buckets",
            batch_size,
        )
        _check(min(sizes, default=1) >= 1, "batch_size must be at least 1", batch_size)
        _check(row_multiple >= 1, "row_multiple must be at least 1", row_multiple)
        _check(seed >= 0, "seed must be at least 0", seed)
        _check(
            0 <= process_index < process_count,
            f"process_index must be in 0 .. process_count - 1 = {process_count - 1}",
            process_index,
        )
        array_sizes = tuple(-(-size // row_multiple) * row_multiple for size in sizes)
        _check(
            all(size % process_count == 0 for size in array_sizes),
            f"batch_size must be a multiple of process_count = {process_count}",
            batch_size,
        )
        _check(
            bool(buckets) and buckets[0] >= 1 and list(buckets) == sorted(set(buckets)),
            "buckets must be positive lengths in ascending order",
            buckets,
        )
        _check(len(table) > 0, "table must have rows", len(table))
        self.table, self.buckets = table, buckets
        self.batch_sizes, self.array_sizes = sizes, array_sizes
        self.seed, self.shuffle = seed, shuffle
        self._process_index, self._process_count = process_index, process_count
        names = (length_columns,) if isinstance(length_columns, str) else length_columns
        lengths = table.lengths(names)
        bucket = np.searchsorted(buckets, np.minimum(lengths, buckets[-1]))
        self._bucket_rows = [
            np.flatnonzero(bucket == k).astype(np.int32) for k in range(len(buckets))
        ]
        counts = [
            -(-len(rows) // size) for rows, size in zip(self._bucket_rows, sizes, strict=True)
        ]
        self.batches_per_epoch = sum(counts)
        self.bucket_counts = tuple(counts)
        self._bucket_of_batch = np.repeat(np.arange(len(buckets)), counts)
        self._get_epoch = functools.lru_cache(maxsize=2)(self._make_epoch)
        longest = table.lengths(table.sequence_columns)
        self.truncated = int((longest > np.take(buckets, bucket)).sum())
        positions = int(np.dot(counts, np.multiply(array_sizes, buckets)))
        self.padding_share = 1 - int(np.minimum(lengths, buckets[-1]).sum()) / positions

    def __getitem__(self, i: int) -> dict[str, np.ndarray]:
        if i < 0:
            raise IndexError(f"i must be at least 0; got {i}.")
        number, step = divmod(int(i), self.batches_per_epoch)
        epoch = self._get_epoch(number if self.shuffle else 0)
        bucket = epoch.bucket[step]
        index = self._take_local(epoch.rows[bucket][epoch.place[step]])
        columns = self.table.take(index, self.buckets[bucket])
        return {**columns, "weight": (index != PADDING_ROW).astype(np.float32), "index": index}

    def locate(self, i: int) -> "Location":
        """Return the epoch, the bucket and the rank of batch i (see `Location`)."""
        number, step = divmod(i, self.batches_per_epoch)
        epoch = self._get_epoch(number if self.shuffle else 0)
        return Location(number, int(epoch.bucket[step]), int(epoch.rank[step]))

    def run_length(self, i: int) -> int:
        """Return the number of consecutive batches of the same bucket, starting with batch i.

        Only batches of the same epoch are counted.
        """
        number, step = divmod(i, self.batches_per_epoch)
        return int(self._get_epoch(number if self.shuffle else 0).run[step])

    def stack(self, first: "Location", count: int) -> dict[str, np.ndarray]:
        """Return consecutive batches of one bucket, stacked along a new first axis.

        All batches are of one epoch. If this bucket has fewer than `count` remaining batches in the
        epoch, batches of padding rows are appended. The column `index` is left out.

        Args:
          first: Location of the first batch: its epoch, its bucket, and its rank in this bucket.
          count: Number of batches.
        """
        epoch = self._get_epoch(first.epoch if self.shuffle else 0)
        of_bucket = epoch.place[epoch.bucket == first.bucket]
        chosen = epoch.rows[first.bucket][of_bucket[first.rank : first.rank + count]]
        chosen = self._take_local(chosen)
        index = np.full((count, chosen.shape[1]), PADDING_ROW, np.int32)
        index[: len(chosen)] = chosen
        columns = self.table.take(index.reshape(-1), self.buckets[first.bucket])
        stacked = {name: x.reshape(*index.shape, *x.shape[1:]) for name, x in columns.items()}
        return {**stacked, "weight": (index != PADDING_ROW).astype(np.float32)}

    # Without this, `for batch in batches` would call __getitem__ with 0, 1, 2, ... forever.
    __iter__ = None

    def _make_epoch(self, number: int) -> "Epoch":
        """Divide the rows of every bucket into batches, and choose the order of the batches."""
        # NumPy guarantees that raw bits, unlike its permutations, are the same in all versions.
        bits = np.random.Philox(np.random.SeedSequence((self.seed, number))).random_raw
        batches = []
        for rows, size, array_size in zip(
            self._bucket_rows, self.batch_sizes, self.array_sizes, strict=True
        ):
            if self.shuffle:
                rows = rows[np.argsort(bits(len(rows)), kind="stable")]
            filled = np.full((-(-len(rows) // size), size), PADDING_ROW, np.int32)
            filled.reshape(-1)[: len(rows)] = rows
            more = [(0, 0), (0, array_size - size)]
            batches.append(np.pad(filled, more, constant_values=PADDING_ROW))
        order = np.arange(self.batches_per_epoch)
        if self.shuffle:
            order = np.argsort(bits(self.batches_per_epoch), kind="stable")
        bucket = self._bucket_of_batch[order]
        rank = np.empty_like(order)
        for k, count in enumerate(self.bucket_counts):
            rank[bucket == k] = np.arange(count)
        ends = np.append(np.flatnonzero(np.diff(bucket)), len(bucket) - 1)  # last step of each run
        steps = np.arange(len(bucket))
        run = ends[np.searchsorted(ends, steps)] - steps + 1
        place = order - np.cumsum([0, *self.bucket_counts])[bucket]
        return Epoch(batches, place, bucket, rank, run)

    def _take_local(self, rows: Int32[np.ndarray, "*batches B"]) -> Int32[np.ndarray, "*batches b"]:
        """Return the part of the row indices of each batch that belongs to this process."""
        return np.split(rows, self._process_count, axis=-1)[self._process_index]


class Location(NamedTuple):
    """Place of a batch in the sequence of batches.

    Attributes:
      epoch: Index of the epoch.
      bucket: Index of the bucket.
      rank: Index of the batch among the batches of this bucket in this epoch.
    """

    epoch: int
    bucket: int
    rank: int


class Epoch(NamedTuple):
    """Batches of one epoch.

    Attributes:
      rows: One array for each bucket, shape (batches of the bucket, batch size). `rows[b][p]` has
        the table's row indices of one batch of bucket b.
      bucket: For each step, the index b of its bucket.
      place: For each step, the index p of its batch: the step uses `rows[b][p]`. Batches are used
        in a random order if they are shuffled.
      rank: For each step, the number of earlier steps of this epoch with the same bucket.
      run: For each step, the number of consecutive steps with the same bucket that begin with it.
    """

    rows: list[Int32[np.ndarray, "_ _"]]
    place: Int[np.ndarray, " batches"]
    bucket: Int[np.ndarray, " batches"]
    rank: Int[np.ndarray, " batches"]
    run: Int[np.ndarray, " batches"]


def round_length(length: int, longest: int | None = None) -> int:
    """Round a length up to a multiple of 8. If the result exceeds `longest`, return `longest`.

    Fewer lengths mean fewer array shapes, and therefore fewer compilations.
    """
    rounded = -(-length // 8) * 8
    return rounded if longest is None else min(rounded, longest)


def choose_buckets(
    lengths: Sequence[int] | np.ndarray, *, count: int, longest: int
) -> tuple[int, ...]:
    """Choose the bucket lengths that minimize the padding of rows with these lengths.

    The last bucket is `longest`. All other buckets are multiples of 8. The cost of a bucket is its
    length times its number of rows. Dynamic programming finds the optimum: the best k buckets up to
    a given length follow from the best k - 1 buckets up to each shorter length.

    Args:
      lengths: Length of every row. A row longer than `longest` is treated as a row of length
        `longest`.
      count: Maximum number of buckets. Fewer are returned if more would not reduce the padding.
      longest: Length of the last bucket.
    """
    _check(count >= 1, "count must be at least 1", count)
    _check(longest >= 1, "longest must be at least 1", longest)
    clipped = np.minimum(np.asarray(lengths, np.int64), longest)
    # A bucket between two lengths would cost more than a bucket of the lower one, so that only the
    # lengths of rows are tried: there are few of them if texts are long.
    rounded = np.maximum(-(-clipped // 8) * 8, 8)
    bounds = np.union1d(np.minimum(rounded, longest), longest)
    below = np.searchsorted(np.sort(clipped), bounds, side="right")  # rows up to each bound
    # added[i, j]: the cost of a bucket for the lengths above bound i and up to bound j.
    added = np.where(
        np.tri(len(bounds), k=-1, dtype=bool).T, bounds * (below - below[:, None]), np.inf
    )
    cost, chosen = bounds * below.astype(float), [(int(bound),) for bound in bounds]
    best = chosen[-1]
    lowest = cost[-1]
    for _ in range(min(count, len(bounds)) - 1):
        total = cost[:, None] + added
        before = total.argmin(axis=0)
        cost = total.min(axis=0)
        chosen = [(*chosen[i], int(bound)) for i, bound in zip(before, bounds, strict=True)]
        if cost[-1] < lowest:
            lowest, best = cost[-1], chosen[-1]
    return best


def _check(condition: bool, requirement: str, got: Any) -> None:
    """Raise `ValueError` unless the condition is True.

    The message states the requirement and the value `got` that violates it.
    """
    if not condition:
        raise ValueError(f"{requirement}; got {got}.")
