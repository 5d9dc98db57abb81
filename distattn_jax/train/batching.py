"""Divide a table of examples into batches, and copy the batches to the devices of a mesh."""

import concurrent.futures
import contextlib
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from distattn_jax import sharding
from distattn_jax.data import PADDING_ROW, Batches, Location, Nested, Table, choose_buckets
from distattn_jax.train.task import Task

Batch = dict[str, Any]  # of arrays
STACK_BATCHES = 100  # largest number of batches in a stack
SMALL_STACK = 10  # batches in a stack of a bucket that has few batches
STACK_BYTES = 2**24  # largest size of a stack of several batches, over all devices
THREADS = 2  # threads that prepare stacks


def make_batches(
    task: Task, table: Any, *, shuffle: bool, devices: int = 1, token_devices: int = 1
) -> Batches:
    """Return the batches of a table, bucketed by length.

    If there are several processes, each process makes only its own rows of every batch.

    Args:
      task: Task, with the config of the run.
      table: Examples.
      shuffle: True for a new random order in every epoch.
      devices: Number of devices that share a batch. If the size of a batch is set in tokens,
        padding rows are added to each batch, so that the devices can share the rows equally. The
        choice of examples therefore does not depend on the number of devices.
      token_devices: Number of devices that share the tokens of a text. The length of each bucket is
        rounded up to a multiple of this number.

    Raises:
      ValueError: Texts are truncated to a length that is not a multiple of `token_devices`.
    """
    config = task.config.data
    lengths = table.lengths(task.length_columns)
    longest = int(min(lengths.max(), task.max_length or lengths.max()))
    if longest < lengths.max() and longest % token_devices:
        raise ValueError(
            f"--data.longest ({longest}) must be a multiple of the devices that share the tokens "
            f"of a text ({token_devices}, --mesh.sequence), because longer texts are truncated."
        )
    buckets = choose_buckets(lengths, count=config.buckets, longest=longest)
    rounded = {-(-length // token_devices) * token_devices for length in buckets}
    buckets = tuple(sorted(rounded))
    return Batches(
        table,
        batch_size=tuple(config.count_rows(length) for length in buckets),
        buckets=buckets,
        length_columns=task.length_columns,
        seed=config.seed,
        shuffle=shuffle,
        row_multiple=devices * task.config.optimizer.accumulate if config.batch_tokens else 1,
        process_index=jax.process_index(),
        process_count=jax.process_count(),
    )


def stack_size(batches: Batches, bucket: int) -> int:
    """Return the number of batches that are stacked in one array, for a length bucket.

    The number is one of two constants, or lower if a stack would need too much memory. Tables of
    different sizes therefore mostly share compiled programs.
    """
    rows = batches.table.take(np.full(1, PADDING_ROW), batches.buckets[bucket])
    batch_bytes = batches.array_sizes[bucket] * sum(column.nbytes for column in rows.values())
    size = STACK_BATCHES if batches.bucket_counts[bucket] > SMALL_STACK else SMALL_STACK
    return max(min(size, STACK_BYTES // batch_bytes), 1)


def empty_stack(task: Task, batches: Batches, bucket: int, mesh: Mesh) -> "Stacked":
    """Return a stack of batches that contain only padding, to compile a program with its shapes.

    The batches have the length `batches.buckets[bucket]`.
    """
    after_last = Location(epoch=0, bucket=bucket, rank=batches.bucket_counts[bucket])
    stack = batches.stack(after_last, stack_size(batches, bucket))
    placed = sharding.place_batch(stack, mesh, task.layout, leading=1)
    return Stacked(placed, np.int32(0), np.int32(0))


def describe_batches(task: Task, batches: Batches) -> str:
    """Return a sentence about the lengths, the padding and the truncation of the batches."""
    unit = task.length_unit
    lengths = ", ".join(map(str, batches.buckets))
    sizes = batches.batch_sizes if task.config.data.batch_tokens else batches.batch_sizes[:1]
    text = f"batches of {', '.join(map(str, sizes))} examples padded to {lengths} {unit}"
    text += f" ({batches.padding_share:.0%} of these are padding)"
    columns = batches.table.columns if isinstance(batches.table, Table) else {}
    for column in map(columns.get, task.length_columns):
        if isinstance(column, Nested):
            text += f", each padded to {column.width} tokens"
            text += f" ({column.padding_share:.0%} of these are padding)"
    if batches.truncated:
        text += f"; {batches.truncated} of {len(batches.table)} examples are truncated"
    return text


class Stacked(NamedTuple):
    """Stack of batches of the same padded length, on the devices, and the range of batches to use.

    Attributes:
      stack: Columns of several batches. The leading axis of each array is the batch.
      begin: Index of the first batch to use.
      end: Index of the last batch to use, plus 1.
    """

    stack: Batch
    begin: np.int32
    end: np.int32


class BatchLoader(contextlib.AbstractContextManager):
    """Load consecutive batches onto the devices.

    Batches of the same padded length are stacked, so that one transfer and one program serve
    several steps. Threads prepare the next stack of each length in advance.

    Args:
      batches: Batches of a table.
      mesh: Devices.
      layout: Partition spec of a batch.
      start: Index of the first batch.
      stop: Index of the last batch plus 1.

    Attributes:
      position: Index of the next batch.
    """

    def __init__(
        self, batches: Batches, mesh: Mesh, layout: sharding.Layout, *, start: int = 0, stop: int
    ):
        self._batches, self._mesh, self._layout = batches, mesh, layout
        self.position, self._stop = start, stop
        self._sizes = [stack_size(batches, bucket) for bucket in range(len(batches.buckets))]
        self._threads = concurrent.futures.ThreadPoolExecutor(THREADS)
        self._stacks: dict[int, dict[Location, concurrent.futures.Future[Batch]]] = {}  # by bucket

    def take(self, limit: int) -> Stacked:
        """Return the next 1 to `limit` batches, all of the same padded length."""
        location = self._batches.locate(self.position)
        size = self._sizes[location.bucket]
        begin = location.rank % size
        run = self._batches.run_length(self.position)
        count = min(limit, size - begin, run, self._stop - self.position)
        self.position += count
        stack = self._get_stack(location._replace(rank=location.rank - begin))
        return Stacked(stack, np.int32(begin), np.int32(begin + count))

    def _get_stack(self, first: Location) -> Batch:
        """Return the stack that begins with the batch at `first`.

        Also start to prepare the next stack of the same length bucket in a thread.
        """
        ready = self._stacks.get(first.bucket, {})
        self._stacks[first.bucket] = stacks = {
            location: ready.get(location) or self._threads.submit(self._place_stack, location)
            for location in (first, self._following_stack(first))
            if location.epoch * self._batches.batches_per_epoch < self._stop
        }
        return stacks[first].result()

    def _following_stack(self, first: Location) -> Location:
        """Return the location of the first batch of the next stack of the same length bucket.

        `first` is the location of the first batch of the current stack.
        """
        rank = first.rank + self._sizes[first.bucket]
        if rank < self._batches.bucket_counts[first.bucket]:
            return first._replace(rank=rank)
        return first._replace(epoch=first.epoch + 1, rank=0)

    def _place_stack(self, first: Location) -> Batch:
        """Make a stack and copy it to the devices."""
        stack = self._batches.stack(first, self._sizes[first.bucket])
        return sharding.place_batch(stack, self._mesh, self._layout, leading=1)

    def close(self) -> None:
        """Stop the threads."""
        self._threads.shutdown(cancel_futures=True)

    def __exit__(self, *_: Any) -> None:
        self.close()
