"""Squared error between attention weights and a target (after Deshpande and Narasimhan 2020).

    loss = 1/(layers · heads · queries) Σ_layer Σ_head Σ_i Σ_j (A_ij - P_ij)²

The sums run over the selected layers and heads, over the queries i that have a target, and over the
valid keys j. The loss lies between 0 and 2 for any model and length. Queries without a target are
excluded: an error against a row of zeros would push their attention towards the uniform
distribution.

Cost: the attention weights (B, L, N, T, S) must be stored. The losses of `guiding.received` store
only the attention that each key receives.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from distattn_jax.attention import promote
from distattn_jax.guiding.arguments import (
    check_lengths,
    check_shape,
    padding_mask,
    resolve_indices,
    select_layers,
)


class Target(NamedTuple):
    """Attention weights that a model is trained to reproduce.

    Attributes:
      rows: True for the queries that have a target.
      weights: Target distribution of each query (T) over the keys (S). The weights of a query sum
        to 1, or are all 0 if the query has no target.
    """

    rows: Bool[Array, "B T"]
    weights: Float[Array, "B T S"]


def make_target(scores: Float[Array, "B T S"], lengths: Int[Array, " B"]) -> Target:
    """Normalize nonnegative scores to a target distribution for each query.

    Args:
      scores: Score of each pair of query and key, at least 0. A query whose scores are all 0 has no
        target.
      lengths: Number of valid positions of each example. The rest is padding, whose scores are
        ignored.
    """
    sizes: dict[str, int] = {}
    check_shape("scores", scores, "B T S", sizes)
    queries, keys = scores.shape[1:]
    lengths = check_lengths(lengths, sizes["B"], max(queries, keys))
    is_valid = padding_mask(lengths, queries)[:, :, None] & padding_mask(lengths, keys)[:, None, :]
    scores = jnp.where(is_valid, scores, 0)
    total = scores.sum(axis=-1, keepdims=True)
    return Target(total[..., 0] > 0, scores / jnp.where(total > 0, total, 1))


def pattern_loss(
    weights: Float[Array, "B L N T S"],
    target: Target,
    lengths: Int[Array, " B"],
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
) -> Float[Array, " B"]:
    """Return the mean squared error between attention weights and their targets.

    Squared errors are summed over keys and averaged over layers, heads and queries.

    Args:
      weights: Attention weights, shape (B, L, N, T, S).
      target: Target weights. Queries without a target do not contribute.
      lengths: Number of valid positions of each example. The rest is padding.
      layers: Indices of the layers that contribute. None selects all.
      heads: Indices of the heads that contribute in each layer. None selects the first half of the
        heads, rounded up.

    Returns:
      Loss of each example, 0 for an example in which no query has a target.
    """
    sizes: dict[str, int] = {}
    check_shape("weights", weights, "B L N T S", sizes)
    check_shape("target.rows", target.rows, "B T", sizes)
    check_shape("target.weights", target.weights, "B T S", sizes)
    lengths = check_lengths(lengths, sizes["B"], max(sizes["T"], sizes["S"]))
    weights = select_layers(weights, layers)
    _, layer_count, head_count, queries, keys = weights.shape
    selected = range((head_count + 1) // 2) if heads is None else heads
    head_indices = resolve_indices("heads", selected, head_count)
    rows = target.rows & padding_mask(lengths, queries)
    contributes = rows[:, :, None] & padding_mask(lengths, keys)[:, None, :]

    dtype = promote(weights.dtype)
    error = weights.astype(dtype) - target.weights.astype(dtype)[:, None, None]
    error = jnp.square(jnp.where(contributes[:, None, None], error, 0)).sum(axis=(1, 3, 4))  # (B N)
    is_selected = jnp.asarray([head in head_indices for head in range(head_count)])
    total = jnp.where(is_selected[None, :], error, 0).sum(axis=-1)
    return total / (layer_count * len(head_indices) * jnp.maximum(rows.sum(axis=-1), 1))
