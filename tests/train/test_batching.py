"""Batches on the devices: in order, from any position, in stacks of one padded length."""

from unittest import mock

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distattn_jax import sharding
from distattn_jax.tasks import TextClassificationData
from distattn_jax.train import batching
from distattn_jax.train.batching import BatchLoader, make_batches, stack_size
from tests.train import tiny

LENGTHS = [3, 9, 4, 5, 12, 1, 1, 8, 7, 2, 15, 16, 3, 8, 9, 4, 4, 4]
TASK = tiny.make_task(tiny.make_config(data=TextClassificationData(batch_size=2, buckets=2)))
BATCHES = make_batches(TASK, tiny.make_table(LENGTHS), shuffle=True)


def load(limits, mesh, **bounds):
    """Yield the loaded batches one by one, with these limits in turn."""
    with BatchLoader(BATCHES, mesh, TASK.layout, **bounds) as loader:
        position = loader.position
        while position < bounds["stop"]:
            limit = limits[position % len(limits)]
            stack, begin, end = loader.take(limit)
            assert 1 <= end - begin <= limit
            assert loader.position == position + end - begin
            position = loader.position
            for i in range(begin, end):
                yield {name: np.asarray(column[i]) for name, column in stack.items()}


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(0, 25), st.integers(1, 40))
def test_batches_come_in_order_from_any_position(limits, start, count):
    with mock.patch.multiple(batching, SMALL_STACK=2, STACK_BATCHES=3):
        loaded = list(load(limits, sharding.make_mesh(1, 1), start=start, stop=start + count))
    assert len(loaded) == count
    for i, batch in enumerate(loaded, start=start):
        expected = BATCHES[i]
        del expected["index"]
        np.testing.assert_equal(batch, expected)


def test_a_stack_is_limited_in_batches_and_in_bytes(monkeypatch):
    assert stack_size(BATCHES, 0) == 10  # a bucket of few batches
    monkeypatch.setattr(batching, "SMALL_STACK", 3)
    assert stack_size(BATCHES, 0) == 100
    one = {name: column for name, column in BATCHES[0].items() if name != "index"}
    monkeypatch.setattr(batching, "STACK_BYTES", 2 * sum(x.nbytes for x in one.values()))
    assert stack_size(BATCHES, BATCHES.locate(0).bucket) == 2
    monkeypatch.setattr(batching, "STACK_BYTES", 1)
    assert stack_size(BATCHES, 0) == 1


def test_devices_share_the_rows_of_each_batch(eight_devices):
    mesh = sharding.make_mesh(2, 1)
    with BatchLoader(BATCHES, mesh, TASK.layout, stop=1) as loader:
        stack, _, _ = loader.take(1)
    assert {column.sharding.spec for column in stack.values()} == {jax.P(None, "data")}


def test_an_error_while_reading_reaches_the_training_loop():
    class BrokenTable:
        def take(self, indices, length):
            raise OSError("cannot read")

    broken = make_batches(TASK, tiny.make_table(LENGTHS), shuffle=True)
    with BatchLoader(broken, sharding.make_mesh(1, 1), TASK.layout, stop=1) as loader:
        broken.table = BrokenTable()
        with pytest.raises(OSError, match="cannot read"):
            loader.take(1)
