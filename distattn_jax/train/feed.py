"""Batches on the devices before they are asked for."""

import collections
import concurrent.futures
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

Batch = dict[str, jax.Array]
AHEAD = 2  # batches placed before they are asked for
ON_HOST = "index"  # for putting predictions back in order; no step needs it


class Feed:
    """Takes batches from an iterator and places them on the devices, in a thread of its own.

    Args:
      batches: a Grain iterator.
      place: puts a batch on the devices.

    Attributes:
      state: of the iterator after the batch handed out last, whatever was taken ahead since.
    """

    def __init__(self, batches: Any, place: Callable[[dict[str, np.ndarray]], Batch]):
        self._batches, self._place = batches, place
        self.state = batches.get_state()
        self._thread = concurrent.futures.ThreadPoolExecutor(1)
        self._ahead = collections.deque(self._thread.submit(self._take) for _ in range(AHEAD))

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        taken = self._ahead.popleft().result()
        if taken is None:
            self._thread.shutdown(cancel_futures=True)
            raise StopIteration
        self._ahead.append(self._thread.submit(self._take))
        batch, self.state = taken
        return batch

    def _take(self) -> tuple[Batch, Any] | None:
        try:
            batch = dict(next(self._batches))
        except StopIteration:
            return None
        batch.pop(ON_HOST, None)
        return self._place(batch), self._batches.get_state()
