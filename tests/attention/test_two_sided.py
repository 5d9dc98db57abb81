"""Attention with two sides: special cases, parameters that go astray, and errors."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from distattn_jax.attention import DistanceAware, DistanceBias, T5Buckets, TwoSided, attention
from tests.attention.cases import CLOSE, Sizes, inputs, random_arrays

HEADS = 3
QKV = inputs(Sizes(queries=9, keys=9), "float32")
W, V, C, A, B = (x for x in random_arrays(2, *[(HEADS, 2)] * 5, dtype="float32"))


def values(variant, **arguments):
    return attention(*QKV, variant, **arguments).values


def both(x):
    """Return an array (N, 2) with the same numbers on both sides."""
    return jnp.stack((x, x), axis=1)


def test_equal_sides_give_distance_aware_attention():
    w, v = W[:, 0], V[:, 0]
    found = values(TwoSided(both(w), both(v)))
    chex.assert_trees_all_close(found, values(DistanceAware(w, v)), **CLOSE)
    linear = TwoSided(both(w), (both(v), both(v)), mapping="linear")
    wanted = DistanceAware(w, (v, v), mapping="linear")
    chex.assert_trees_all_close(values(linear), values(wanted), **CLOSE)


def test_equal_sides_without_a_factor_give_a_distance_bias():
    pair = jnp.abs(A[:, 0]), jnp.abs(B[:, 0])
    for name, one in (("kerple_log", pair), ("alibi", pair[0])):
        two = jax.tree.map(both, one)
        found = values(TwoSided(None, (), (two,), (name,), rectify=False))
        chex.assert_trees_all_close(found, values(DistanceBias(one, name)), **CLOSE)


def test_two_tables_of_buckets_are_the_table_of_t5():
    (table,) = random_arrays(3, (HEADS, 32), dtype="float32")
    variant = TwoSided(None, (), (table.reshape(HEADS, 2, 16),), ("t5_buckets",), rectify=False)
    assert variant.bias == (T5Buckets(16, 128, is_causal=True),)
    chex.assert_trees_all_close(values(variant), values(DistanceBias(table, "t5_buckets")), **CLOSE)


def test_a_causal_mask_leaves_only_the_parameters_of_the_side_before():
    def loss(variant):
        return jnp.sum(values(variant, is_causal=True) ** 2)

    variant = TwoSided(W, V, (C, (A, B)), ("constant", "kerple_log"))
    gradient = jax.grad(loss)(variant)
    for leaf in jax.tree.leaves(gradient):
        assert jnp.all(leaf[:, 1] == 0)
    assert jnp.any(gradient.bias_parameters[0][:, 0] != 0)


@pytest.mark.parametrize("function", ["kerple_log", "kerple_power"])
def test_decays_outside_of_their_range_are_limited_and_have_finite_gradients(function):
    def loss(parameters):
        return jnp.sum(values(TwoSided(W, V, (parameters,), (function,))) ** 2)

    astray = jnp.full((HEADS, 2), -3.0), jnp.full((HEADS, 2), -1.0)
    limited = jnp.full((HEADS, 2), 0.01), jnp.full((HEADS, 2), 0.01)
    np.testing.assert_allclose(loss(astray), loss(limited), rtol=1e-6)
    chex.assert_tree_all_finite(jax.grad(loss)(astray))


ERRORS = {
    "TwoSided.weight must have shape (3 or 1, 2, ...): axis 1": lambda: TwoSided(W[:, :1], V),
    "TwoSided.weight must have shape (3 or 1, 2); got (3, 2, 1)": lambda: TwoSided(
        W[:, :, None], V
    ),
    "TwoSided.shape must have shape (3 or 1, 2, ...)": lambda: TwoSided(W, V[:, 0]),
    "TwoSided.bias_parameters[0] must have shape": lambda: TwoSided(
        W, V, (C.T[:1].repeat(3, 0),), ("constant",)
    ),
    "TwoSided.weight must be an array that leads with the head axis": lambda: TwoSided(W[:2], V),
    "bias must be a tuple of functions or names": lambda: TwoSided(W, V, (C,), "constant"),
    "function must be one of alibi, ": lambda: TwoSided(W, V, (C,), ("constnat",)),
    "bias_parameters must be a tuple with one entry for each of the 2": lambda: TwoSided(
        W, V, (C,), ("constant", "alibi")
    ),
    "mapping must be one of learnable_sigmoid, ": lambda: TwoSided(W, V, mapping="sigmoyd"),
    "rectify must be True or False; got 'no'": lambda: TwoSided(W, V, rectify="no"),
    "tolerance must be None or at least 0; got -1": lambda: TwoSided(W, V, tolerance=-1),
    "shape must be () if weight is None": lambda: TwoSided(None, V),
}


@pytest.mark.parametrize("message", ERRORS)
def test_errors_name_the_argument(message, without_shape_checker):
    with pytest.raises((TypeError, ValueError)) as caught:
        values(ERRORS[message]())
    assert message in str(caught.value)
