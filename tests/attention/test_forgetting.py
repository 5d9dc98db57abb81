"""Reach of heads that forget distant keys, against a loop over the pairs of queries and keys."""

import jax.numpy as jnp
import numpy as np
import pytest

from distattn_jax.attention.fused.distance_functions import LOG2E
from distattn_jax.attention.fused.forgetting import find_reach
from distattn_jax.attention.fused.operands import Operands
from distattn_jax.attention.fused.visible_columns import UNBOUNDED
from tests.attention.cases import needs_kernels

pytestmark = needs_kernels
T, S, OFFSET, WIDTH = 24, 40, 9, 8
SLOPES = np.asarray([[1.5, 40.0], [0.01, 3.0]])  # of each head, before and after the query
POSITIONS = np.arange(-S, T + 1) + OFFSET  # position of the query minus position of the key


def make_operands(**replaced) -> Operands:
    """Return operands of ALiBi with a slope for each side, and a factor that falls."""
    generator = np.random.default_rng(0)
    query, key = (jnp.asarray(generator.normal(size=(1, n, 2, WIDTH)), jnp.float32) for n in (T, S))
    distance = np.abs(POSITIONS)
    bias = -np.where(POSITIONS >= 0, SLOPES[:, :1], SLOPES[:, 1:]) * distance
    factor = np.exp(-0.1 * distance) * np.ones((2, 1))
    derivative = np.maximum(np.abs(bias), distance)
    tables = {
        "factor_table": factor,
        "bias_table": bias,
        "factor_bound": np.maximum(factor, factor * distance),
        "bias_bound": derivative,
    }
    operands = Operands(
        query,
        key,
        key,
        jnp.zeros((1, 2, 0)),
        query_lengths=jnp.asarray([T]),
        key_lengths=jnp.asarray([S]),
        offset=jnp.asarray([OFFSET]),
        **{name: jnp.asarray(LOG2E * x[None], jnp.float32) for name, x in tables.items()},
    )
    return operands._replace(**replaced)


@pytest.mark.parametrize("is_rectified", [False, True])
@pytest.mark.parametrize("tolerance", [0.0, 2.0**-10])
def test_the_reach_is_the_smallest_distance_that_satisfies_the_bound(tolerance, is_rectified):
    operands = make_operands()
    found = find_reach(operands, tolerance, scale=1.0, is_rectified=is_rectified)
    query, key = (np.linalg.norm(x[0], axis=-1).max(axis=0) for x in operands[:2])
    names = ("factor_table", "bias_table", "factor_bound", "bias_bound")
    tables = [np.asarray(getattr(operands, name)[0], np.float64) for name in names]
    own = S - OFFSET  # index of the own key
    for head, side in np.ndindex(2, 2):
        f, g, f_bound, g_bound = (table[head] for table in tables)  # to base 2
        M, kept = query[head] * key[head], [0]
        lowest = g[own] - (0 if is_rectified else M * f[own])
        for x, position in enumerate(POSITIONS):
            exponent = M * f[x] + g[x] - lowest
            bound = max(T, S) * 2.0**exponent * max(1, M * f_bound[x], g_bound[x])
            is_forgotten = exponent <= -150 if tolerance == 0 else bound <= tolerance
            if (position > 0) == (side == 0) and not is_forgotten:
                kept.append(abs(position))
        assert found[0, head, side] == max(kept)
    assert (np.asarray(found) < S).all()
    assert found[0, 0, 0] > found[0, 0, 1], "the bias falls faster after the query"


SEGMENTS = np.arange(S)[None] // 20
HIDDEN = {
    "own key of the last query": {"key_lengths": jnp.asarray([OFFSET + T - 1])},
    "own key of the first query": {"offset": jnp.asarray([-1])},
    "own keys in other segments": {
        "query_segments": jnp.asarray(SEGMENTS[:, :T]),
        "key_segments": jnp.asarray(SEGMENTS),
    },
}
VISIBLE = {
    "query is padding": {
        "key_lengths": jnp.asarray([OFFSET + T - 1]),
        "query_lengths": jnp.asarray([T - 1]),
    },
    "own keys in the same segments": {
        "query_segments": jnp.asarray(SEGMENTS[:, OFFSET : OFFSET + T]),
        "key_segments": jnp.asarray(SEGMENTS),
    },
}


@pytest.mark.parametrize("name", HIDDEN | VISIBLE)
def test_a_query_without_its_own_key_forgets_nothing(name):
    operands = make_operands(**(HIDDEN | VISIBLE)[name])
    found = find_reach(operands, 0.25, scale=1.0, is_rectified=True)
    assert (np.asarray(found) == UNBOUNDED).all() == (name in HIDDEN)


def test_masks_of_keys_and_of_pairs_disable_forgetting():
    masks = {"key_mask": jnp.ones((1, 1, S), bool), "mask": jnp.ones((1, 1, T, S), jnp.int8)}
    for name, mask in masks.items():
        operands = make_operands(**{name: mask})
        assert find_reach(operands, 0.25, scale=1.0, is_rectified=True) is None
