"""Relative position attention: tables of relations, and the functions that avoid (T, S, H)."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distattn_jax.attention import DotProduct, RelativePosition, attention
from distattn_jax.attention.variants.relative_position import add_by_relation, sum_by_relation
from tests.attention.cases import CLOSE, Sizes, inputs, random_arrays, run_attention


def test_a_shared_table_equals_a_copy_per_head():
    sizes = Sizes()
    table, values = random_arrays(0, (1, 5, 4), (1, 5, 6), dtype="float32")
    shared = RelativePosition(table, values)
    copied = RelativePosition(jnp.tile(table, (3, 1, 1)), jnp.tile(values, (3, 1, 1)))
    qkv = inputs(sizes, "float32")
    chex.assert_trees_all_close(run_attention(shared, *qkv), run_attention(copied, *qkv), **CLOSE)


@given(st.integers(0, 2**31), st.integers(0, 4))
def test_tables_of_zeros_give_dot_product_attention(seed, k):
    qkv = inputs(Sizes(), "float32", seed)
    tables = jnp.zeros((3, 2 * k + 1, 4)), jnp.zeros((1, 2 * k + 1, 6))
    chex.assert_trees_all_close(
        run_attention(RelativePosition(*tables), *qkv), run_attention(DotProduct(), *qkv), **CLOSE
    )


@given(st.integers(0, 2**31))
def test_with_k_zero_the_key_table_has_no_effect_and_the_value_table_is_added(seed):
    qkv = inputs(Sizes(), "float32", seed)
    keys, values = random_arrays(seed, (3, 1, 4), (3, 1, 6), dtype="float32")
    plain = run_attention(DotProduct(), *qkv)
    same = run_attention(RelativePosition(keys=keys), *qkv)
    same = same._replace(logsumexp=plain.logsumexp)  # The table adds one number to all scores.
    chex.assert_trees_all_close(same, plain, **CLOSE)
    shifted = run_attention(RelativePosition(values=values), *qkv)
    chex.assert_trees_all_close(shifted.values, plain.values + values[:, 0][None, None], **CLOSE)


@pytest.mark.parametrize(("k", "offset"), [(0, 0), (1, 0), (1, -2), (3, 3), (3, 30), (9, -20)])
def test_add_by_relation_equals_a_gather_and_sum_by_relation_is_its_transpose(k, offset):
    queries, keys = 4, 6
    rows, weights = random_arrays(0, (queries, 2 * k + 1), (queries, keys), dtype="float32")
    row, column = np.indices((queries, keys))
    relation = np.clip(column - row - offset, -k, k) + k
    added = add_by_relation(jnp.zeros((queries, keys)), rows, jnp.int32(offset))
    np.testing.assert_allclose(added, np.take_along_axis(np.asarray(rows), relation, 1))
    summed = sum_by_relation(weights, k, jnp.int32(offset))
    np.testing.assert_allclose((summed * rows).sum(), (weights * added).sum(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("offset", [0, 3, -7])
def test_a_table_with_more_rows_than_relative_positions(offset):
    """The vectors of distances that do not occur have no effect, and a gradient of 0."""
    k, (queries, keys) = 9, (4, 6)
    table = random_arrays(0, (2, 2, 2 * k + 1, 4), dtype="float32")[0]
    qkv = random_arrays(1, (1, queries, 2, 4), (1, keys, 2, 4), (1, keys, 2, 4), dtype="float32")

    def attend(table, implementation):
        variant = RelativePosition(table[0], table[1])
        return attention(*qkv, variant, query_offset=offset, implementation=implementation).values

    cotangent = random_arrays(2, (1, queries, 2, 4), dtype="float32")[0]
    found, expected = (
        (lambda out, vjp: (out, vjp(cotangent)[0]))(*jax.vjp(lambda x, n=name: attend(x, n), table))
        for name in ("xla", "reference")
    )
    chex.assert_trees_all_close(found, expected, **CLOSE)
