"""Relations, buckets of T5 and position vectors in the TPU kernels, run by the interpreter."""

import functools

import chex
import jax
import jax.numpy as jnp
import pytest

from distattn_jax.attention import (
    DistanceBias,
    RelativePosition,
    T5Buckets,
    attention,
    devices,
)
from distattn_jax.attention.fused.tpu import bands, tile_configs
from tests.attention.cases import (
    TOLERANCE,
    Sizes,
    inputs,
    needs_kernels,
    random_arrays,
    transformer_xl,
)
from tests.attention.test_tpu_kernels import QUICKLY, compare_with_reference, random_mask
from tests.evaluation import interpreted

pytestmark = needs_kernels
# One block of two groups of 128 queries, and three tiles of keys.
SIZES = Sizes(batch=1, queries=130, keys=600, heads=2, width=24, value_width=16)


@pytest.fixture(autouse=True)
def _tiles_of_four_squares_on_a_tpu(monkeypatch):
    monkeypatch.setattr(tile_configs, "DEFAULT", tile_configs.TileConfig(256, 256))
    monkeypatch.setattr(devices, "local_platform", lambda: "tpu")


def test_two_tables_with_far_tiles_on_both_sides():
    """The tables have different numbers of relations, and heads share one of them."""
    tables = random_arrays(3, (1, 41, 24), (2, 19, 16), dtype="float32")
    mask = random_mask(1, 2, SIZES.queries, SIZES.keys).at[:, :, 3].set(False)
    options = {
        "query_offset": 303,
        "mask": mask,
        "logsumexp": True,
        "dropout_rate": 0.25,
        "dropout_key": jax.random.key(1),
    }
    compare_with_reference(SIZES._replace(key_heads=1), RelativePosition(*tables), options)


def test_a_table_of_values_with_one_relation():
    sizes = SIZES._replace(queries=50, keys=90)
    variant = RelativePosition(None, *random_arrays(3, (1, 1, 16), dtype="float32"))
    compare_with_reference(sizes, variant, {"is_causal": True, "query_offset": -5})


def test_buckets_of_t5():
    sizes = SIZES._replace(batch=2, keys=300)
    variant = DistanceBias(*random_arrays(3, (2, 32), dtype="float32"), T5Buckets(32, 100))
    options = {"query_offset": -7, "key_lengths": jnp.asarray([300, 210])}
    compare_with_reference(sizes, variant, options)


def test_position_vectors_of_transformer_xl():
    sizes = SIZES._replace(batch=2, keys=300)
    variant, _ = transformer_xl(sizes, "float32")
    options = {"query_offset": jnp.asarray([-7, 90]), "key_lengths": jnp.asarray([300, 210])}
    compare_with_reference(sizes, variant, options)


def test_examples_share_the_position_vectors_in_each_call_of_a_vmap():
    """Two blocks of queries and two examples are summed in float32, and rounded once."""
    sizes = SIZES._replace(batch=2, queries=300, keys=100)
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
        actual = jax.jit(step, compiler_options=QUICKLY)(queries)
    expected = jax.vmap(functools.partial(gradient, "reference"))(queries)
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
