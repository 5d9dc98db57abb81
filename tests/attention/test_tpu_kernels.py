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
    RelativePosition,
    TwoSided,
    attention,
    devices,
    early_add,
)
from distattn_jax.attention.fused.tpu import bands, distance_tiles, tile_configs
from distattn_jax.attention.fused.tpu.tile_view import expand_diagonals
from tests.attention.cases import (
    TOLERANCE,
    Sizes,
    inputs,
    needs_kernels,
    random_arrays,
    transformer_xl,
)
from tests.evaluation import evaluate, interpreted

pytestmark = needs_kernels
# Two tiles of queries and three tiles of keys.
SIZES = Sizes(batch=1, queries=200, keys=300, heads=2, width=24, value_width=16)
LONG = SIZES._replace(queries=130, keys=600)  # two groups of 128 queries, three tiles of 256 keys


@pytest.fixture(autouse=True)
def _small_tiles_on_a_tpu(monkeypatch):
    monkeypatch.setattr(tile_configs, "DEFAULT", tile_configs.TileConfig(128, 128))
    monkeypatch.setattr(distance_tiles, "MOST_TILES", 2)  # Diagonals of tiles share them.
    with devices.assumed(devices.local_machine()._replace(platform="tpu")):
        yield


@pytest.fixture
def tiles_of_four_squares(monkeypatch):
    monkeypatch.setattr(tile_configs, "DEFAULT", tile_configs.TileConfig(256, 256))


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


# Relations, buckets and position vectors.
DIAGONAL_CASES = {
    # The tables have different numbers of relations, and heads share one of them.
    "two tables with far tiles on both sides": (
        LONG._replace(key_heads=1),
        RelativePosition(*random_arrays(3, (1, 41, 24), (2, 19, 16), dtype="float32")),
        {
            "query_offset": 303,
            "mask": random_mask(1, 2, LONG.queries, LONG.keys).at[:, :, 3].set(False),
            "logsumexp": True,
            "dropout_rate": 0.25,
            "dropout_key": jax.random.key(1),
        },
    ),
    "table of values with one relation": (
        LONG._replace(queries=50, keys=90),
        RelativePosition(None, *random_arrays(3, (1, 1, 16), dtype="float32")),
        {"is_causal": True, "query_offset": -5},
    ),
    # In the first example, the first tile of keys has the bias of the last bucket: one head forgets
    # these keys, and the other averages them. In the second, some queries have no own key.
    "factors that fall, and buckets of T5": (
        LONG._replace(batch=2),
        TwoSided(
            *jnp.asarray([[[-0.3, -0.4], [-0.2, -0.3]], [[0.3, 0.2], [0.1, 0.2]]]),
            (random_arrays(3, (2, 2, 16), dtype="float32")[0].at[0, :, -1].set(-60.0),),
            ("t5_buckets",),
            tolerance=1e-6,
        ),
        {"query_offset": jnp.asarray([470, -7]), "key_lengths": jnp.asarray([600, 210])},
    ),
    # Beyond a radius, the scores of the first and of the last tile of keys are the bias.
    "factors that fall, and a bias that falls": (
        LONG._replace(queries=100, key_heads=1),
        TwoSided(
            *jnp.asarray([[[-0.3, -0.4], [0.2, -0.3]], [[0.3, 0.2], [0.1, 0.2]]]),
            tuple(jnp.asarray([[[0.5, -0.3], [0.2, 0.4]], [[0.05, 0.02], [0.03, 0.04]]])),
            ("constant", "alibi"),
            tolerance=1e-6,
        ),
        {"query_offset": 350, "mask": random_mask(1, 2, 1, 600), "received": True},
    ),
    "position vectors of Transformer-XL": (
        LONG._replace(batch=2, keys=300),
        transformer_xl(LONG, "float32").variant,
        {"query_offset": jnp.asarray([-7, 90]), "key_lengths": jnp.asarray([300, 210])},
    ),
}


def run(implementation, variant, options, qkv):
    """Return the gradients of a sum over all outputs, and the outputs, in one tuple."""

    def loss(query, key, value, variant):
        output = attention(query, key, value, variant, implementation=implementation, **options)
        finite = Attended(*(None if x is None else jnp.nan_to_num(x, neginf=0) for x in output))
        return sum(jnp.sin(x).sum() for x in jax.tree.leaves(finite)), finite

    step = jax.grad(loss, argnums=(0, 1, 2, 3), has_aux=True)
    with interpreted():
        gradients, outputs = evaluate(step, *qkv, variant)
    return *gradients, *(x for x in outputs if x is not None)


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_equal_the_reference(name):
    compare_with_reference(*CASES[name])


@pytest.mark.usefixtures("tiles_of_four_squares")
@pytest.mark.parametrize("name", DIAGONAL_CASES)
def test_relations_and_positions_equal_the_reference(name):
    compare_with_reference(*DIAGONAL_CASES[name])


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
        return evaluate(call, query, key, value, DotProduct())

    with interpreted():
        actual = attend("pallas")
    chex.assert_trees_all_close(actual, attend("reference"), rtol=1e-5, atol=1e-5)


def test_a_vmap_equals_the_reference():
    """One `vmap` is over queries, lengths and offsets, and another is over variants."""
    query, key, value = inputs(SIZES._replace(batch=2, queries=100, keys=130), "float32")
    lengths, weights = jnp.asarray([[130], [90]]), jnp.stack([WEIGHT, 2 * WEIGHT])

    def attend(implementation):
        def attend_once(query, lengths, weight):
            variant, arrays = DistanceAware(weight, SHAPE), (query[None], key[:1], value[:1])
            options = {"key_lengths": lengths, "query_offset": lengths - 100}
            return attention(*arrays, variant, implementation=implementation, **options).values

        over_variants = jax.vmap(attend_once, (None, None, 0))
        return jax.jit(jax.vmap(over_variants, (0, 0, None)))(query, lengths, weights)

    with interpreted():
        actual = attend("pallas")
    chex.assert_trees_all_close(actual, attend("reference"), rtol=0, atol=1e-5)


def test_diagonals_are_expanded():
    shape = keys, queries = 128, 256
    numbers = jnp.arange(keys + queries, dtype=jnp.float32)[None]

    def kernel(source, target):
        target[...] = expand_diagonals(source[...], shape)

    out_shape = jax.ShapeDtypeStruct(shape, jnp.float32)
    tile = pl.pallas_call(kernel, out_shape=out_shape, interpret=True)(numbers)
    row, column = jnp.indices(shape)
    chex.assert_trees_all_equal(tile, (column - row + keys).astype(jnp.float32))


@pytest.mark.usefixtures("tiles_of_four_squares")
def test_examples_share_the_position_vectors_in_each_call_of_a_vmap():
    """Two blocks of queries and two examples are summed in float32, and rounded once."""
    sizes = LONG._replace(batch=2, queries=300, keys=100)
    variant, _ = transformer_xl(sizes, "float32")
    query, key, value = inputs(sizes, "bfloat16")

    def gradient(implementation, query):
        def loss(variant):
            values = attention(query, key, value, variant, implementation=implementation).values
            return jnp.sin(values.astype(jnp.float32)).sum()

        return jax.grad(loss)(variant)

    queries = jnp.stack([query, -query])
    with interpreted():
        step = jax.vmap(functools.partial(gradient, "pallas"))
        actual = evaluate(step, queries)
    expected = evaluate(jax.vmap(functools.partial(gradient, "reference")), queries)
    tolerance = TOLERANCE["bfloat16"] * float(jnp.abs(expected.projection).max())
    chex.assert_trees_all_close(actual.projection, expected.projection, rtol=0, atol=tolerance)


@pytest.mark.parametrize(("k", "offset"), [(128, -1), (13, 205)])
def test_bands_contain_the_relation_of_each_entry(k, offset):
    relations = jnp.arange(2 * k + 1)
    array = jnp.broadcast_to(relations[:, None], (2 * k + 1, 128)).astype(jnp.float32)
    array = jnp.pad(array, ((0, bands.count_rows(k) - 2 * k - 1), (0, 0)))
    shifts = bands.compute_shifts(jnp.int32(offset), k)
    squares = jax.jit(bands.expand_band, static_argnums=2)(array, shifts, k)
    first = next(key for key in range(-1024, 1024, 128) if bands.find_square(0, key, offset) == 1)
    key, query = first + jnp.arange(512)[:, None], jnp.arange(128)[None]
    expected = jnp.clip(key - query - offset, -k, k) + k
    chex.assert_trees_all_equal(squares, expected.astype(jnp.float32))

    ends = (jnp.zeros((1, 128)),) * 2
    collapse = jax.jit(bands.collapse_band, static_argnums=2)
    counts = collapse(jnp.ones((512, 128)), shifts, k, ends)[: 2 * k + 1]
    expected_counts = (expected[None] == relations[:, None, None]).sum(axis=1)
    chex.assert_trees_all_equal(counts, expected_counts.astype(jnp.float32))
