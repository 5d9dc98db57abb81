"""The fused kernels against the oracles and the reference: values, what is received, gradients.

Where there is no GPU they run in Pallas's interpreter, which is slow: few cases, each with many of
the things that can go wrong in it.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from distattn_jax.attention import MAPPINGS, DistanceAware, DotProduct, attention, early_add
from tests import oracles
from tests.attention.drawn import TOLERANCE, Sizes, inputs, needs_kernels
from tests.attention.test_parity import kept_by_dropout

pytestmark = needs_kernels


@pytest.fixture(autouse=True)
def kernels():
    """The GPU's own, or interpreted."""
    if jax.default_backend() == "gpu":
        yield
        return
    from distattn_jax.attention.fused.mosaic import (
        interpreted,
    )  # an older JAX has not what it needs

    with interpreted():
        yield


def outputs_and_gradients(implementation, arrays, variant, **arguments):
    """Outputs by name, and the gradients of a sum of them that weighs each entry differently."""

    def loss(query, key, value, variant):
        attended = attention(query, key, value, variant, implementation=implementation, **arguments)
        total = jnp.float32(0)
        for output in jax.tree.leaves(attended):
            signs = jnp.sin(1 + jnp.arange(output.size, dtype=jnp.float32))
            total += (output.astype(jnp.float32) * signs.reshape(output.shape)).sum()
        return total, attended

    gradients, attended = jax.jit(jax.grad(loss, (0, 1, 2, 3), has_aux=True))(*arrays, variant)
    named = {"values": attended.values, "received": attended.received}
    named |= {f"gradient of {name}": x for name, x in zip("qkv", gradients, strict=False)}
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradients[3]):
        named[f"gradient of {jax.tree_util.keystr(path)}"] = leaf
    return {name: np.asarray(x, np.float64) for name, x in named.items() if x is not None}


def assert_close(actual: dict, expected: dict, dtype):
    """Relative to the largest entry of an array; none may be NaN."""
    for name, wanted in expected.items():
        off = np.abs(actual[name] - wanted).max() / max(np.abs(wanted).max(), 1e-6)
        assert off <= TOLERANCE[dtype], f"{name} is off by {off:.1e} of its largest entry"


def by_both(arrays, variant, dtype, **arguments):
    """What the kernels give, held to the reference on the same numbers in float32."""
    fused = outputs_and_gradients("pallas", arrays, variant, **arguments)
    wide = [x.astype(jnp.float32) for x in arrays]
    assert_close(fused, outputs_and_gradients("reference", wide, variant, **arguments), dtype)
    return fused


def by_oracle(oracle, arrays, **arguments):
    arrays, arguments = jax.tree.map(np.asarray, (arrays, arguments))
    values, received, _ = oracles.attend(*arrays, **oracle, **arguments)
    return {"values": values, "received": received}


def test_dot_product_with_tails_in_every_block():
    sizes = Sizes(batch=1, queries=130, keys=70, heads=1, width=16, value_width=32)
    arrays = inputs(sizes, "float16")
    fused = by_both(arrays, DotProduct(), "float16", received=True)
    assert_close(fused, by_oracle(oracles.dot_product(), arrays), "float16")


RESTRICTIONS = {
    "query_lengths": jnp.asarray([131, 140, 0]),
    "key_lengths": jnp.asarray([135, 0, 150]),
    "query_offset": jnp.asarray([-9, 3, 0]),
    "is_causal": True,
}
NEAR_AND_FAR = jnp.asarray([-0.5, 0.5]), jnp.asarray([1.0, -0.5])


def restricted(sizes: Sizes, dtype) -> list[jax.Array]:
    """Inputs that are large where nothing should look at them."""
    query, key, value = inputs(sizes, dtype)
    asks = jnp.arange(sizes.queries)[None] < RESTRICTIONS["query_lengths"][:, None]
    exists = jnp.arange(sizes.keys)[None] < RESTRICTIONS["key_lengths"][:, None]
    query = jnp.where(asks[:, :, None, None], query, 100)
    key, value = (jnp.where(exists[:, :, None, None], x, 100) for x in (key, value))
    return [query, key, value]


def assert_nothing_where_nothing_is_seen(fused, sizes):
    B, T, S, N, *_ = sizes
    visible = oracles.visible_pairs(
        (B, N, T, S),
        None,
        *(
            np.asarray(RESTRICTIONS[name])
            for name in ("query_lengths", "key_lengths", "query_offset")
        ),
    )
    blind, unseen = ~visible.any(axis=3).swapaxes(1, 2), ~visible.any(axis=2)
    assert 9 < blind[0].sum() < T
    for name in ("values", "gradient of q"):
        assert not fused[name][blind].any(), name
    for name in ("gradient of k", "gradient of v"):
        assert not fused[name][unseen.swapaxes(1, 2)].any(), name
    assert not fused["received"][unseen].any() if "received" in fused else True


def test_distance_aware_under_every_restriction():
    sizes = Sizes(batch=3, queries=140, keys=150, heads=2, width=16, value_width=16)
    arrays = restricted(sizes, "bfloat16")
    variant = DistanceAware(*NEAR_AND_FAR)
    fused = by_both(arrays, variant, "bfloat16", received=True, **RESTRICTIONS)
    oracle = oracles.distance_aware(*NEAR_AND_FAR, "learnable_sigmoid", "early_multiply")
    assert_close(fused, by_oracle(oracle, arrays, **RESTRICTIONS), "bfloat16")
    assert_nothing_where_nothing_is_seen(fused, sizes)


def test_dropout_drops_what_the_others_drop():
    sizes = Sizes(batch=3, queries=140, keys=150, heads=2, width=24, value_width=20)
    arrays = restricted(sizes, "float16")
    dropout = {"dropout_rate": 0.3, "dropout_key": jax.random.key(3)}
    fused = by_both(arrays, DistanceAware(*NEAR_AND_FAR), "float16", **RESTRICTIONS, **dropout)
    oracle = oracles.distance_aware(*NEAR_AND_FAR, "learnable_sigmoid", "early_multiply")
    expected = by_oracle(
        oracle, arrays, **RESTRICTIONS, kept=kept_by_dropout(3, 0.3, sizes), dropout_rate=0.3
    )
    assert_close(fused, {"values": expected["values"]}, "float16")
    assert_nothing_where_nothing_is_seen(fused, sizes)


@pytest.mark.parametrize("is_causal", [False, True])
def test_where_f_has_saturated_nothing_changes(is_causal):
    """One head that averages what is far, one to which all that is far is the same."""
    sizes = Sizes(batch=1, queries=300, keys=300, heads=2, width=16, value_width=16)
    arrays = inputs(sizes, "float16")
    saturating = DistanceAware(*NEAR_AND_FAR, tolerance=2.0**-10)
    fused = by_both(arrays, saturating, "float16", received=True, is_causal=is_causal)
    everywhere = dataclasses.replace(saturating, tolerance=0.0)
    exact = outputs_and_gradients("pallas", arrays, everywhere, received=True, is_causal=is_causal)
    assert_close(fused, exact, "float16")


SHAPES = {
    "sigmoid": (),
    "exponent": (),
    "linear": (jnp.asarray([0.8]), jnp.asarray([0.3])),
    "clip": jnp.asarray([1.01]),
}


@pytest.mark.parametrize("name", [*SHAPES, "early_add"])
def test_other_mappings_and_adjustments(name):
    sizes = Sizes(batch=1, queries=40, keys=50, heads=1, width=16, value_width=16)
    weight = jnp.asarray([0.03])
    if name == "early_add":
        variant = DistanceAware(weight, jnp.asarray([0.4]), adjust=early_add)
        oracle = oracles.distance_aware(weight, variant.shape, "learnable_sigmoid", name)
    else:
        variant = DistanceAware(weight, SHAPES[name], mapping=MAPPINGS[name])
        oracle = oracles.distance_aware(weight, variant.shape, name, "early_multiply")
    arrays = inputs(sizes, "float16")
    fused = by_both(arrays, variant, "float16", received=True)
    assert_close(fused, by_oracle(oracle, arrays), "float16")
