"""Batches for the steps: on a mesh, already on its devices when they are asked for."""

import collections
import concurrent.futures
from collections.abc import Iterator
from typing import Any

from jax.sharding import Mesh

from distattn_jax import sharding

Batch = dict[str, Any]  # of arrays
AHEAD = 2  # batches placed before they are asked for
ON_HOST = "index"  # for putting predictions back in order; no step needs it


class Feed:
    """Hands out the batches of an iterator.

    On several devices a thread of its own places them ahead. A single device needs no placing: the
    jitted step takes the rows there itself, and faster than any thread.

    Args:
      batches: an iterator with `get_state`.
      mesh: the devices.
      layout: how a batch lies on them.

    Attributes:
      state: of the iterator after the batch handed out last, whatever was taken ahead since.
    """

    def __init__(self, batches: Any, mesh: Mesh, layout: sharding.Layout):
        self._batches, self._mesh, self._layout = batches, mesh, layout
        self.state = batches.get_state()
        self._ahead: collections.deque[Any] = collections.deque()
        if mesh.size > 1:
            self._thread = concurrent.futures.ThreadPoolExecutor(1)
            self._ahead.extend(self._thread.submit(self._take) for _ in range(AHEAD))

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        taken = self._ahead.popleft().result() if self._ahead else self._take()
        if taken is None:
            raise StopIteration
        if self._mesh.size > 1:
            self._ahead.append(self._thread.submit(self._take))
        batch, self.state = taken
        return batch

    def _take(self) -> tuple[Batch, Any] | None:
        """The next batch and the state after it; None: there is none."""
        batch = next(self._batches, None)
        if batch is None:
            return None
        rows = {name: column for name, column in batch.items() if name != ON_HOST}
        return sharding.place_batch(rows, self._mesh, self._layout), self._batches.get_state()
