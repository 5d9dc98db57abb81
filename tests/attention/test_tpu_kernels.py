"""Fused kernels for TPUs, run by the Pallas interpreter: values and all gradients."""

import functools

import chex
import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl

from distattn_jax.attention import (
    Attended,
    DistanceAware,
    DotProduct,
    attention,
    devices,
    early_add,
)
from distattn_jax.attention.fused.tpu import distance_tiles, tile_configs
from distattn_jax.attention.fused.tpu.tile_view import expand_diagonals
from tests.attention.cases import Sizes, inputs, needs_kernels
from tests.evaluation import interpreted

pytestmark = needs_kernels
QUICKLY = {"xla_backend_optimization_level": 0}  # Compilation takes most of the time.
# Two tiles of queries and three tiles of keys.
SIZES = Sizes(batch=1, queries=200, keys=300, heads=2, width=24, value_width=16)


@pytest.fixture(autouse=True)
def _small_tiles_on_a_tpu(monkeypatch):
    monkeypatch.setattr(tile_configs, "DEFAULT", tile_configs.TileConfig(128, 128))
    monkeypatch.setattr(distance_tiles, "MOST_TILES", 2)  # Diagonals of tiles share them.
    monkeypatch.setattr(devices, "local_platform", lambda: "tpu")


def inverse_square(x, shape):
    return 1 / (1 + shape * x**2)


WEIGHT, SHAPE = jnp.asarray([-0.4, 0.4]), jnp.asarray([0.5, 1.0])


def random_mask(*shape):
    return jax.random.bernoulli(jax.random.key(2), 0.7, shape)


def segments(length):
    return jnp.arange(length)[None] // 90 % 3 + jnp.asarray([[0], [1]])


# By name: sizes, variant and options.
CASES = {
    "lengths, segments and mask of queries": (
        SIZES._replace(batch=2, key_heads=1),
        DotProduct(),
        {
            "query_lengths": jnp.asarray([200, 113]),
            "key_lengths": jnp.asarray([170, 300]),
            "query_segments": segments(SIZES.queries),
            "key_segments": segments(SIZES.keys),
            "mask": random_mask(2, 1, SIZES.queries, 1),
            "logsumexp": True,
            "dropout_rate": 0.25,
            "dropout_key": jax.random.key(1),
        },
    ),
    "skipped tiles under a causal mask": (
        SIZES,
        DistanceAware(WEIGHT, SHAPE, tolerance=1e-5),
        {
            "query_lengths": jnp.asarray([190]),
            "key_lengths": jnp.asarray([290]),
            "is_causal": True,
            "query_offset": 110,
            "received": True,
        },
    ),
    "masked far tiles": (
        SIZES,
        DistanceAware(WEIGHT, SHAPE, tolerance=1e-6),
        {"mask": random_mask(1, 2, SIZES.queries, SIZES.keys), "received": True},
    ),
    "keys on both sides, f is not stored": (
        SIZES._replace(queries=100),
        DistanceAware(WEIGHT / 50, (SHAPE, SHAPE), mapping="linear", adjust=early_add),
        {"query_offset": 50},
    ),
    "table with window and mask of keys": (
        SIZES._replace(queries=100),
        DistanceAware(WEIGHT, SHAPE, mapping=inverse_square),
        {"local_window_size": (60, 30), "query_offset": 70, "mask": random_mask(1, 2, 1, 300)},
    ),
}


def run(implementation, variant, options, qkv):
    """Return the gradients of a sum over all outputs, and the outputs, in one tuple."""

    def loss(query, key, value, variant):
        output = attention(query, key, value, variant, implementation=implementation, **options)
        finite = Attended(*(None if x is None else jnp.nan_to_num(x, neginf=0) for x in output))
        return sum(jnp.sin(x).sum() for x in jax.tree.leaves(finite)), finite

    step = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3), has_aux=True), compiler_options=QUICKLY)
    with interpreted():
        gradients, outputs = step(*qkv, variant)
    return *gradients, *(x for x in outputs if x is not None)


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_equal_the_reference(name):
    compare_with_reference(*CASES[name])


def compare_with_reference(sizes, variant, options):
    """Check the outputs and all gradients of the kernels on random inputs."""
    qkv = inputs(sizes, "float32")
    found, expected = (run(each, variant, options, qkv) for each in ("pallas", "reference"))
    for actual, desired in zip(found, expected, strict=True):
        # Compare the parameters of a variant in units of their largest gradient: the sum of a
        # parameter may be much smaller than its terms, which have the size of the largest.
        leaves = jax.tree.leaves(desired)
        unit = max((float(jnp.abs(leaf).max()) for leaf in leaves), default=0.0)
        chex.assert_trees_all_close(actual, desired, rtol=0, atol=2e-5 * unit)


def test_scores_may_be_far_from_zero():
    """Every tile changes the reference of some queries, to larger or to smaller scores."""
    query, key, value = inputs(SIZES._replace(queries=100), "float32")
    signs = jnp.where(jnp.arange(query.shape[1]) % 3 == 0, 1.0, -1.0)
    query = query.at[..., 0].set(60 * signs[:, None])
    key = key.at[..., 0].set(1 + jnp.arange(key.shape[1])[:, None] // 128)  # ±60, ±120, ±180
    options = {"local_window_size": (200, 200), "logsumexp": True, "scale": 1.0}

    def attend(implementation):
        call = functools.partial(attention, implementation=implementation, **options)
        return jax.jit(call, compiler_options=QUICKLY)(query, key, value, DotProduct())

    with interpreted():
        actual = attend("pallas")
    chex.assert_trees_all_close(actual, attend("reference"), rtol=1e-5, atol=1e-5)


def test_a_vmap_equals_a_loop():
    """One `vmap` is over queries, lengths and offsets, and another is over variants."""
    sizes = SIZES._replace(queries=100, keys=130)
    query, key, value = inputs(sizes._replace(batch=2), "float32")
    lengths, weights = jnp.asarray([[130], [90]]), jnp.stack([WEIGHT, 2 * WEIGHT])

    def attend(query, lengths, weight):
        return attention(
            query[None],
            key[:1],
            value[:1],
            DistanceAware(weight, SHAPE),
            key_lengths=lengths,
            query_offset=lengths - 100,
            implementation="pallas",
        ).values

    over_variants = jax.vmap(attend, (None, None, 0))
    with interpreted():
        actual = jax.jit(jax.vmap(over_variants), compiler_options=QUICKLY)
        actual = actual(query, lengths, jnp.stack([weights, weights]))
    for i, j in ((0, 0), (1, 1)):
        expected = attention(
            query[i : i + 1],
            key[:1],
            value[:1],
            DistanceAware(weights[j], SHAPE),
            key_lengths=lengths[i],
            query_offset=lengths[i] - 100,
            implementation="reference",
        ).values
        chex.assert_trees_all_close(actual[i, j], expected, rtol=0, atol=1e-5)


def test_diagonals_are_expanded():
    shape = keys, queries = 128, 256
    numbers = jnp.arange(keys + queries, dtype=jnp.float32)[None]

    def kernel(source, target):
        target[...] = expand_diagonals(source[...], shape)

    out_shape = jax.ShapeDtypeStruct(shape, jnp.float32)
    tile = pl.pallas_call(kernel, out_shape=out_shape, interpret=True)(numbers)
    row, column = jnp.indices(shape)
    chex.assert_trees_all_equal(tile, (column - row + keys).astype(jnp.float32))
