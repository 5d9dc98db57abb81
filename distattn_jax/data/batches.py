"""Batches of rows of similar length. No row is dropped.

Rows are grouped by length into buckets. In each epoch, the rows of every bucket are divided into
batches of equal size, and the last batch of a bucket is filled with padding rows of weight 0.
Therefore all epochs have the same number of batches. Batch i depends only on i and the seed, so
that training can resume at any step. If there are several processes, each makes a part of the rows
of every batch. Together the parts equal the batch that a single process would make.
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
      batch_size: Number of rows of a batch, summed over all processes.
      buckets: Sequence lengths that batches may have, in ascending order. A row belongs to the
        first bucket that is long enough. Rows longer than the last bucket are truncated to its
        length.
      length_columns: Name of the column whose sequences define the lengths of the rows. If several
        columns are named, the longest of their sequences defines the length of a row.
      seed: Seed of the order of rows and batches. Ignored unless `shuffle` is True.
      shuffle: True draws a new order in every epoch. False keeps the order of the table within each
        bucket, shortest bucket first.
      process_index: Index of the process whose rows this object produces.
      process_count: Number of processes among which the rows of each batch are divided.

    Attributes:
      batches_per_epoch: Number of batches of an epoch, in which every row occurs once.
      bucket_counts: Number of batches of each bucket in an epoch.
      truncated: Number of rows that have a sequence longer than the bucket of the row.
      padding_share: Fraction of padding among all positions of an epoch.
    """

    def __init__(
        self,
        table: TableLike,
        *,
        batch_size: int,
        buckets: tuple[int, ...],
        length_columns: str | tuple[str, ...],
        seed: int = 0,
        shuffle: bool,
        process_index: int = 0,
        process_count: int = 1,
    ):
        _check(batch_size >= 1, "batch_size must be at least 1", batch_size)
        _check(seed >= 0, "seed must be at least 0", seed)
        _check(
            0 <= process_index < process_count,
            f"process_index must be in 0 .. process_count - 1 = {process_count - 1}",
            process_index,
        )
        _check(
            batch_size % process_count == 0,
            f"batch_size must be a multiple of process_count = {process_count}",
            batch_size,
        )
        _check(
            bool(buckets) and buckets[0] >= 1 and list(buckets) == sorted(set(buckets)),
            "buckets must be positive lengths in ascending order",
            buckets,
        )
        _check(len(table) > 0, "table must have rows", len(table))
        self.table, self.batch_size, self.buckets = table, batch_size, buckets
        self.seed, self.shuffle = seed, shuffle
        local_size = batch_size // process_count
        self._local_rows = slice(process_index * local_size, (process_index + 1) * local_size)
        names = (length_columns,) if isinstance(length_columns, str) else length_columns
        lengths = table.lengths(names)
        bucket = np.searchsorted(buckets, np.minimum(lengths, buckets[-1]))
        self._bucket_rows = [
            np.flatnonzero(bucket == k).astype(np.int32) for k in range(len(buckets))
        ]
        counts = [-(-len(rows) // batch_size) for rows in self._bucket_rows]
        self.batches_per_epoch = sum(counts)
        self.bucket_counts = tuple(counts)
        self._bucket_of_batch = np.repeat(np.arange(len(buckets)), counts)
        self._get_epoch = functools.lru_cache(maxsize=2)(self._make_epoch)
        longest = table.lengths(table.sequence_columns)
        self.truncated = int((longest > np.take(buckets, bucket)).sum())
        positions = batch_size * int(np.take(buckets, self._bucket_of_batch).sum())
        self.padding_share = 1 - int(np.minimum(lengths, buckets[-1]).sum()) / positions

    def __getitem__(self, i: int) -> dict[str, np.ndarray]:
        if i < 0:
            raise IndexError(f"i must be at least 0; got {i}.")
        number, step = divmod(int(i), self.batches_per_epoch)
        epoch = self._get_epoch(number if self.shuffle else 0)
        index = epoch.rows[epoch.order[step], self._local_rows]
        columns = self.table.take(index, self.buckets[epoch.bucket[step]])
        return {**columns, "weight": (index != PADDING_ROW).astype(np.float32), "index": index}

    def locate(self, i: int) -> "Location":
        """Return the epoch and the bucket of batch i, and its rank within both."""
        number, step = divmod(i, self.batches_per_epoch)
        epoch = self._get_epoch(number if self.shuffle else 0)
        return Location(number, int(epoch.bucket[step]), int(epoch.rank[step]))

    def run_length(self, i: int) -> int:
        """Return how many consecutive batches, from batch i on, have the bucket of batch i.

        A run ends with the epoch at the latest.
        """
        number, step = divmod(i, self.batches_per_epoch)
        return int(self._get_epoch(number if self.shuffle else 0).run[step])

    def stack(self, first: "Location", count: int) -> dict[str, np.ndarray]:
        """Return consecutive batches of one bucket in one epoch, stacked.

        Every array has a leading axis of size `count`. If fewer batches follow in the epoch, the
        last entries are batches of padding rows. The column `index` is left out.

        Args:
          first: Location of the first batch.
          count: Number of batches.
        """
        epoch = self._get_epoch(first.epoch if self.shuffle else 0)
        of_bucket = epoch.order[epoch.bucket == first.bucket]
        chosen = epoch.rows[of_bucket[first.rank : first.rank + count], self._local_rows]
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
        for rows in self._bucket_rows:
            if self.shuffle:
                rows = rows[np.argsort(bits(len(rows)), kind="stable")]
            padding = np.full(-len(rows) % self.batch_size, PADDING_ROW, np.int32)
            batches.append(np.concatenate([rows, padding]).reshape(-1, self.batch_size))
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
        return Epoch(np.concatenate(batches), order, bucket, rank, run)


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
      rows: Row indices of each batch, sorted by bucket.
      order: Index in `rows` of the batch of each step.
      bucket: Index of the bucket of each step.
      rank: Index of each step among the steps of its bucket.
      run: Number of consecutive steps, from each step on, that have the bucket of this step.
    """

    rows: Int32[np.ndarray, "batches B"]
    order: Int[np.ndarray, " batches"]
    bucket: Int[np.ndarray, " batches"]
    rank: Int[np.ndarray, " batches"]
    run: Int[np.ndarray, " batches"]


def round_length(length: int, longest: int | None = None) -> int:
    """Round a length up to a multiple of 8, but to at most `longest`.

    Few different lengths give few different shapes, and so few compilations.
    """
    rounded = -(-length // 8) * 8
    return rounded if longest is None else min(rounded, longest)


def choose_buckets(
    lengths: Sequence[int] | np.ndarray, *, count: int, longest: int
) -> tuple[int, ...]:
    """Choose the bucket lengths that minimize the padding of rows with these lengths.

    The last bucket is `longest`. All other buckets are multiples of 8. The cost of a bucket is its
    length times its number of rows. The best k buckets that end at a given length are computed from
    the best k - 1 buckets by dynamic programming, so that the result is optimal.

    Args:
      lengths: Length of every row. A row longer than `longest` is treated as a row of length
        `longest`.
      count: Maximum number of buckets. Fewer are returned if more would not reduce the padding.
      longest: Length of the last bucket.
    """
    _check(count >= 1, "count must be at least 1", count)
    _check(longest >= 1, "longest must be at least 1", longest)
    bounds = np.array([*range(8, longest, 8), longest])
    clipped = np.minimum(np.asarray(lengths, np.int64), longest)
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
    """Raise `ValueError` unless the condition is True. The message names requirement and value."""
    if not condition:
        raise ValueError(f"{requirement}; got {got}.")
