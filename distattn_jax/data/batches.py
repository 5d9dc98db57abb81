"""Batches of rows of like length: batch i depends on i alone, and no row is dropped.

An epoch deals the rows of every bucket into batches of one size, the last one of a bucket filled up
with rows of weight 0. So all epochs have the same number of batches, training can begin anywhere,
and any number of processes, each making its own rows only, make the same batches.
"""

import collections
import functools
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int, Int32

from distattn_jax.data.table import PADDING_ROW, TableLike

GROUP = 8  # batches that are prepared together


class Batches:
    """The batches of a table, as many as are asked for: `batches[i]`.

    A batch holds the columns of the table (see `Table.rows`), `weight` (B,), 0 for rows that only
    fill up, and `index` (B,), the row of the table, -1 for these. `batches_per_epoch` says how many
    make an epoch, `truncated` how many rows lose their end, `padding_share` what share of positions
    is no text.

    Args:
      table: the rows.
      batch_size: B, rows of a batch over all processes.
      buckets: the lengths that batches may have, rising. A row goes into the first that holds it;
        one that none holds is cut to the last.
      length_columns: the column of sequences, or columns, whose length (the longest) counts.
      seed: of the order, where `shuffle`.
      shuffle: rows and batches in an order of its own every epoch; otherwise short ones first, and
        in the order of the table.
      process_index: which of the processes this is.
      process_count: among how many the rows of a batch are divided.
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
            "buckets must be lengths from 1 on, each longer than the one before",
            buckets,
        )
        _check(len(table) > 0, "table must have rows", len(table))
        self.table, self.batch_size, self.buckets = table, batch_size, buckets
        self.seed, self.shuffle = seed, shuffle
        share = batch_size // process_count
        self._own = slice(process_index * share, (process_index + 1) * share)
        lengths = table.lengths(
            (length_columns,) if isinstance(length_columns, str) else length_columns
        )
        bucket = np.searchsorted(buckets, np.minimum(lengths, buckets[-1]))
        self._members = [np.flatnonzero(bucket == k).astype(np.int32) for k in range(len(buckets))]
        counts = [-(-len(rows) // batch_size) for rows in self._members]
        self.batches_per_epoch = sum(counts)
        self._bucket_of_batch = np.repeat(np.arange(len(buckets)), counts)
        self._epoch = functools.lru_cache(maxsize=2)(self._dealt)
        self.truncated = int(
            (table.lengths(table.sequence_columns) > np.take(buckets, bucket)).sum()
        )
        positions = batch_size * int(np.take(buckets, self._bucket_of_batch).sum())
        self.padding_share = 1 - int(np.minimum(lengths, buckets[-1]).sum()) / positions

    def __getitem__(self, i: int) -> dict[str, np.ndarray]:
        if i < 0:
            raise IndexError(f"i must be at least 0; got {i}.")
        epoch, place = divmod(int(i), self.batches_per_epoch)
        rows, order = self._epoch(epoch if self.shuffle else 0)
        batch = order[place]
        index = rows[batch, self._own]
        columns = self.table.take(index, self.buckets[self._bucket_of_batch[batch]])
        return {**columns, "weight": (index != PADDING_ROW).astype(np.float32), "index": index}

    # Without it Python would try 0, 1, 2, ... and never come to an end.
    __iter__ = None

    def iterate(
        self, steps: int | None = None, *, start: int = 0, threads: int = 2, prefetch: int = 32
    ) -> "BatchIterator":
        """An iterator that prepares batches ahead, in threads.

        Args:
          steps: how many batches; `None`: without end.
          start: the number of the first.
          threads: how many groups of batches are prepared at the same time.
          prefetch: how many batches are prepared ahead.
        """
        _check(start >= 0, "start must be at least 0", start)
        _check(steps is None or steps >= 0, "steps must be None or at least 0", steps)
        stop = sys.maxsize if steps is None else start + steps
        return BatchIterator(self, start, stop, threads=threads, prefetch=prefetch)

    def _dealt(
        self, epoch: int
    ) -> tuple[Int32[np.ndarray, "batches B"], Int[np.ndarray, " batches"]]:
        """The rows of every batch, by bucket, and the order in which the batches come."""
        # Raw bits: NumPy promises these, and not its permutations, to be the same in all versions.
        bits = np.random.Philox(np.random.SeedSequence((self.seed, epoch))).random_raw
        dealt = []
        for members in self._members:
            if self.shuffle:
                members = members[np.argsort(bits(len(members)), kind="stable")]
            filler = np.full(-len(members) % self.batch_size, PADDING_ROW, np.int32)
            dealt.append(np.concatenate([members, filler]).reshape(-1, self.batch_size))
        order = np.arange(self.batches_per_epoch)
        if self.shuffle:
            order = np.argsort(bits(self.batches_per_epoch), kind="stable")
        return np.concatenate(dealt), order


class BatchIterator:
    """Batches one after another; its state is how many it gave, as JSON.

    Grain prepares them in groups, because handing over an element costs it more than a batch costs
    to make.
    """

    def __init__(self, batches: Batches, start: int, stop: int, *, threads: int, prefetch: int):
        import grain  # imports JAX, which the rest of this module does without

        self._batches, self._start, self._stop = batches, start, stop
        self._range = grain.MapDataset.range
        self._options = grain.ReadOptions(
            num_threads=threads, prefetch_buffer_size=max(prefetch // GROUP, 1)
        )
        self.set_state({"next_index": 0})

    def __iter__(self) -> "BatchIterator":
        return self

    def __next__(self) -> dict[str, np.ndarray]:
        if not self._ready:
            self._ready.extend(next(self._groups))
        self._given += 1
        return self._ready.popleft()

    def get_state(self) -> dict[str, int]:
        """How many batches were given."""
        return {"next_index": self._given}

    def set_state(self, state: dict[str, int]) -> None:
        """Goes on after so many."""
        self._given = state["next_index"]
        self._ready: collections.deque[dict[str, np.ndarray]] = collections.deque()
        first = self._start + self._given
        groups = -(-(self._stop - first) // GROUP)
        dataset = self._range(groups).map(functools.partial(self._group, first))
        self._groups = iter(dataset.to_iter_dataset(self._options))

    def _group(self, first: int, group: int) -> list[dict[str, np.ndarray]]:
        begin = first + group * GROUP
        return [self._batches[i] for i in range(begin, min(begin + GROUP, self._stop))]


def choose_buckets(
    lengths: Sequence[int] | np.ndarray, *, count: int, longest: int
) -> tuple[int, ...]:
    """The bounds that pad rows of these lengths least: multiples of 8, and `longest` itself.

    Cost of a bucket = its bound times its rows, so with the rows counted up to every candidate
    bound the best choice of the last k bounds follows from the best of k - 1: the exact optimum.

    Args:
      lengths: of the rows.
      count: at most so many bounds; fewer where more would save nothing.
      longest: the last bound.
    """
    _check(count >= 1, "count must be at least 1", count)
    _check(longest >= 1, "longest must be at least 1", longest)
    bounds = np.array([*range(8, longest, 8), longest])
    clipped = np.minimum(np.asarray(lengths, np.int64), longest)
    below = np.searchsorted(np.sort(clipped), bounds, side="right")  # rows up to every bound
    # added[i, j]: the cost of a bucket from bound i (excluded) to bound j.
    added = np.where(
        np.tri(len(bounds), k=-1, dtype=bool).T, bounds * (below - below[:, None]), np.inf
    )
    cost, chosen = bounds * below.astype(float), [(int(bound),) for bound in bounds]
    best = chosen[-1]
    lowest = cost[-1]
    for _ in range(count - 1):
        total = cost[:, None] + added
        before = total.argmin(axis=0)
        cost = total.min(axis=0)
        chosen = [(*chosen[i], int(bound)) for i, bound in zip(before, bounds, strict=True)]
        if cost[-1] < lowest:
            lowest, best = cost[-1], chosen[-1]
    return best


def _check(condition: bool, wanted: str, got: Any) -> None:
    if not condition:
        raise ValueError(f"{wanted}; got {got}.")
