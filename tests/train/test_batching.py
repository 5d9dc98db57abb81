"""Batches on the devices: in order, from any position, in stacks of one padded length."""

import dataclasses
from unittest import mock

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distattn_jax import sharding
from distattn_jax.tasks import TextClassificationData
from distattn_jax.train import OptimizerConfig, batching, option
from distattn_jax.train.batching import BatchLoader, describe_batches, make_batches, stack_size
from tests.train import tiny

LENGTHS = [3, 9, 4, 5, 12, 1, 1, 8, 7, 2, 15, 16, 3, 8, 9, 4, 4, 4]
TASK = tiny.make_task(tiny.make_config(data=TextClassificationData(batch_size=2, buckets=2)))
BATCHES = make_batches(TASK, tiny.make_table(LENGTHS), shuffle=True)


@dataclasses.dataclass(frozen=True)
class TokenData(TextClassificationData):
    """Options of the batches, with a number of tokens."""

    batch_tokens: int = option(48, "tokens in a batch")


def make_token_batches(*, devices=1, accumulate=1, **data):
    optimizer = OptimizerConfig(accumulate=accumulate)
    task = tiny.make_task(tiny.make_config(data=TokenData(buckets=2, **data), optimizer=optimizer))
    return make_batches(task, tiny.make_table(LENGTHS), shuffle=True, devices=devices)


def load(batches, limits, mesh, **bounds):
    """Yield the loaded batches one by one, with these limits in turn."""
    with BatchLoader(batches, mesh, TASK.layout, **bounds) as loader:
        position = loader.position
        while position < bounds["stop"]:
            limit = limits[position % len(limits)]
            stack, begin, end = loader.take(limit)
            assert 1 <= end - begin <= limit
            assert loader.position == position + end - begin
            position = loader.position
            for i in range(begin, end):
                yield {name: np.asarray(column[i]) for name, column in stack.items()}


@given(
    st.sampled_from([BATCHES, make_token_batches(devices=4)]),
    st.lists(st.integers(1, 9), min_size=1, max_size=5),
    st.integers(0, 25),
    st.integers(1, 40),
)
def test_batches_come_in_order_from_any_position(batches, limits, start, count):
    with mock.patch.multiple(batching, SMALL_STACK=2, STACK_BATCHES=3):
        mesh = sharding.make_mesh(1, 1)
        loaded = list(load(batches, limits, mesh, start=start, stop=start + count))
    assert len(loaded) == count
    for i, batch in enumerate(loaded, start=start):
        expected = batches[i]
        del expected["index"]
        np.testing.assert_equal(batch, expected)


def test_a_stack_is_limited_in_batches_and_in_bytes(monkeypatch):
    assert stack_size(BATCHES, 0) == 10  # a bucket of few batches
    monkeypatch.setattr(batching, "SMALL_STACK", 3)
    assert stack_size(BATCHES, 0) == 100
    for batches in (BATCHES, make_token_batches()):
        for i in range(batches.batches_per_epoch):
            one = sum(x.nbytes for name, x in batches[i].items() if name != "index")
            monkeypatch.setattr(batching, "STACK_BYTES", 3 * one)
            assert stack_size(batches, batches.locate(i).bucket) == 3
    monkeypatch.setattr(batching, "STACK_BYTES", 1)
    assert stack_size(BATCHES, 0) == 1


def test_a_batch_of_tokens_has_fewer_examples_if_they_are_longer():
    plain = make_token_batches(devices=4)
    accumulating = make_token_batches(devices=4, accumulate=3)
    assert plain.buckets == (8, 16)
    assert plain.batch_sizes == accumulating.batch_sizes == (6, 3)
    assert plain.array_sizes == (8, 4)
    assert accumulating.array_sizes == (12, 12)
    one = make_token_batches()
    assert one.array_sizes == (6, 3)
    for i in range(2 * one.batches_per_epoch):
        size = len(one[i]["index"])
        np.testing.assert_equal(plain[i]["index"][:size], one[i]["index"])
    assert make_token_batches(batch_tokens=5).batch_sizes == (1, 1)
    assert make_token_batches(batch_tokens=0, batch_size=7).batch_sizes == (7, 7)
    assert "batches of 6, 3 examples padded to 8, 16 tokens" in describe_batches(
        tiny.make_task(tiny.make_config(data=TokenData())), one
    )


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
