"""Relative position attention: its tables, and skew and other functions that avoid (T, S, H)."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distattn_jax.attention import DotProduct, RelativePosition, attention
from distattn_jax.attention.variants.relative_position import (
    add_by_relation,
    add_gathered,
    sum_by_relation,
)
from distattn_jax.attention.variants.skew import skew, unskew
from tests.attention.cases import CLOSE, Sizes, inputs, random_arrays, run_attention


@given(st.integers(0, 2**31))
def test_tables_of_zeros_give_dot_product_attention(seed):
    qkv = inputs(Sizes(), "float32", seed)
    tables = jnp.zeros((3, 5, 4)), jnp.zeros((1, 5, 6))
    chex.assert_trees_all_close(
        run_attention(RelativePosition(*tables), *qkv), run_attention(DotProduct(), *qkv), **CLOSE
    )


@given(st.integers(0, 2**31))
def test_with_k_zero_the_key_table_has_no_effect_and_the_value_table_is_added(seed):
    qkv = inputs(Sizes(), "float32", seed)
    tables = random_arrays(seed, (3, 1, 4), (3, 1, 6), dtype="float32")
    plain = jax.device_get(run_attention(DotProduct(), *qkv))
    shifted = run_attention(RelativePosition(*tables), *qkv)
    # The first table adds one number to all scores of a query.
    expected = plain._replace(
        values=plain.values + np.asarray(tables[1])[None, None, :, 0], logsumexp=shifted.logsumexp
    )
    chex.assert_trees_all_close(shifted, expected, **CLOSE)


@pytest.mark.parametrize(("k", "offsets"), [(0, [0]), (1, [0, -2]), (3, [3, 30]), (9, [-20])])
def test_add_by_relation_equals_a_gather_and_sum_by_relation_is_its_transpose(k, offsets):
    queries, keys = 4, 6
    rows, weights = random_arrays(0, (queries, 2 * k + 1), (queries, keys), dtype="float32")

    @jax.jit
    def add_and_sum(offset):
        zeros = jnp.zeros((queries, keys))
        added = [add(zeros, rows, offset) for add in (add_by_relation, add_gathered)]
        return added, sum_by_relation(weights, k, offset)

    for offset in offsets:
        row, column = np.indices((queries, keys))
        relation = np.clip(column - row - offset, -k, k) + k
        (added, gathered), summed = jax.device_get(add_and_sum(jnp.int32(offset)))
        np.testing.assert_allclose(added, np.take_along_axis(np.asarray(rows), relation, 1))
        np.testing.assert_array_equal(gathered, added)
        np.testing.assert_allclose(
            np.vdot(summed, rows), np.vdot(weights, added), rtol=1e-4, atol=1e-5
        )


def test_a_table_with_more_rows_than_relative_positions():
    """The vectors of distances that do not occur have no effect, and a gradient of 0."""
    k, sizes = 9, Sizes(batch=1, queries=4, keys=6, heads=2, value_width=4)
    table, cotangent = random_arrays(0, (2, 2, 2 * k + 1, 4), (1, 4, 2, 4), dtype="float32")
    qkv = inputs(sizes, "float32")

    @functools.partial(jax.jit, static_argnames="implementation")
    def outputs_and_gradient(offset, implementation):
        def attend(table):
            variant, options = RelativePosition(*table), {"query_offset": offset}
            return attention(*qkv, variant, **options, implementation=implementation).values

        values, pull = jax.vjp(attend, table)
        return values, pull(cotangent)

    for offset in (0, 3, -7):
        found, expected = (outputs_and_gradient(offset, name) for name in ("xla", "reference"))
        chex.assert_trees_all_close(found, expected, **CLOSE)


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 5), (4, 1), (3, 7), (7, 3), (5, 5)])
def test_skew_equals_a_gather_and_unskew_is_its_transpose(queries, keys):
    by_position, by_key = jax.device_get(
        random_arrays(0, (queries, queries + keys), (queries, keys), dtype="float32")
    )
    row, column = np.indices((queries, keys))

    @jax.jit
    def run(by_position, by_key):
        skewed, pull = jax.vjp(skew, by_position)
        return skewed, unskew(by_key), *pull(by_key)

    skewed, actual, expected = run(by_position, by_key)
    np.testing.assert_array_equal(skewed, by_position[row, queries - 1 - row + column])
    np.testing.assert_array_equal(actual, expected)


def test_derivatives_of_add_by_relation_are_those_of_a_gather():
    scores, rows, change = random_arrays(5, (7, 9), (7, 5), (7, 5), dtype="float32")

    def derivatives(add):
        def loss(rows):
            return jnp.sin(add(scores, rows, jnp.int32(1))).sum()

        return jax.jvp(jax.grad(loss), (rows,), (change,))

    actual, expected = jax.jit(lambda: tuple(map(derivatives, (add_by_relation, add_gathered))))()
    chex.assert_trees_all_close(actual, expected, **CLOSE)


@pytest.mark.parametrize(("platform", "gathers"), [("cuda", True), ("rocm", True), ("cpu", False)])
def test_only_gpus_gather_all_entries(platform, gathers):
    arrays = jnp.zeros((7, 9)), jnp.zeros((7, 5)), jnp.int32(1)
    lowered = jax.jit(add_by_relation).trace(*arrays).lower(lowering_platforms=(platform,))
    assert ("scatter" not in lowered.as_text()) == gathers
