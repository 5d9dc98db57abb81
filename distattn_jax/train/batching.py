"""Batches of a task's tables, and the placement of batches on the devices of a mesh."""

import collections
import concurrent.futures
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from distattn_jax import sharding
from distattn_jax.data import PADDING_ROW, Batches, Nested, Table, choose_buckets
from distattn_jax.train.task import Task

Batch = dict[str, Any]  # of arrays
PREFETCH = 2  # batches placed on the devices ahead of time
HOST_COLUMN = "index"  # the row numbers of a batch, which no step reads


def make_batches(task: Task, table: Any, *, shuffle: bool) -> Batches:
    """Return the batches of a table, bucketed by length.

    If there are several processes, each process makes only its own rows of every batch.
    """
    config = task.config.data
    lengths = table.lengths(task.length_columns)
    longest = int(min(lengths.max(), task.max_length or lengths.max()))
    return Batches(
        table,
        batch_size=config.batch_size,
        buckets=choose_buckets(lengths, count=config.buckets, longest=longest),
        length_columns=task.length_columns,
        seed=config.seed,
        shuffle=shuffle,
        process_index=jax.process_index(),
        process_count=jax.process_count(),
    )


def empty_batch(task: Task, batches: Batches, bucket: int, mesh: Mesh) -> Batch:
    """Return a batch with the padded length `bucket`, for compiling a step. All weights are 0."""
    rows = batches.batch_size // jax.process_count()
    columns = batches.table.take(np.full(rows, PADDING_ROW), bucket)
    columns["weight"] = np.zeros(rows, np.float32)
    return sharding.place_batch(columns, mesh, task.layout)


def describe_batches(task: Task, batches: Batches) -> str:
    """Return a sentence about the lengths, the padding and the truncation of the batches."""
    unit = task.length_unit
    lengths = ", ".join(map(str, batches.buckets))
    text = f"batches of {batches.batch_size} examples padded to {lengths} {unit}"
    text += f" ({batches.padding_share:.0%} of these are padding)"
    columns = batches.table.columns if isinstance(batches.table, Table) else {}
    for column in map(columns.get, task.length_columns):
        if isinstance(column, Nested):
            text += f", each padded to {column.width} tokens"
            text += f" ({column.padding_share:.0%} of these are padding)"
    if batches.truncated:
        text += f"; {batches.truncated} of {len(batches.table)} examples are truncated"
    return text


class BatchPrefetcher:
    """Iterator over batches. If there are several devices, a thread places batches in advance.

    With a single device, the jitted step copies each batch to the device, which is faster.

    Args:
      batches: Iterator over batches.
      mesh: Devices.
      layout: Partition spec of a batch.
    """

    def __init__(self, batches: Iterator[Batch], mesh: Mesh, layout: sharding.Layout):
        self._batches, self._mesh, self._layout = batches, mesh, layout
        self._pending: collections.deque[Any] = collections.deque()
        if mesh.size > 1:
            self._thread = concurrent.futures.ThreadPoolExecutor(1)
            self._pending.extend(self._thread.submit(self._place_next) for _ in range(PREFETCH))

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        placed = self._pending.popleft().result() if self._pending else self._place_next()
        if placed is None:
            raise StopIteration
        if self._mesh.size > 1:
            self._pending.append(self._thread.submit(self._place_next))
        return placed

    def _place_next(self) -> Batch | None:
        """Get the next batch from the iterator, and place it on the devices if there are several.

        The result is None after the last batch.
        """
        batch = next(self._batches, None)
        if batch is None:
            return None
        rows = {name: column for name, column in batch.items() if name != HOST_COLUMN}
        return sharding.place_batch(rows, self._mesh, self._layout)
