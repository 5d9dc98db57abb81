"""Properties of attention that hold for every variant and random inputs."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distattn_jax.attention import DistanceAware, attention, late_add, sigmoid
from tests.attention.cases import (
    ALL_FORMS,
    CLOSE,
    VARIANTS,
    Sizes,
    inputs,
    random_like,
    run_attention,
    select_implementation,
)

SIZES = Sizes(queries=4, keys=8)
every_variant = pytest.mark.parametrize("name", VARIANTS)
seeds = st.integers(0, 2**31)
offsets = st.integers(-3, 9)


def random_case(name, seed, sizes=SIZES):
    """Draw a variant with random arrays, and a random query, key and value."""
    variant, _ = VARIANTS[name](sizes, "float32")
    return jax.device_get((random_like(variant, seed, "float32"), inputs(sizes, "float32", seed)))


def run(variant, query, key, value, query_offset=0, **arguments):
    """Return all outputs as NumPy arrays. All offsets share a program, because they are traced."""
    arguments["query_offset"] = np.int32(query_offset)
    return jax.device_get(run_attention(variant, query, key, value, **arguments))


@jax.jit
@functools.partial(jax.grad, argnums=(0, 1))
def gradients_of_third_query(key, value, query, variant, mask):
    """Return the gradients of squared outputs with respect to key and value, causal and masked."""
    attended = attention(query, key, value, variant, mask=mask, is_causal=True)
    return jnp.square(attended.values[:, 2]).sum()


@every_variant
@given(seeds, offsets)
def test_rows_sum_to_one_and_columns_to_received(name, seed, offset):
    variant, qkv = random_case(name, seed)
    attended = run(variant, *qkv, offset)
    assert (attended.weights >= 0).all()
    np.testing.assert_allclose(attended.weights.sum(-1), 1, rtol=1e-5)
    chex.assert_trees_all_close(attended.received, attended.weights.sum(axis=2), **CLOSE)


@every_variant
@given(seeds)
def test_masked_and_later_keys_have_no_weight_and_no_gradient(name, seed):
    variant, (query, key, value) = random_case(name, seed)
    mask = np.random.default_rng(seed).random((2, 3, 4, 8)) < 0.5
    mask[..., 1], mask[..., [0, 2]] = False, True
    attended = run(variant, query, key, value, mask=mask, key_lengths=np.asarray([8, 6]))
    assert (attended.weights[~mask] == 0).all()
    assert (attended.weights[1, ..., 6:] == 0).all()

    for gradient in gradients_of_third_query(key, value, query, variant, mask):
        assert (gradient[:, [1, 3, 4, 5, 6, 7]] == 0).all()
        assert (gradient[:, 0] != 0).any()


@every_variant
@given(seeds, offsets)
def test_padding_does_not_change_the_outputs(name, seed, offset):
    variant, qkv = random_case(name, seed, Sizes(queries=7, keys=9))
    T, S = SIZES.queries, SIZES.keys
    plain = run(variant, *(x[:, :size] for x, size in zip(qkv, (T, S, S), strict=True)), offset)
    lengths = {"query_lengths": np.full(2, T), "key_lengths": np.full(2, S)}
    padded = run(variant, *qkv, offset, **lengths)
    chex.assert_trees_all_close(padded.values[:, :T], plain.values, **CLOSE)
    chex.assert_trees_all_close(padded.received[..., :S], plain.received, **CLOSE)
    assert (padded.values[:, T:] == 0).all()
    assert (padded.received[..., S:] == 0).all()


@every_variant
@given(seeds)
def test_permuting_examples_or_heads_permutes_the_outputs(name, seed):
    variant, qkv = random_case(name, seed)
    heads = [2, 0, 1]
    plain = run(variant, *qkv)
    flipped = run(variant, *(x[::-1] for x in qkv))
    chex.assert_trees_all_close(flipped, jax.tree.map(lambda x: x[::-1], plain), **CLOSE)
    moved = run(jax.tree.map(lambda x: x[heads], variant), *(x[:, :, heads] for x in qkv))
    chex.assert_trees_all_close(moved.values, plain.values[:, :, heads], **CLOSE)
    chex.assert_trees_all_close(moved.weights, plain.weights[:, heads], **CLOSE)


@pytest.mark.parametrize("name", ["transformer_xl", "adapted", "distance_aware"])
@given(seeds)
def test_a_segment_with_memory_equals_the_full_context(name, seed):
    variant, (query, *context) = random_case(name, seed, Sizes(queries=6, keys=6))
    whole = run(variant, query, *context, is_causal=True).values
    second = run(variant, query[:, 4:], *context, 4, is_causal=True).values
    chex.assert_trees_all_close(second, whole[:, 4:], **CLOSE)


def test_a_traced_offset_compiles_once_and_equals_a_constant_offset():
    variant, qkv = random_case("relative_position", seed=1)
    traces = []

    @jax.jit
    def call(offset):
        traces.append(1)
        return attention(*qkv, variant, is_causal=True, query_offset=offset).values

    for offset in (3, -2):
        constant = attention(*qkv, variant, is_causal=True, query_offset=offset).values
        chex.assert_trees_all_close(call(jnp.int32(offset)), constant, **CLOSE)
    assert len(traces) == 1


@pytest.mark.parametrize("name", [name for name in VARIANTS if name != "dot_product"])
def test_vmap_over_models_equals_a_loop(name):
    models = [random_case(name, seed)[0] for seed in range(3)]
    _, qkv = random_case(name, seed=5)
    call = functools.partial(attention, received=True, weights=True, logsumexp=True)
    stacked, one_by_one = (
        jax.tree.map(lambda *x: np.stack(x), *trees)
        for trees in (models, [run(model, *qkv) for model in models])
    )
    together = jax.jit(jax.vmap(call, in_axes=(None, None, None, 0)))(*qkv, stacked)
    chex.assert_trees_all_close(together, one_by_one, **CLOSE)


@pytest.mark.parametrize("shape", [(1, 1, 4, 8), (2, 1, 1, 8)])
def test_a_mask_with_axes_of_size_1_equals_the_broadcast_mask(shape, monkeypatch):
    variant, qkv = random_case("relative_position", seed=2)
    mask = np.random.default_rng(0).random(shape) < 0.6
    with select_implementation("xla in stored blocks", monkeypatch):
        narrow = run(variant, *qkv, mask=mask)
        full = run(variant, *qkv, mask=np.broadcast_to(mask, (2, 3, 4, 8)))
    chex.assert_trees_all_close(narrow, full, **CLOSE)


def test_numpy_arrays_are_accepted_inside_and_outside_of_jit():
    variant, qkv = random_case("distance_aware", seed=4)
    arguments = {"key_lengths": np.asarray([7, 3]), "query_offset": np.int32(1)}
    actual = attention(*qkv, variant, **arguments, received=True, weights=True, logsumexp=True)
    as_jax = jax.tree.map(jnp.asarray, (variant, *qkv))
    chex.assert_trees_all_close(actual, run_attention(*as_jax, **arguments), **CLOSE)


def test_mirrored_inputs_give_mirrored_outputs_only_for_distance_aware():
    """Distance-aware scores depend on |i - j|, the others on the signed i - j."""
    center = (SIZES.keys - SIZES.queries) // 2
    for name, mirrors in (
        ("distance_aware", True),
        ("transformer_xl", False),
        ("adapted", False),
        ("two_sided", False),
    ):
        variant, qkv = random_case(name, seed=3)
        plain = run(variant, *qkv, center).values
        mirrored = run(variant, *(x[:, ::-1] for x in qkv), center).values[:, ::-1]
        assert np.allclose(plain, mirrored, **CLOSE) == mirrors


@pytest.mark.parametrize(
    ("name", "count"),
    list(zip([*VARIANTS, "relative_position_keys"], [0, 2, 2, 3, 2, 2, 5, 1], strict=True)),
)
def test_the_leaves_of_a_variant_are_its_arrays(name, count):
    assert len(jax.tree.leaves(ALL_FORMS[name](SIZES, "float32").variant)) == count


@every_variant
def test_attention_over_parts_of_the_keys_merges_by_logsumexp(name):
    variant, (query, key, value) = random_case(name, seed=7)
    whole = run(variant, query, key, value)
    # The second part begins at key 4, so that all of its positions are 4 less.
    parts = [
        run(variant, query, key[:, :4], value[:, :4]),
        run(variant, query, key[:, 4:], value[:, 4:], -4),
    ]
    merged = sum(
        np.exp(part.logsumexp - whole.logsumexp).transpose(0, 2, 1)[..., None] * part.values
        for part in parts
    )
    chex.assert_trees_all_close(merged, whole.values, **CLOSE)


def test_a_window_of_one_number_equals_the_mask_of_near_keys():
    variant, qkv = random_case("distance_aware", seed=8)
    distance = 2 + np.arange(4)[:, None] - np.arange(8)[None, :]
    actual = run(variant, *qkv, 2, local_window_size=1)
    expected = run(variant, *qkv, 2, mask=(abs(distance) <= 1)[None, None])
    chex.assert_trees_all_close(actual, expected, **CLOSE)


def test_names_of_mappings_and_adjustments_stand_for_the_functions():
    named = DistanceAware(jnp.ones(3), (), mapping="sigmoid", adjust="late_add")
    assert named.mapping is sigmoid
    assert named.adjust is late_add


def test_lengths_beyond_the_arrays_do_not_count_the_padding_of_blocks(monkeypatch):
    variant, qkv = random_case("dot_product", seed=9, sizes=Sizes())
    lengths = {"query_lengths": np.asarray([100, 5]), "key_lengths": np.asarray([7, 100])}
    with select_implementation("xla in recomputed blocks", monkeypatch):
        received = run(variant, *qkv, **lengths).received
    np.testing.assert_allclose(received.sum(-1), 5, rtol=1e-5)


def test_a_second_call_outside_of_jit_compiles_nothing(monkeypatch):
    variant, qkv = random_case("distance_aware", seed=10)
    compilations = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **_: compilations.append(event) if "compile" in event else None
    )
    with select_implementation("xla in recomputed blocks", monkeypatch):
        attention(*qkv, variant, key_lengths=np.asarray([7, 3]))
        assert compilations
        compilations.clear()
        attention(*qkv, variant, key_lengths=np.asarray([7, 2]))
    assert not compilations


@every_variant
def test_exported_programs_accept_any_batch_and_length(name, without_shape_checker):
    # The type annotations require an `int`. A symbolic size has another type.
    variant, qkv = random_case(name, seed=11)
    B, T, S = jax.export.symbolic_shape("B, T, S")
    shapes = (B, T, 3, 4), (B, S, 3, 4), (B, S, 3, 6), (B, 3, T, S), (B,)
    arrays = *qkv, np.random.default_rng(0).random((2, 3, 4, 8)) < 0.7, np.int32([8, 4])

    @jax.jit
    def call(query, key, value, mask, key_lengths):
        return attention(
            query, key, value, variant, mask=mask, key_lengths=key_lengths, received=True
        )

    exported = jax.export.export(call)(
        *(jax.ShapeDtypeStruct(shape, x.dtype) for shape, x in zip(shapes, arrays, strict=True))
    )
    expected = run(variant, *qkv, mask=arrays[3], key_lengths=arrays[4])
    chex.assert_trees_all_close(exported.call(*arrays)[:2], expected[:2], **CLOSE)
