"""Fused kernels against the oracles and the reference: values, received attention, gradients.

Without a GPU the kernels run in the slow Pallas interpreter. There are few cases, and each of them
combines many restrictions.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from distattn_jax.attention import (
    MAPPINGS,
    Adapted,
    DistanceAware,
    DotProduct,
    attention,
    early_add,
)
from distattn_jax.attention.fused.gpu import tile_configs
from tests import oracles
from tests.attention.cases import TOLERANCE, Sizes, inputs, needs_kernels
from tests.attention.test_parity import kept_by_dropout
from tests.evaluation import evaluate, interpreted

pytestmark = needs_kernels
LOCAL_AND_DISTANT = jnp.asarray([-0.5, 0.5]), jnp.asarray([1.0, -0.5])  # w and v of two heads


@pytest.fixture(autouse=True)
def kernels(monkeypatch):
    """Interpret the kernels on a machine without a GPU.

    With one processor, one thread block of a persistent kernel computes all blocks of rows.
    """
    monkeypatch.setattr(tile_configs, "count_processors", lambda: 1)
    if jax.default_backend() == "gpu":
        yield
        return
    with interpreted():
        yield


def outputs_and_gradients(implementation, arrays, variant, **arguments):
    """Return the outputs, and the gradients of a weighted sum of all output entries, by name."""

    def loss(query, key, value, variant):
        attended = attention(query, key, value, variant, implementation=implementation, **arguments)
        total = jnp.float32(0)
        for output in jax.tree.leaves(attended):
            weights = jnp.sin(1 + jnp.arange(output.size, dtype=jnp.float32))
            total += (output.astype(jnp.float32) * weights.reshape(output.shape)).sum()
        return total, attended

    gradients, attended = jax.grad(loss, (0, 1, 2, 3), has_aux=True)(*arrays, variant)
    named = {"values": attended.values, "received": attended.received}
    if attended.logsumexp is not None:
        named["logsumexp"] = jnp.maximum(attended.logsumexp, -100)  # -inf without a visible key
    named |= dict(zip(("dq", "dk", "dv"), gradients, strict=False))
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradients[3]):
        named[f"d{jax.tree_util.keystr(path)}"] = leaf
    return {name: x for name, x in named.items() if x is not None}


def assert_close(actual: dict, expected: dict, dtype):
    """Assert that errors are small relative to the largest entry of each array; NaN fails."""
    for name, desired in expected.items():
        desired = np.asarray(desired, np.float64)
        error = np.abs(np.asarray(actual[name], np.float64) - desired).max()
        error /= max(np.abs(desired).max(), 1e-6)
        assert error <= TOLERANCE[dtype], f"{name}: {error:.1e}"


def compare_with_reference(arrays, variant, names=None, **arguments) -> dict[str, np.ndarray]:
    """Compare the kernels with the reference in float32, and return the outputs of the kernels.

    Args:
      arrays: Query, key and value.
      variant: Variant of attention.
      names: Names of the outputs and gradients to compare. None means all.
      **arguments: Further arguments of `attention`.
    """

    def compute(implementation, arrays):
        def program(arrays, variant):
            return outputs_and_gradients(implementation, arrays, variant, **arguments)

        return jax.tree.map(np.asarray, evaluate(program, arrays, variant))

    fused = compute("pallas", arrays)
    exact = compute("reference", [x.astype(jnp.float32) for x in arrays])
    expected = {name: exact[name] for name in names or exact}
    assert_close(fused, expected, str(arrays[0].dtype))
    return fused


def run_oracle(oracle, arrays, **arguments) -> dict[str, np.ndarray]:
    arrays, arguments = jax.tree.map(np.asarray, (arrays, arguments))
    values, received, *_ = oracles.attend(*arrays, **oracle, **arguments)
    return {"values": values, "received": received}


def make_mask(*shape: int) -> np.ndarray:
    """Return a random mask of the given shape, with some rows and columns that are all False."""
    mask = np.random.default_rng(5).random(shape) < 0.7
    if shape[2] > 1:
        mask &= (np.arange(shape[2]) % 50 != 7)[:, None]
    if shape[3] > 1:
        mask &= np.arange(shape[3]) % 50 != 9
    return mask


@pytest.fixture(params=["short", "long"])
def tile_sizes(request, monkeypatch):
    """Use the tile sizes of short or of long score maps."""
    if request.param == "long":
        monkeypatch.setattr(tile_configs, "MIN_LONG_LENGTH", 1)
    jax.clear_caches()  # compiled programs contain the tile sizes
    yield
    jax.clear_caches()


@pytest.mark.usefixtures("tile_sizes")
def test_dot_product_of_lengths_that_end_inside_a_tile():
    sizes = Sizes(batch=1, queries=130, keys=70, heads=1, width=16, value_width=32)
    arrays = inputs(sizes, "float16")
    fused = compare_with_reference(arrays, DotProduct(), received=True, logsumexp=True)
    assert_close(fused, run_oracle(oracles.dot_product(), arrays), "float16")


def test_thread_blocks_divide_the_blocks_of_rows(monkeypatch):
    """Four thread blocks compute six blocks of 128 queries or keys."""
    monkeypatch.setattr(tile_configs, "count_processors", lambda: 4)
    sizes = Sizes(batch=3, queries=130, keys=140, heads=1, width=16, value_width=16)
    compare_with_reference(inputs(sizes, "float16"), DotProduct(), is_causal=True)


def test_wide_heads():
    sizes = Sizes(batch=1, queries=70, keys=70, heads=2, width=128, value_width=72)
    unlimited = 2**31 - 1
    compare_with_reference(
        inputs(sizes, "float16"),
        DistanceAware(*LOCAL_AND_DISTANT),
        mask=make_mask(1, 1, 70, 70),
        local_window_size=(unlimited, 30),
        received=True,
    )


@pytest.mark.usefixtures("tile_sizes")
@pytest.mark.parametrize("tile_sizes", ["long"], indirect=True)
def test_adapted_attention_as_dot_products_of_twice_the_width():
    """Heads of 40 become heads of 80, but only 40 columns of the keys have a gradient."""
    sizes = Sizes(batch=2, queries=40, keys=50, heads=2, width=40, value_width=16)
    keys = jax.random.split(jax.random.key(1), 2)
    variant = Adapted(*(0.1 * jax.random.normal(key, (2, 40)) for key in keys))
    compare_with_reference(
        inputs(sizes, "float16"),
        variant,
        mask=make_mask(1, 1, 1, 50),
        query_offset=jnp.asarray([3, -5]),
        is_causal=True,
        scale=0.25,
    )


def test_adapted_attention_of_wide_heads():
    """Heads of 72 become heads of 144, but values and gradients of keys are narrower."""
    sizes = Sizes(batch=1, queries=40, keys=50, heads=1, width=72, value_width=16)
    variant = Adapted(*(0.1 * jnp.ones((2, 1, 72))))
    compare_with_reference(inputs(sizes, "float16"), variant, received=True, scale=0.1)


RESTRICTIONS = {
    "query_lengths": jnp.asarray([131, 140, 0]),
    "key_lengths": jnp.asarray([135, 0, 150]),
    "query_offset": jnp.asarray([-9, 3, 0]),
    "is_causal": True,
}


def inputs_with_large_padding(sizes: Sizes, dtype) -> list[jax.Array]:
    """Draw inputs whose padding is large, so that reading it would change the outputs."""
    query, key, value = inputs(sizes, dtype)

    def fill_padding(x, lengths):
        inside = jnp.arange(x.shape[1])[None, :] < lengths[:, None]
        return jnp.where(inside[:, :, None, None], x, 100)

    key_lengths = RESTRICTIONS["key_lengths"]
    query = fill_padding(query, RESTRICTIONS["query_lengths"])
    return [query, fill_padding(key, key_lengths), fill_padding(value, key_lengths)]


def assert_zero_where_masked(fused, sizes):
    """Assert zeros for queries without a visible key, and for keys that no query can see."""
    B, T, S, N, *_ = sizes
    lengths = [np.asarray(RESTRICTIONS[name]) for name in list(RESTRICTIONS)[:3]]
    visible = oracles.visible_pairs((B, N, T, S), None, *lengths)
    empty_query, masked_key = ~visible.any(axis=3), ~visible.any(axis=2)
    assert empty_query[0, 0].sum() == 9 + 9, "before the first key, and beyond the length"
    for name, masked in {
        "values": empty_query,
        "dq": empty_query,
        "dk": masked_key,
        "dv": masked_key,
    }.items():
        assert not fused[name].swapaxes(1, 2)[masked].any(), name
    if "received" in fused:
        assert not fused["received"][masked_key].any()


def test_distance_aware_under_every_restriction():
    sizes = Sizes(batch=3, queries=140, keys=150, heads=1, width=16, value_width=16)
    arrays = inputs_with_large_padding(sizes, "bfloat16")
    weight, shape = (x[1:] for x in LOCAL_AND_DISTANT)
    variant = DistanceAware(weight, shape)
    fused = compare_with_reference(arrays, variant, received=True, logsumexp=True, **RESTRICTIONS)
    oracle = oracles.distance_aware(weight, shape, "learnable_sigmoid", "early_multiply")
    assert_close(fused, run_oracle(oracle, arrays, **RESTRICTIONS), "bfloat16")
    assert_zero_where_masked(fused, sizes)


def test_a_mask_of_the_keys_of_each_head():
    """All scores of one head are 0 in far tiles, for the other head f is constant there."""
    sizes = Sizes(batch=1, queries=70, keys=380, heads=2, width=16, value_width=16)
    variant = DistanceAware(*LOCAL_AND_DISTANT, tolerance=2.0**-10)
    compare_with_reference(
        inputs(sizes, "float16"),
        variant,
        mask=make_mask(1, 2, 1, 380),
        key_lengths=jnp.asarray([370]),
        query_offset=260,
        received=True,
        logsumexp=True,
    )


def test_segments_with_a_window_and_a_mask_of_queries():
    """The examples have one segment, sorted segments and segments that are not sorted."""
    sizes = Sizes(batch=3, queries=70, keys=256, heads=2, width=16, value_width=16)
    i, j = jnp.arange(sizes.queries), jnp.arange(sizes.keys)
    compare_with_reference(
        inputs(sizes, "float16"),
        DistanceAware(*LOCAL_AND_DISTANT, tolerance=2.0**-10),
        query_segments=jnp.stack([0 * i, 69 + i // 64, i % 3]),
        key_segments=jnp.stack([0 * j, 69 + j // 128, j % 4]),
        mask=make_mask(1, 1, 70, 1),
        local_window_size=(170, 240),
        query_offset=jnp.asarray([186, -40, -60]),
        received=True,
        logsumexp=True,
    )


# The tests below use float16 for more precise gradients of the parameters. These are sums of many
# terms A (dO · V - D) of both signs, and D = dO · O contains the rounding errors of the values O.


def test_dropout_under_restrictions_drops_the_same_entries_as_the_oracle():
    """One head skips the far tiles before the query, for the other head f is constant there."""
    sizes = Sizes(batch=2, queries=70, keys=380, heads=2, width=24, value_width=20)
    arrays = inputs(sizes, "float16")
    rate, offset = 0.25, jnp.asarray([260, 290])
    lengths = {"key_lengths": jnp.asarray([370, 380]), "is_causal": True}
    fused = compare_with_reference(
        arrays,
        DistanceAware(*LOCAL_AND_DISTANT, tolerance=2.0**-10),
        query_lengths=jnp.asarray([70, 67]),
        query_offset=offset,
        dropout_rate=rate,
        dropout_key=jax.random.key(3),
        received=True,
        **lengths,
    )
    oracle = oracles.distance_aware(*LOCAL_AND_DISTANT, "learnable_sigmoid", "early_multiply")
    expected = run_oracle(  # of the last ten queries, because the oracle is slow
        oracle,
        [arrays[0][:, 60:], *arrays[1:]],
        query_lengths=jnp.asarray([10, 7]),
        query_offset=offset + 60,
        dropout_rate=rate,
        kept=kept_by_dropout(3, rate, sizes)[:, :, 60:],
        **lengths,
    )
    assert_close({"values": fused["values"][:, 60:]}, {"values": expected["values"]}, "float16")
    for name in ("values", "dq"):
        assert not fused[name][1, 67:].any(), "these queries are padding"


FAR_VARIANTS = {
    "f is not constant yet": DistanceAware(jnp.asarray([0.002]), jnp.asarray([2.0])),
    "f is negative": DistanceAware(jnp.asarray([0.5]), jnp.asarray([-1.0]), MAPPINGS["clip"]),
}


@pytest.mark.parametrize("name", FAR_VARIANTS)
def test_a_tolerance_changes_nothing_where_all_keys_are_far(name):
    sizes = Sizes(batch=1, queries=20, keys=40, heads=1, width=16, value_width=16)
    query, key, value = inputs(sizes, "float16")
    variant = dataclasses.replace(FAR_VARIANTS[name], tolerance=1e-3)
    # The gradients of the parameters are sums that are much smaller than their terms.
    names = ("values", "dq", "dk", "dv")
    compare_with_reference([8 * query, key, value], variant, names, query_offset=1000)


WEIGHT = jnp.asarray([0.03])
OTHER_VARIANTS = {
    "exponent": DistanceAware(WEIGHT, (), MAPPINGS["exponent"]),
    "linear": DistanceAware(WEIGHT, (jnp.asarray([0.8]), jnp.asarray([0.3])), MAPPINGS["linear"]),
    "clip": DistanceAware(WEIGHT, jnp.asarray([1.01]), MAPPINGS["clip"]),
    "early_add": DistanceAware(WEIGHT, jnp.asarray([0.4]), adjust=early_add),
}


@pytest.mark.parametrize("name", OTHER_VARIANTS)
def test_other_mappings_and_adjustments(name):
    sizes = Sizes(batch=1, queries=40, keys=50, heads=1, width=16, value_width=16)
    arrays, variant = inputs(sizes, "float16"), OTHER_VARIANTS[name]
    fused = compare_with_reference(arrays, variant)
    is_added = name == "early_add"
    mapping, adjust = ("learnable_sigmoid", name) if is_added else (name, "early_multiply")
    oracle = oracles.distance_aware(WEIGHT, variant.shape, mapping, adjust)
    assert_close(fused, {"values": run_oracle(oracle, arrays)["values"]}, "float16")


def test_vmap_over_seeds_and_scan_over_layers_match_the_reference():
    """Each of two layers of two seeds has its own arrays, w and v."""
    sizes = Sizes(batch=4, queries=20, keys=30, heads=1, width=16, value_width=16)
    arrays = [x.reshape(2, 2, 1, *x.shape[1:]) for x in inputs(sizes, "float16")]
    weight, shape = jnp.asarray([-0.5, 0.1, 0.5, -0.2]), jnp.asarray([1.0, 0.3, -0.5, 0.0])
    variant = jax.tree.map(lambda leaf: leaf.reshape(2, 2, 1), DistanceAware(weight, shape))

    def program(implementation, arrays, variant):
        def layer(_, layer):
            seeds = jax.vmap(lambda seed: outputs_and_gradients(implementation, *seed))
            return None, seeds(layer)

        return jax.lax.scan(layer, None, (arrays, variant))[1]

    fused = jax.jit(lambda *x: program("pallas", *x))(arrays, variant)
    exact = evaluate(
        functools.partial(program, "reference"), [x.astype(jnp.float32) for x in arrays], variant
    )
    for layer in np.ndindex(2, 2):
        actual, expected = (jax.tree.map(lambda x, at=layer: x[at], x) for x in (fused, exact))
        assert_close(actual, expected, "float16")


@pytest.mark.usefixtures("tile_sizes")
@pytest.mark.parametrize("tile_sizes", ["long"], indirect=True)
def test_grouped_queries_share_keys_and_values():
    """One head skips the far tiles, for the other head f is constant there.

    The far tiles of one example are after the query, those of the other example before it. The
    number of keys is a multiple of a tile, so that the kernels contain no code for padded keys.
    """
    sizes = Sizes(batch=2, queries=125, keys=256, heads=2, width=16, value_width=16, key_heads=1)
    variant = DistanceAware(*LOCAL_AND_DISTANT, tolerance=2.0**-10)
    offset = jnp.asarray([-67, 198])
    compare_with_reference(inputs(sizes, "float16"), variant, query_offset=offset, received=True)
