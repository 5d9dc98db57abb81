"""Fused kernels that read a function of the relative position from a table."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import pytest

from distattn_jax.attention import DistanceAware, DistanceBias, attention, early_add
from tests import oracles
from tests.attention.cases import Sizes, inputs, needs_kernels
from tests.attention.test_fused import (
    RESTRICTIONS,
    assert_close,
    assert_zero_where_masked,
    compare_with_reference,
    inputs_with_large_padding,
    kernels,  # noqa: F401  interprets the kernels on a machine without a GPU
    run_oracle,
    tile_sizes,  # noqa: F401
)

pytestmark = [needs_kernels, pytest.mark.usefixtures("kernels")]


def test_a_bias_under_every_restriction():
    sizes = Sizes(batch=3, queries=140, keys=150, heads=1, width=16, value_width=16)
    arrays = inputs_with_large_padding(sizes, "float16")
    parameters = jnp.asarray([1.3]), jnp.asarray([0.2])
    fused = compare_with_reference(
        arrays,
        DistanceBias(parameters, "kerple_log"),
        logsumexp=True,
        **RESTRICTIONS,
    )
    oracle = oracles.distance_bias(oracles.kerple_log, *parameters)
    expected = run_oracle(oracle, arrays, **RESTRICTIONS)
    assert_close(fused, {"values": expected["values"]}, "float16")
    assert_zero_where_masked(fused, sizes)


def hump(x, shape):
    """Bell curve with a center and a width, plus a constant."""
    center, width = shape["bell"]
    return jnp.exp(-(((x - center) / width) ** 2)) + shape["constant"]


BELL = jnp.asarray([[0.5, 2.0], [1.5, 0.7]])  # center and width of each head
HUMP = DistanceAware(
    jnp.asarray([0.02, -0.03]),
    {"bell": BELL, "constant": jnp.asarray([0.1])},  # The heads share the constant.
    hump,
)


@pytest.mark.usefixtures("tile_sizes")
@pytest.mark.parametrize("tile_sizes", ["long"], indirect=True)
def test_any_mapping_with_dropout_and_grouped_queries():
    sizes = Sizes(batch=1, queries=140, keys=70, heads=2, width=16, value_width=16, key_heads=1)
    compare_with_reference(
        inputs(sizes, "float16"),
        HUMP,
        dropout_rate=0.25,
        dropout_key=jax.random.key(3),
        query_offset=-20,
    )


def bell(x, shape):
    return shape * jnp.exp(-(x**2))


def test_a_head_skips_the_tiles_where_its_mapping_is_small():
    """The first head skips tiles. The second head falls too slowly."""
    sizes = Sizes(batch=1, queries=70, keys=256, heads=2, width=16, value_width=16)
    weight, height = jnp.asarray([0.1, 0.002]), jnp.asarray([1.2, 0.7])
    variant = DistanceAware(weight, height, bell, tolerance=2.0**-10)
    # Under dropout, the skipped tiles are visited where the values are multiplied.
    dropout = {"dropout_rate": 0.25, "dropout_key": jax.random.key(3)}
    compare_with_reference(inputs(sizes, "float16"), variant, query_offset=-60, **dropout)


def slanted(distance, parameters):
    """Bias that falls faster for keys before the query than for keys after it."""
    return parameters * jnp.where(distance > 0, -2 * jnp.sqrt(distance), distance / 4)


def test_keys_before_and_after_the_query_have_different_biases():
    sizes = Sizes(batch=1, queries=21, keys=80, heads=1, width=16, value_width=16)
    variant = DistanceBias(jnp.asarray([0.7]), slanted)
    compare_with_reference(inputs(sizes, "float16"), variant, query_offset=30, received=True)


def power(distance, parameters):
    """Bias without parameters that overflows in float32 from distance 4 on."""
    return 10.0 ** (10 * distance)


FORWARD = {
    "f is added": (dataclasses.replace(HUMP, adjust=early_add), (20, 30)),
    "f overflows at distances of the padding": (DistanceBias((), power), (3, 1)),
}


@pytest.mark.parametrize(("variant", "lengths"), FORWARD.values(), ids=FORWARD)
def test_values_equal_those_of_the_reference(variant, lengths):
    arrays = inputs(Sizes(1, *lengths, heads=2, width=16, value_width=16), "float16")
    fused, exact = (
        jax.jit(functools.partial(attention, implementation=name))(*arrays, variant).values
        for name in ("pallas", "reference")
    )
    assert_close({"values": fused}, {"values": exact}, "float16")
