"""Squared error between attention weights and target weights (Deshpande and Narasimhan 2020).

    loss = 1/(layers · heads · queries) Σ_layer Σ_head Σ_i Σ_j (A_ij - P_ij)²

A_ij are the attention weights of a head, and P_ij are the target weights, which are the same for
all layers and heads. The sums run over the selected layers and heads, over the queries i that have
a target, and over the valid keys j. The loss lies between 0 and 2 for any model and length. Queries
without a target are excluded, because a target of zeros would push their attention towards the
uniform distribution.

Cost: the attention weights must be stored, shape (B, L, N, T, S). The losses of `guiding.received`
store only the sums over the queries, shape (B, L, N, S).
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
    """Target of attention: weights that selected heads of a model are trained to reproduce.

    Attributes:
      rows: True for the queries that have a target.
      weights: Target weights of the T queries over the S keys. The weights of a query sum to 1, or
        are all 0 if the query has no target.
    """

    rows: Bool[Array, "B T"]
    weights: Float[Array, "B T S"]


def make_target(scores: Float[Array, "B T S"], lengths: Int[Array, " B"]) -> Target:
    """Divide the scores of each query by their sum, to make target weights that sum to 1.

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
    """Return the squared error between attention weights and target weights.

    The squared errors are summed over keys, and averaged over layers, heads and queries.

    Args:
      weights: Attention weights, shape (B, L, N, T, S).
      target: Target weights, the same for all heads. Queries without a target do not contribute.
      lengths: Number of valid positions of each example. The rest is padding.
      layers: Indices of the layers that contribute. None selects all.
      heads: Indices of the heads that contribute in each layer. None selects the first half of the
        heads, rounded up.

    Returns:
      Loss of each example. It is 0 for an example in which no query has a target.
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
