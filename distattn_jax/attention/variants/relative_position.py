"""Relative position representations (Shaw, Uszkoreit and Vaswani 2018, eq. 3 and 4).

    score_ij = q_i · (k_j + a^K_ij) / √H         a^K_ij = keys[clip(j - i, -k, k) + k]
    z_i      = Σ_j α_ij (v_j + a^V_ij)           a^V_ij = values[clip(j - i, -k, k) + k]

The relation of query i and key j is r = clip(j - i, -k, k) + k, the index of their row in the
tables `keys` and `values`. It is from 0 to 2k.

The blockwise methods need no (T, S, H) array. For each query, q_i · a^K_ij has only 2k+1 different
values: `add_by_relation` adds them to the scores. The sum Σ_j α_ij a^V_ij is the matrix product
W @ values, where W[i, r] is the total weight of query i on keys of relation r: `sum_by_relation`
computes W. The two functions are transposes of each other.

If the tables have more than T + S rows, only the rows of the relative positions that occur are
used, and `skew` and `unskew` replace the two functions.

Extra cost: T min(2k+1, T+S) (H + E) multiplications.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from distattn_jax.attention.variants.skew import descending_positions, skew, unskew
from distattn_jax.attention.variants.variant import (
    Variant,
    compute_relative_positions,
    product,
    variant,
    weigh,
)


@variant
class RelativePosition(Variant):
    """Attention with relative position representations (Shaw et al. 2018).

    A learned vector is added to each key and to each value. It depends on j - i, clipped to the
    range from -k to k.

    Attributes:
      keys: Table of the 2k+1 vectors that are added to the keys. None adds nothing.
      values: Table of the 2k+1 vectors that are added to the values. None adds nothing.
    """

    keys: Float[Array, "#N _ H"] | None = None
    values: Float[Array, "#N _ E"] | None = None

    def __post_init__(self):
        for name in ("keys", "values"):
            table = getattr(self, name)
            shape = np.shape(table)
            if table is not None and (len(shape) != 3 or shape[1] % 2 == 0):
                raise ValueError(
                    f"RelativePosition.{name} must have shape (heads or 1, 2k+1, width), with an "
                    f"odd number of relations; got {shape}."
                )

    def scores(self, query, key, relative_positions, scale):
        if self.keys is None:
            return scale * product(query, key)
        keys = key[None] + self.keys[_relations(relative_positions, self.keys)]  # (T, S, H)
        return scale * jnp.einsum("th,tsh->ts", query, keys)

    def weighted_values(self, weights, value, relative_positions):
        if self.values is None:
            return super().weighted_values(weights, value, relative_positions)
        values = value[None] + self.values[_relations(relative_positions, self.values)]  # (T, S, E)
        return jnp.einsum("ts,tse->te", weights, values)

    def block_scores(self, query, prepared, offset, start, scale):
        scores = product(query, prepared)
        if self.keys is not None and _has_more_rows_than_positions(self.keys, scores.shape):
            scores += skew(product(query, _rows_of_positions(self.keys, scores.shape, offset)))
        elif self.keys is not None:
            scores = add_by_relation(scores, product(query, self.keys), offset)
        return scale * scores

    def block_weighted_values(self, weights, value, offset):
        values = weigh(weights, value)
        if self.values is not None and _has_more_rows_than_positions(self.values, weights.shape):
            values += unskew(weights) @ _rows_of_positions(self.values, weights.shape, offset)
        elif self.values is not None:
            k = self.values.shape[0] // 2
            values += sum_by_relation(weights, k, offset) @ self.values
        return values

    def with_plain_values(self):
        return dataclasses.replace(self, values=None)

    def check(self, heads, width, value_width):
        super().check(heads, width, value_width)
        for name, wanted in (("keys", width), ("values", value_width)):
            table = getattr(self, name)
            if table is not None and table.shape[2] != wanted:
                raise ValueError(
                    f"RelativePosition.{name} must be as wide as the {name[:-1]}s, {wanted}; "
                    f"got shape {table.shape}."
                )


def _has_more_rows_than_positions(table: Float[Array, "R W"], shape: tuple[int, ...]) -> bool:
    """Return True if a table has more than T + S rows, so that some rows are not used.

    Args:
      table: Table of 2k+1 vectors.
      shape: Number of queries and number of keys, (T, S). If one of them is symbolic, the result is
        False.
    """
    return all(isinstance(size, int) for size in shape) and table.shape[0] > sum(shape)


def _rows_of_positions(
    table: Float[Array, "R W"], shape: tuple[int, ...], offset: Int[Array, ""]
) -> Float[Array, "_ W"]:
    """Return one vector for each relative position of T queries and S keys, in the order of `skew`.

    Args:
      table: Table of 2k+1 vectors.
      shape: Number of queries and number of keys, (T, S).
      offset: Position of query 0 minus the position of key 0.

    Returns:
      T + S vectors. Vector c belongs to all pairs of query i and key j with j - i = c - (T - 1).
    """
    queries, keys = shape
    return table[_relations(descending_positions(queries, keys, offset), table)]


@jax.custom_jvp
def add_by_relation(
    scores: Float[Array, "T S"],
    relation_scores: Float[Array, "T relations"],
    offset: Int[Array, ""],
) -> Float[Array, "T S"]:
    """Return the (T, S) array scores[i, j] + relation_scores[i, clip(j - i - offset, -k, k) + k].

    On a GPU, a gather is faster than `add_around_band`. But the transpose of this gather, a sum of
    T S entries into T (2k+1), is slow. The derivative is therefore that of `add_around_band`.

    Args:
      scores: Scores of all pairs of query i and key j.
      relation_scores: One score for each query and each of the 2k+1 relations, the values of
        clip(j - i - offset, -k, k) + k.
      offset: Position of query 0 minus the position of key 0.
    """
    return jax.lax.platform_dependent(
        scores,
        relation_scores,
        offset,
        cuda=add_gathered,
        rocm=add_gathered,
        default=add_around_band,
    )


@add_by_relation.defjvp
def _add_by_relation_jvp(primals, tangents):
    """Return the output of `add_by_relation`, and its tangent, which is linear in both tangents."""
    (*_, offset), (scores, relation_scores, _) = primals, tangents
    return add_by_relation(*primals), add_around_band(scores, relation_scores, offset)


def add_gathered(
    scores: Float[Array, "T S"],
    relation_scores: Float[Array, "T relations"],
    offset: Int[Array, ""],
) -> Float[Array, "T S"]:
    """Compute `add_by_relation` with a gather of T S entries."""
    k = relation_scores.shape[1] // 2
    relations = jnp.clip(-compute_relative_positions(scores.shape, offset), -k, k) + k
    return scores + jnp.take_along_axis(relation_scores, relations, axis=1)


def add_around_band(
    scores: Float[Array, "T S"],
    relation_scores: Float[Array, "T relations"],
    offset: Int[Array, ""],
) -> Float[Array, "T S"]:
    """Compute `add_by_relation` without a gather of T S entries.

    In each row, the second term is constant where j - i - offset <= -k, and also where
    j - i - offset >= k. Only 2k-1 entries lie between.
    """
    k = relation_scores.shape[1] // 2
    if k == 0:
        return scores + relation_scores
    distance = -compute_relative_positions(scores.shape, offset)
    left, inner, right = jnp.split(relation_scores, (1, 2 * k), axis=1)
    scores = scores.at[_band_indices(scores.shape, k, offset)].add(inner, mode="drop")
    return scores + jnp.where(distance <= -k, left, jnp.where(distance >= k, right, 0))


def sum_by_relation(
    weights: Float[Array, "T S"], k: int, offset: Int[Array, ""]
) -> Float[Array, "T relations"]:
    """Return the (T, 2k+1) array W: W[i, r] sums weights[i, j] over the keys j of relation r.

    The relation of query i and key j is r = clip(j - i - offset, -k, k) + k, from 0 to 2k.

    Args:
      weights: Weights of all pairs of query i and key j.
      k: Distance beyond which all keys on the same side of the query have the same relation.
      offset: Position of query 0 minus the position of key 0.
    """
    if k == 0:
        return weights.sum(axis=1, keepdims=True)
    distance = -compute_relative_positions(weights.shape, offset)
    left = jnp.where(distance <= -k, weights, 0).sum(axis=1, keepdims=True)
    right = jnp.where(distance >= k, weights, 0).sum(axis=1, keepdims=True)
    inner = weights.at[_band_indices(weights.shape, k, offset)].get(mode="fill", fill_value=0)
    return jnp.concatenate([left, inner, right], axis=1)


def _relations(relative_positions: Int[Array, "*shape"], table: Array) -> Int[Array, "*shape"]:
    """Return the index of a row of the table, clip(j - i, -k, k) + k, for relative positions i - j.

    The table has 2k+1 rows.
    """
    k = table.shape[0] // 2
    return jnp.clip(-relative_positions, -k, k) + k


def _band_indices(shape: tuple[int, ...], k: int, offset: Int[Array, ""]) -> tuple[Array, Array]:
    """Return the row indices i and column indices j of the entries with |j - i - offset| < k.

    Each row i has 2k-1 entries. A negative column is replaced by S, which is out of bounds: a
    negative index would count from the end of the row.
    """
    queries, keys = shape
    row = jnp.arange(queries, dtype=jnp.int32)[:, None]
    band = jnp.arange(2 * k - 1, dtype=jnp.int32)[None, :] - (k - 1)
    column = row + offset + band
    return row, jnp.where(column < 0, keys, column)
