"""Properties of attention that hold for every variant and random inputs."""

import functools

import chex
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distattn_jax.attention import (
    Adapted,
    DistanceAware,
    DotProduct,
    RelativePosition,
    TransformerXL,
    attention,
    late_add,
    sigmoid,
)
from tests.attention.cases import (
    CLOSE,
    VARIANTS,
    Sizes,
    inputs,
    random_arrays,
    run_attention,
    select_implementation,
)

every_variant = pytest.mark.parametrize("name", VARIANTS)
seeds = st.integers(0, 2**31)
offsets = st.integers(-3, 9)


def random_case(name, sizes, seed):
    """Draw a variant with random arrays, and a random query, key and value."""
    variant, _ = VARIANTS[name](sizes, "float32")
    leaves, structure = jax.tree.flatten(variant)
    variant = structure.unflatten(random_arrays(seed, *(x.shape for x in leaves), dtype="float32"))
    return variant, inputs(sizes, "float32", seed)


@jax.jit
@functools.partial(jax.grad, argnums=(0, 1))
def gradients_of_squared_values(key, value, query, variant, mask):
    """Return the gradients of the sum of squared outputs with respect to key and value."""
    return jnp.square(attention(query, key, value, variant, mask=mask).values).sum()


@every_variant
@given(seeds, offsets)
def test_rows_sum_to_one_and_columns_to_received(name, seed, offset):
    variant, qkv = random_case(name, Sizes(), seed)
    attended = run_attention(variant, *qkv, query_offset=jnp.int32(offset))
    assert (attended.weights >= 0).all()
    np.testing.assert_allclose(attended.weights.sum(-1), 1, rtol=1e-5)
    chex.assert_trees_all_close(attended.received, attended.weights.sum(axis=2), **CLOSE)


@every_variant
@given(seeds)
def test_masked_keys_have_no_weight_and_no_gradient(name, seed):
    sizes = Sizes()
    variant, (query, key, value) = random_case(name, sizes, seed)
    mask = jnp.asarray(np.random.default_rng(seed).random((2, 3, 5, 7)) < 0.5)
    attended = run_attention(variant, query, key, value, mask=mask)
    assert (jnp.where(mask, 0, attended.weights) == 0).all()

    for gradient in gradients_of_squared_values(
        key, value, query, variant, mask.at[..., 4].set(False)
    ):
        assert (gradient[:, 4] == 0).all()
        assert (gradient[:, :4] != 0).any()


@every_variant
@given(seeds, offsets)
def test_padding_does_not_change_the_outputs(name, seed, offset):
    sizes, longer = Sizes(), Sizes(queries=8, keys=9)
    variant, (query, key, value) = random_case(name, longer, seed)
    offset = jnp.int32(offset)
    short = query[:, : sizes.queries], key[:, : sizes.keys], value[:, : sizes.keys]
    plain = run_attention(variant, *short, query_offset=offset)
    padded = run_attention(
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
    variant, qkv = random_case(name, Sizes(), seed)
    heads = jnp.asarray([2, 0, 1])
    plain = run_attention(variant, *qkv)
    flipped = run_attention(variant, *(x[::-1] for x in qkv))
    chex.assert_trees_all_close(flipped, jax.tree.map(lambda x: x[::-1], plain), **CLOSE)
    moved = run_attention(jax.tree.map(lambda x: x[heads], variant), *(x[:, :, heads] for x in qkv))
    chex.assert_trees_all_close(moved.values, plain.values[:, :, heads], **CLOSE)
    chex.assert_trees_all_close(moved.weights, plain.weights[:, heads], **CLOSE)


@every_variant
def test_later_keys_have_zero_gradient_under_a_causal_mask(name):
    variant, (query, key, value) = random_case(name, Sizes(queries=6, keys=6), seed=0)

    def third_query_sum(key, value):
        return attention(query, key, value, variant, is_causal=True).values[:, 2].sum()

    for gradient in jax.jit(jax.grad(third_query_sum, (0, 1)))(key, value):
        assert (gradient[:, 3:] == 0).all()
        assert (gradient[:, :3] != 0).any()


@pytest.mark.parametrize("name", ["transformer_xl", "adapted", "distance_aware"])
@given(seeds)
def test_a_segment_with_memory_equals_the_full_context(name, seed):
    variant, (query, key, value) = random_case(name, Sizes(queries=6, keys=6), seed)
    whole = run_attention(variant, query, key, value, is_causal=True).values
    second = run_attention(
        variant, query[:, 4:], key, value, is_causal=True, query_offset=jnp.int32(4)
    )
    chex.assert_trees_all_close(second.values, whole[:, 4:], **CLOSE)


@every_variant
def test_a_traced_offset_compiles_once_and_equals_a_constant_offset(name):
    variant, qkv = random_case(name, Sizes(), seed=1)
    traces = []

    @jax.jit
    def call(variant, query, key, value, offset):
        traces.append(1)
        return attention(query, key, value, variant, is_causal=True, query_offset=offset).values

    for offset in (3, -2):
        constant = run_attention(variant, *qkv, is_causal=True, query_offset=offset).values
        chex.assert_trees_all_close(call(variant, *qkv, jnp.int32(offset)), constant, **CLOSE)
    assert len(traces) == 1


@pytest.mark.parametrize("name", [name for name in VARIANTS if name != "dot_product"])
def test_vmap_over_models_equals_a_loop(name):
    models = [random_case(name, Sizes(), seed)[0] for seed in range(3)]
    _, qkv = random_case(name, Sizes(), seed=5)
    call = functools.partial(attention, received=True)
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *models)
    together = jax.jit(jax.vmap(call, in_axes=(None, None, None, 0)))(*qkv, stacked)
    one_by_one = [jax.jit(call)(*qkv, model) for model in models]
    chex.assert_trees_all_close(
        together, jax.tree.map(lambda *x: jnp.stack(x), *one_by_one), **CLOSE
    )


@every_variant
def test_a_mask_with_axes_of_size_1_equals_the_broadcast_mask(name, monkeypatch):
    variant, qkv = random_case(name, Sizes(), seed=2)
    mask = jnp.asarray(np.random.default_rng(0).random((1, 1, 5, 7)) < 0.6)
    whole = jnp.broadcast_to(mask, (2, 3, 5, 7))
    with select_implementation("xla in stored blocks", monkeypatch):
        narrow = run_attention(variant, *qkv, mask=mask)
        full = run_attention(variant, *qkv, mask=whole)
    chex.assert_trees_all_close(narrow, full, **CLOSE)


def test_numpy_arrays_are_accepted():
    variant, qkv = random_case("distance_aware", Sizes(), seed=4)
    as_numpy = jax.tree.map(np.asarray, (variant, qkv))
    lengths = np.asarray([7, 3])
    actual = attention(*as_numpy[1], as_numpy[0], key_lengths=lengths, query_offset=np.int32(1))
    expected = run_attention(
        variant, *qkv, key_lengths=jnp.asarray(lengths), query_offset=jnp.int32(1)
    )
    chex.assert_trees_all_close(actual.values, expected.values, **CLOSE)


def test_mirrored_inputs_give_mirrored_outputs_only_for_distance_aware():
    """Distance-aware scores depend on |i - j|, the others on the signed i - j."""
    sizes = Sizes(queries=6, keys=6)
    for name, mirrors in (("distance_aware", True), ("transformer_xl", False), ("adapted", False)):
        variant, qkv = random_case(name, sizes, seed=3)
        plain = run_attention(variant, *qkv).values
        mirrored = run_attention(variant, *(x[:, ::-1] for x in qkv)).values[:, ::-1]
        assert np.allclose(plain, mirrored, **CLOSE) == mirrors


def test_the_leaves_of_a_variant_are_its_arrays():
    assert len(jax.tree.leaves(DotProduct())) == 0
    assert len(jax.tree.leaves(DistanceAware(jnp.ones(3), jnp.ones(3)))) == 2
    assert len(jax.tree.leaves(RelativePosition(keys=jnp.ones((1, 3, 4))))) == 1
    assert len(jax.tree.leaves(TransformerXL(jnp.ones((3, 6, 4)), *[jnp.ones((1, 4))] * 2))) == 3
    assert len(jax.tree.leaves(Adapted(jnp.ones((3, 4)), jnp.ones((3, 4))))) == 2


@every_variant
def test_attention_over_parts_of_the_keys_merges_by_logsumexp(name):
    variant, (query, key, value) = random_case(name, Sizes(), seed=7)
    whole = run_attention(variant, query, key, value)
    # The second part begins at key 4, so that all of its positions are 4 less.
    parts = [
        run_attention(variant, query, key[:, :4], value[:, :4]),
        run_attention(variant, query, key[:, 4:], value[:, 4:], query_offset=jnp.int32(-4)),
    ]
    shares = jax.nn.softmax(jnp.stack([part.logsumexp for part in parts]), axis=0)
    merged = sum(
        share.transpose(0, 2, 1)[..., None] * part.values
        for share, part in zip(shares, parts, strict=True)
    )
    chex.assert_trees_all_close(merged, whole.values, **CLOSE)


def test_a_window_equals_the_mask_of_near_keys():
    variant, qkv = random_case("distance_aware", Sizes(), seed=8)
    distance = 2 + np.arange(5)[:, None] - np.arange(7)[None, :]
    for window in (1, (3, 0)):
        left, right = window if isinstance(window, tuple) else (window, window)
        mask = jnp.asarray((-right <= distance) & (distance <= left))[None, None]
        actual = run_attention(variant, *qkv, query_offset=2, local_window_size=window)
        expected = run_attention(variant, *qkv, query_offset=2, mask=mask)
        chex.assert_trees_all_close(actual, expected, **CLOSE)


def test_names_of_mappings_and_adjustments_stand_for_the_functions():
    named = DistanceAware(jnp.ones(3), (), mapping="sigmoid", adjust="late_add")
    assert named.mapping is sigmoid
    assert named.adjust is late_add


def test_lengths_beyond_the_arrays_do_not_count_the_padding_of_blocks(monkeypatch):
    variant, qkv = random_case("dot_product", Sizes(), seed=9)
    lengths = {"query_lengths": jnp.asarray([100, 5]), "key_lengths": jnp.asarray([7, 100])}
    with select_implementation("xla in recomputed blocks", monkeypatch):
        received = run_attention(variant, *qkv, **lengths).received
    np.testing.assert_allclose(received.sum(-1), 5, rtol=1e-5)


def test_a_second_call_outside_of_jit_compiles_nothing(monkeypatch):
    variant, qkv = random_case("distance_aware", Sizes(), seed=10)
    compilations = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **_: compilations.append(event) if "compile" in event else None
    )
    with select_implementation("xla in recomputed blocks", monkeypatch):
        attention(*qkv, variant, key_lengths=jnp.asarray([7, 3]))
        assert compilations
        compilations.clear()
        attention(*qkv, variant, key_lengths=jnp.asarray([7, 2]))
    assert not compilations


@pytest.fixture
def unchecked_types():
    """Disable the checks of type annotations. A symbolic size is not an `int`."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@every_variant
@pytest.mark.usefixtures("unchecked_types")
def test_exported_programs_accept_any_batch_and_length(name):
    variant, (query, key, value) = random_case(name, Sizes(), seed=11)
    B, T, S = jax.export.symbolic_shape("B, T, S")

    def call(query, key, value, mask, key_lengths):
        return attention(
            query, key, value, variant, mask=mask, key_lengths=key_lengths, received=True
        )

    def shape(sizes, like):
        return jax.ShapeDtypeStruct(sizes, like.dtype)

    mask = jnp.asarray(np.random.default_rng(0).random((2, 1, 5, 7)) < 0.7)
    lengths = jnp.asarray([7, 4])
    exported = jax.export.export(jax.jit(call))(
        shape((B, T, 3, 4), query),
        shape((B, S, 3, 4), key),
        shape((B, S, 3, 6), value),
        shape((B, 1, T, S), mask),
        shape((B,), lengths),
    )
    actual = exported.call(query, key, value, mask, lengths)
    chex.assert_trees_all_close(actual, call(query, key, value, mask, lengths), **CLOSE)
