"""Bytes that the devices of a sharded sequence send, and tiles that they compute."""

import pytest

from experiments.bench import tpu_permutes
from experiments.bench.cases import make_sequence_mesh
from experiments.bench.sequence_traffic import (
    HEADS,
    LENGTHS,
    WIDTH,
    count_sent_bytes,
    count_steps,
    count_tiles,
    make_calls,
)
from tests.attention.cases import needs_kernels

DEVICES = 8


@pytest.fixture(scope="module")
def mesh():
    return make_sequence_mesh()


@pytest.mark.usefixtures("eight_devices")
def test_a_ring_sends_the_bytes_of_the_documentation(mesh):
    """Keys and values travel seven times forward, queries and cotangents seven times backward.

    The gradients of the queries, which are float32, travel nine times.
    """
    length = LENGTHS[0]
    call = make_calls(length, DEVICES)["all keys"]
    rows = length // DEVICES * HEADS  # rows of keys of a device, and also of its queries
    forward = 7 * rows * 2 * (WIDTH + WIDTH)
    backward = 7 * rows * (2 * (WIDTH + WIDTH) + 2 * 4) + 9 * rows * 4 * WIDTH
    assert count_sent_bytes(call, length, mesh, backward=False) == forward
    assert count_sent_bytes(call, length, mesh, backward=True) == forward + backward


@pytest.mark.usefixtures("eight_devices")
def test_the_backward_pass_sends_keys_if_they_are_smaller_than_queries(mesh):
    """Keys and values travel seven times in each pass, and their gradients nine times."""
    length = LENGTHS[0]
    call = make_calls(length, DEVICES)["all keys, 2 key heads"]
    numbers = length // DEVICES * 2 * (WIDTH + WIDTH)  # keys and values of a device
    forward, gradients = 7 * 2 * numbers, 9 * 4 * numbers
    assert count_sent_bytes(call, length, mesh, backward=False) == forward
    assert count_sent_bytes(call, length, mesh, backward=True) == 2 * forward + gradients


@needs_kernels
@pytest.mark.usefixtures("eight_devices")
@pytest.mark.parametrize("name", ["all heads local", "all heads forget"])
def test_heads_that_look_near_send_the_same_bytes_at_every_length(name, mesh):
    short, long = (
        count_sent_bytes(make_calls(length, DEVICES)[name], length, mesh, backward=True)
        for length in LENGTHS
    )
    assert 0 < short == long


@pytest.mark.usefixtures("eight_devices")
@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("window of one shard before the query", 2),
        ("window of one shard on both sides", 3),
        ("all keys", DEVICES),
    ],
)
def test_a_window_of_one_shard_needs_two_or_three_steps(name, steps, mesh):
    assert count_steps(make_calls(LENGTHS[0], DEVICES)[name], LENGTHS[0], mesh) == steps


@needs_kernels
@pytest.mark.usefixtures("eight_devices")
def test_devices_compute_equally_many_tiles_of_a_causal_call(mesh):
    tiles = count_tiles(make_calls(LENGTHS[0], DEVICES)["causal"], LENGTHS[0], mesh)
    assert max(tiles) <= 1.1 * sum(tiles) / DEVICES
    rows = LENGTHS[0] // 128
    assert sum(tiles) == rows * (rows + 1) // 2


PROGRAM = """HloModule ring, is_scheduled=true

%body (p: f32[2]) -> f32[2] {
  %kernel.1 = f32[2] custom-call(%p), custom_call_target="tpu_custom_call"
}

ENTRY %main (a: f32[2]) -> f32[2] {
  %start.1 = (f32[2], f32[2]) collective-permute-start(%a), channel_id=1
  %start.2 = (f32[2], f32[2]) collective-permute-start(%a), channel_id=2
  %done.2 = f32[2] collective-permute-done(%start.2)
  %loop = f32[2] while(%a), condition=%always, body=%body
  %done.1 = f32[2] collective-permute-done(%start.1)
  %now = f32[2] collective-permute(%done.1), channel_id=3
  ROOT %kernel.2 = f32[2] custom-call(%now), custom_call_target="tpu_custom_call"
}
"""


def test_a_permute_that_encloses_a_loop_with_a_kernel_is_counted():
    counted = tpu_permutes.count_permutes(PROGRAM)
    assert counted == tpu_permutes.Permutes(synchronous=1, asynchronous=2, enclosing=1)
