"""Relative position representations (Shaw, Uszkoreit and Vaswani 2018, eq. 3 and 4).

    score_ij = q_i · (k_j + a^K_ij) / √H         a^K_ij = keys[clip(j - i, -k, k) + k]
    z_i      = Σ_j α_ij (v_j + a^V_ij)           a^V_ij = values[clip(j - i, -k, k) + k]

No (T, S, H) tensor is needed: q_i · a^K_ij takes one of 2k+1 numbers per query, and the values' sum
is W a^V with W[i, r] the weight that query i gives to relation r. `spread` writes the first out,
`collect` gathers the second; each is the other's transpose. Extra cost: T (2k+1) (H + E) products.
"""

import math

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from distattn_jax.attention.variants.variant import (
    Variant,
    compute_relative_positions,
    product,
    variant,
)


@variant
class RelativePosition(Variant):
    """Dot-product attention with learned vectors for the relation j - i, clipped at ±k.

    Attributes:
      keys: a^K for relations -k .. k, or None for no such term.
      values: a^V for relations -k .. k, or None for no such term.
    """

    keys: Float[Array, "#N _ H"] | None = None
    values: Float[Array, "#N _ E"] | None = None

    def __post_init__(self):
        for name in ("keys", "values"):
            table = getattr(self, name)
            if table is not None and (table.ndim != 3 or table.shape[1] % 2 == 0):
                raise ValueError(
                    f"RelativePosition.{name} must have shape (heads or 1, 2k+1, width), with an "
                    f"odd number of relations; got {table.shape}."
                )

    def scores(self, query, key, relative_positions):
        if self.keys is None:
            return product(query, key) / math.sqrt(query.shape[-1])
        related = key[None] + self.keys[_relation(relative_positions, self.keys)]  # (T, S, H)
        return jnp.einsum("th,tsh->ts", query, related) / math.sqrt(query.shape[-1])

    def weighted_values(self, weights, value, relative_positions):
        if self.values is None:
            return super().weighted_values(weights, value, relative_positions)
        related = value[None] + self.values[_relation(relative_positions, self.values)]  # (T, S, E)
        return jnp.einsum("ts,tse->te", weights, related)

    def block_scores(self, query, prepared, offset, start):
        scores = product(query, prepared)
        if self.keys is not None:
            scores = spread(product(query, self.keys), scores, offset)
        return scores / math.sqrt(query.shape[-1])

    def block_weighted_values(self, weights, value, offset):
        values = weights @ value.astype(weights.dtype)
        if self.values is not None:
            values += collect(weights, self.values.shape[0] // 2, offset) @ self.values
        return values

    def check(self, heads, width, value_width):
        super().check(heads, width, value_width)
        for name, wanted in (("keys", width), ("values", value_width)):
            table = getattr(self, name)
            if table is not None and table.shape[2] != wanted:
                raise ValueError(
                    f"RelativePosition.{name} must be as wide as the {name[:-1]}s, {wanted}; "
                    f"got shape {table.shape}."
                )


def spread(
    rows: Float[Array, "T relations"], onto: Float[Array, "T S"], offset: Int[Array, ""]
) -> Float[Array, "T S"]:
    """onto[i, j] + rows[i, clip(j - i - offset, -k, k) + k]: two constants and a band."""
    k = rows.shape[1] // 2
    if k == 0:
        return onto + rows
    relation = -compute_relative_positions(onto.shape, offset)
    left, inner, right = rows[:, :1], rows[:, 1:-1], rows[:, -1:]
    onto = onto.at[_band(onto.shape, k, offset)].add(inner, mode="drop")
    return onto + jnp.where(relation <= -k, left, jnp.where(relation >= k, right, 0))


def collect(
    weights: Float[Array, "T S"], k: int, offset: Int[Array, ""]
) -> Float[Array, "T relations"]:
    """out[i, r + k] = sum of weights[i, j] over the keys with clip(j - i - offset, -k, k) = r."""
    relation = -compute_relative_positions(weights.shape, offset)
    if k == 0:
        return weights.sum(axis=1, keepdims=True)
    left = jnp.where(relation <= -k, weights, 0).sum(axis=1, keepdims=True)
    right = jnp.where(relation >= k, weights, 0).sum(axis=1, keepdims=True)
    inner = weights.at[_band(weights.shape, k, offset)].get(mode="fill", fill_value=0)
    return jnp.concatenate([left, inner, right], axis=1)


def _relation(relative_positions: Int[Array, "T S"], table: Array) -> Int[Array, "T S"]:
    k = table.shape[0] // 2
    return jnp.clip(-relative_positions, -k, k) + k


def _band(shape: tuple[int, ...], k: int, offset: Int[Array, ""]) -> tuple[Array, Array]:
    """Indices (i, j) of the relations -k+1 .. k-1 of every query; S where there is no such key."""
    queries, keys = shape
    row = jnp.arange(queries, dtype=jnp.int32)[:, None]
    column = row + offset + (jnp.arange(2 * k - 1, dtype=jnp.int32) - (k - 1))[None, :]
    return row, jnp.where(column < 0, keys, column)
