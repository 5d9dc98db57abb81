"""What must hold whatever the numbers are."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distattn_jax.attention import (
    ADJUSTMENTS,
    Adapted,
    DistanceAware,
    DotProduct,
    RelativePosition,
    TransformerXL,
    attention,
)
from distattn_jax.attention.variants.relative_position import collect, spread
from distattn_jax.attention.variants.transformer_xl import skew
from tests.attention.cases import ONE_OF_EACH, Sizes, arrays, computed_by, inputs, run

CLOSE = {"rtol": 1e-5, "atol": 1e-6}
every_variant = pytest.mark.parametrize("name", ONE_OF_EACH)
seeds = st.integers(0, 2**31)
offsets = st.integers(-3, 9)


def drawn(name, sizes, seed):
    variant, _ = ONE_OF_EACH[name](sizes, "float32")
    leaves, structure = jax.tree.flatten(variant)
    variant = structure.unflatten(arrays(seed, *(x.shape for x in leaves), dtype="float32"))
    return variant, inputs(sizes, "float32", seed)


@jax.jit
@functools.partial(jax.grad, argnums=(0, 1))
def gradients_of_squares(key, value, query, variant, mask):
    return jnp.square(attention(query, key, value, variant, mask=mask).values).sum()


@every_variant
@given(seeds, offsets)
def test_rows_sum_to_one(name, seed, offset):
    variant, qkv = drawn(name, Sizes(), seed)
    weights = run(variant, *qkv, query_offset=jnp.int32(offset)).weights
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
    assert (weights >= 0).all()


@every_variant
@given(seeds)
def test_masked_keys_get_nothing_and_give_no_gradient(name, seed):
    sizes = Sizes()
    variant, (query, key, value) = drawn(name, sizes, seed)
    mask = jnp.asarray(np.random.default_rng(seed).random((2, 3, 5, 7)) < 0.5)
    attended = run(variant, query, key, value, mask=mask)
    assert (jnp.where(mask, 0, attended.weights) == 0).all()

    for gradient in gradients_of_squares(key, value, query, variant, mask.at[..., 4].set(False)):
        assert (gradient[:, 4] == 0).all()
        assert (gradient[:, :4] != 0).any()


@pytest.mark.parametrize("adjust", ["late_multiply", "late_add"])
def test_late_adjustments_give_masked_keys_nothing(adjust):
    sizes = Sizes()
    variant = DistanceAware(jnp.ones(3), jnp.ones(3), adjust=ADJUSTMENTS[adjust])
    lengths = jnp.asarray([4, 0])
    attended = run(variant, *inputs(sizes, "float32"), key_lengths=lengths)
    assert (attended.weights[0, :, :, 4:] == 0).all()
    assert (attended.weights[1] == 0).all()
    assert not np.allclose(attended.weights[0].sum(-1), 1, rtol=1e-2)


@every_variant
@given(seeds, offsets)
def test_padding_more_keys_or_queries_changes_nothing(name, seed, offset):
    sizes, longer = Sizes(), Sizes(queries=8, keys=9)
    variant, (query, key, value) = drawn(name, longer, seed)
    offset = jnp.int32(offset)
    short = query[:, : sizes.queries], key[:, : sizes.keys], value[:, : sizes.keys]
    plain = run(variant, *short, query_offset=offset)
    padded = run(
        variant,
        query,
        key,
        value,
        query_offset=offset,
        query_lengths=jnp.full(2, sizes.queries),
        key_lengths=jnp.full(2, sizes.keys),
    )
    chex.assert_trees_all_close(padded.values[:, : sizes.queries], plain.values, **CLOSE)
    chex.assert_trees_all_close(padded.received[..., : sizes.keys], plain.received, **CLOSE)
    assert (padded.values[:, sizes.queries :] == 0).all()
    assert (padded.received[..., sizes.keys :] == 0).all()


@every_variant
@given(seeds)
def test_permuting_examples_or_heads_permutes_the_outputs(name, seed):
    variant, qkv = drawn(name, Sizes(), seed)
    heads = jnp.asarray([2, 0, 1])
    plain = run(variant, *qkv)
    flipped = run(variant, *(x[::-1] for x in qkv))
    chex.assert_trees_all_close(flipped, jax.tree.map(lambda x: x[::-1], plain), **CLOSE)
    moved = run(jax.tree.map(lambda x: x[heads], variant), *(x[:, :, heads] for x in qkv))
    chex.assert_trees_all_close(moved.values, plain.values[:, :, heads], **CLOSE)
    chex.assert_trees_all_close(moved.weights, plain.weights[:, heads], **CLOSE)


@every_variant
def test_later_keys_get_exactly_no_gradient_when_causal(name):
    variant, (query, key, value) = drawn(name, Sizes(queries=6, keys=6), seed=0)

    def third(key, value):
        return attention(query, key, value, variant, is_causal=True).values[:, 2].sum()

    for gradient in jax.jit(jax.grad(third, (0, 1)))(key, value):
        assert (gradient[:, 3:] == 0).all()
        assert (gradient[:, :3] != 0).any()


def test_received_is_what_the_weights_sum_to():
    attended = run(DotProduct(), *inputs(Sizes(), "float32"))
    chex.assert_trees_all_close(attended.received, attended.weights.sum(axis=2), **CLOSE)


def test_one_table_for_all_heads_equals_a_copy_for_each():
    sizes = Sizes()
    table, values = arrays(0, (1, 5, 4), (1, 5, 6), dtype="float32")
    shared = RelativePosition(table, values)
    copied = RelativePosition(jnp.tile(table, (3, 1, 1)), jnp.tile(values, (3, 1, 1)))
    qkv = inputs(sizes, "float32")
    chex.assert_trees_all_close(run(shared, *qkv), run(copied, *qkv), **CLOSE)


@given(seeds)
def test_distance_aware_with_no_weight_is_rectified_dot_product(seed):
    (v,) = arrays(seed, (3,), dtype="float32")
    query, key, value = inputs(Sizes(), "float32", seed)
    scores = jnp.einsum("btnh,bsnh->bnts", query, key) / jnp.sqrt(jnp.float32(4))
    expected = jnp.einsum("bnts,bsne->btne", jax.nn.softmax(jax.nn.relu(scores)), value)
    actual = run(DistanceAware(jnp.zeros(3), v), query, key, value).values
    chex.assert_trees_all_close(actual, expected, **CLOSE)


@given(seeds, st.integers(0, 4))
def test_relative_positions_of_zero_are_dot_product(seed, k):
    qkv = inputs(Sizes(), "float32", seed)
    tables = jnp.zeros((3, 2 * k + 1, 4)), jnp.zeros((1, 2 * k + 1, 6))
    chex.assert_trees_all_close(
        run(RelativePosition(*tables), *qkv), run(DotProduct(), *qkv), **CLOSE
    )


@given(seeds)
def test_a_single_relation_on_keys_changes_nothing_and_on_values_adds_it(seed):
    qkv = inputs(Sizes(), "float32", seed)
    keys, values = arrays(seed, (3, 1, 4), (3, 1, 6), dtype="float32")
    plain = run(DotProduct(), *qkv)
    chex.assert_trees_all_close(run(RelativePosition(keys=keys), *qkv), plain, **CLOSE)
    shifted = run(RelativePosition(values=values), *qkv)
    chex.assert_trees_all_close(shifted.values, plain.values + values[:, 0][None, None], **CLOSE)


@pytest.mark.parametrize("name", ["transformer_xl", "adapted", "distance_aware"])
@given(seeds)
def test_segments_with_memory_equal_the_full_context(name, seed):
    variant, (query, key, value) = drawn(name, Sizes(queries=6, keys=6), seed)
    whole = run(variant, query, key, value, is_causal=True).values
    second = run(variant, query[:, 4:], key, value, is_causal=True, query_offset=jnp.int32(4))
    chex.assert_trees_all_close(second.values, whole[:, 4:], **CLOSE)


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 5), (4, 1), (3, 7), (7, 3), (5, 5)])
def test_skew_equals_a_gather(queries, keys):
    (entries,) = arrays(0, (queries, queries + keys), dtype="float32")
    row, column = np.indices((queries, keys))
    np.testing.assert_array_equal(skew(entries), entries[row, queries - 1 - row + column])


@pytest.mark.parametrize(("k", "offset"), [(0, 0), (1, 0), (1, -2), (3, 3), (3, 30), (9, -20)])
def test_spread_and_collect_are_transposes_and_equal_a_gather(k, offset):
    queries, keys = 4, 6
    rows, weights = arrays(0, (queries, 2 * k + 1), (queries, keys), dtype="float32")
    row, column = np.indices((queries, keys))
    relation = np.clip(column - row - offset, -k, k) + k
    spreaded = spread(rows, jnp.zeros((queries, keys)), jnp.int32(offset))
    np.testing.assert_allclose(spreaded, np.take_along_axis(np.asarray(rows), relation, 1))
    collected = collect(weights, k, jnp.int32(offset))
    np.testing.assert_allclose(
        (collected * rows).sum(), (weights * spreaded).sum(), rtol=1e-4, atol=1e-5
    )


@every_variant
def test_a_traced_offset_is_not_recompiled_and_equals_a_fixed_one(name):
    variant, qkv = drawn(name, Sizes(), seed=1)
    traces = []

    @jax.jit
    def call(variant, query, key, value, offset):
        traces.append(1)
        return attention(query, key, value, variant, is_causal=True, query_offset=offset).values

    for offset in (3, -2):
        fixed = run(variant, *qkv, is_causal=True, query_offset=offset).values
        chex.assert_trees_all_close(call(variant, *qkv, jnp.int32(offset)), fixed, **CLOSE)
    assert len(traces) == 1


@pytest.mark.parametrize("name", [name for name in ONE_OF_EACH if name != "dot_product"])
def test_vmap_over_models_equals_a_loop(name):
    models = [drawn(name, Sizes(), seed)[0] for seed in range(3)]
    _, qkv = drawn(name, Sizes(), seed=5)
    call = functools.partial(attention, received=True)
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *models)
    together = jax.jit(jax.vmap(call, in_axes=(None, None, None, 0)))(*qkv, stacked)
    one_by_one = [jax.jit(call)(*qkv, model) for model in models]
    chex.assert_trees_all_close(
        together, jax.tree.map(lambda *x: jnp.stack(x), *one_by_one), **CLOSE
    )


@every_variant
def test_a_mask_of_few_axes_is_the_mask_broadcast(name, monkeypatch):
    variant, qkv = drawn(name, Sizes(), seed=2)
    mask = jnp.asarray(np.random.default_rng(0).random((5, 7)) < 0.6)
    whole = jnp.broadcast_to(mask[None, None], (2, 3, 5, 7))
    with computed_by("xla in kept blocks", monkeypatch):
        narrow = run(variant, *qkv, mask=mask)
        full = run(variant, *qkv, mask=whole)
    chex.assert_trees_all_close(narrow, full, **CLOSE)


def test_numpy_arrays_serve_as_well():
    variant, qkv = drawn("distance_aware", Sizes(), seed=4)
    as_numpy = jax.tree.map(np.asarray, (variant, qkv))
    lengths = np.asarray([7, 3])
    actual = attention(*as_numpy[1], as_numpy[0], key_lengths=lengths, query_offset=np.int32(1))
    expected = run(variant, *qkv, key_lengths=jnp.asarray(lengths), query_offset=jnp.int32(1))
    chex.assert_trees_all_close(actual.values, expected.values, **CLOSE)


def test_distance_is_what_counts_for_distance_aware_and_direction_for_the_others():
    """Mirrored inputs give mirrored outputs exactly where only |i - j| matters."""
    sizes = Sizes(queries=6, keys=6)
    for name, mirrors in (("distance_aware", True), ("transformer_xl", False), ("adapted", False)):
        variant, qkv = drawn(name, sizes, seed=3)
        plain = run(variant, *qkv).values
        mirrored = run(variant, *(x[:, ::-1] for x in qkv)).values[:, ::-1]
        assert np.allclose(plain, mirrored, **CLOSE) == mirrors


def test_variants_are_described_by_their_arrays():
    assert len(jax.tree.leaves(DotProduct())) == 0
    assert len(jax.tree.leaves(DistanceAware(jnp.ones(3), jnp.ones(3)))) == 2
    assert len(jax.tree.leaves(RelativePosition(keys=jnp.ones((1, 3, 4))))) == 1
    assert len(jax.tree.leaves(TransformerXL(jnp.ones((3, 6, 4)), *[jnp.ones((1, 4))] * 2))) == 3
    assert len(jax.tree.leaves(Adapted(jnp.ones((3, 4)), jnp.ones((3, 4))))) == 2
