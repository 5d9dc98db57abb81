"""Guides on attention maps: squared error to a target (after Deshpande and Narasimhan 2020).

    loss = 1/(layers · heads · rows) Σ_layer Σ_head Σ_i Σ_j (A_ij - P_ij)²

over the chosen layers and heads, the rows i that have a target and the keys j that are no padding:
the mean squared distance of two distributions, from 0 to 2 whatever the model and the length.
Rows without a target are left out; against a row of zeros they would be pushed to be uniform.
Cost: it needs the maps, (B L N T S), which the guides on received attention never store.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from distattn_jax.attention import promote
from distattn_jax.guiding.choice import chosen, layers_of
from distattn_jax.guiding.examples import check_shape, valid


class Target(NamedTuple):
    """Where the attention should go.

    Attributes:
      rows: True for the queries that have a target.
      weights: how much of their attention each key should get; each such row sums to 1.
    """

    rows: Bool[Array, "B T"]
    weights: Float[Array, "B T S"]


def shared(strengths: Float[Array, "B T S"], lengths: Int[Array, " B"]) -> Target:
    """The target in which every row is shared among its keys in proportion to their strengths.

    Args:
      strengths: at least 0; a row of zeros has no target.
      lengths: right padding: neither a query nor a key from there on counts.
    """
    sizes: dict[str, int] = {}
    check_shape("strengths", strengths, "B T S", sizes)
    check_shape("lengths", lengths, "B", sizes)
    queries, keys = strengths.shape[1:]
    counts = valid(lengths, queries)[:, :, None] & valid(lengths, keys)[:, None, :]
    strengths = jnp.where(counts, strengths, 0)
    total = strengths.sum(axis=-1, keepdims=True)
    return Target(total[..., 0] > 0, strengths / jnp.where(total > 0, total, 1))


def pattern_loss(
    weights: Float[Array, "B L N T S"],
    target: Target,
    lengths: Int[Array, " B"],
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
) -> Float[Array, " B"]:
    """Squared error of the chosen heads' maps, a mean over heads, layers and rows with a target.

    Args:
      weights: the attention maps of all heads of all layers.
      target: where they should go.
      lengths: right padding: neither a query nor a key from there on counts.
      layers: the layers that are guided; None: all.
      heads: the heads that are guided in each of them; None: the first half, rounded up.

    Returns:
      One loss per example; 0 where no row has a target.
    """
    sizes: dict[str, int] = {}
    check_shape("weights", weights, "B L N T S", sizes)
    check_shape("target.rows", target.rows, "B T", sizes)
    check_shape("target.weights", target.weights, "B T S", sizes)
    check_shape("lengths", lengths, "B", sizes)
    weights = layers_of(weights, layers)
    _, kept_layers, head_count, queries, keys = weights.shape
    guided = range((head_count + 1) // 2) if heads is None else heads
    places = chosen("heads", guided, head_count)
    rows = target.rows & valid(lengths, queries)
    counts = rows[:, :, None] & valid(lengths, keys)[:, None, :]

    dtype = promote(weights.dtype)
    error = weights.astype(dtype) - target.weights.astype(dtype)[:, None, None]
    error = jnp.square(jnp.where(counts[:, None, None], error, 0)).sum(axis=(1, 3, 4))  # (B N)
    is_guided = jnp.asarray([head in places for head in range(head_count)])
    total = jnp.where(is_guided[None, :], error, 0).sum(axis=-1)
    return total / (kept_layers * len(places) * jnp.maximum(rows.sum(axis=-1), 1))
