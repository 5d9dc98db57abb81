"""Attention weights of a tile, dropout, and the gradient of the scores of a tile.

A tile has the shape (keys, queries).
"""

import functools

import jax
import jax.numpy as jnp

from distattn_jax.attention.fused.score_map import TileView, read_dropout_scale, read_lengths
from distattn_jax.attention.fused.tpu.kernel_body import BlockContext, Tile
from distattn_jax.attention.fused.tpu.registers import lane_indices, to_column
from distattn_jax.attention.fused.tpu.tile_view import (
    kept_by_dropout,
    read_table,
    view_visibility,
)


def compute_weights(view: TileView, logarithm: jax.Array) -> jax.Array:
    """Return 2^(score - logarithm) for visible entries, and 0 for masked entries.

    The scores are to base 2. The result has the shape (keys, queries).

    Args:
      view: Scores and visibility mask of a tile.
      logarithm: Number that is subtracted from all scores of a query, such as their maximum or
        logsumexp, shape (1, queries).
    """
    return zero_masked(jnp.exp2(view.log_weights - logarithm), view.visible)


def read_bias(context: BlockContext, tile: Tile) -> jax.Array | float:
    """Return the scores of a tile whose products q · k are treated as 0: the bias, or 0."""
    bias = context.score_map.scoring.score_zeros(functools.partial(read_table, tile))
    return 0.0 if bias is None else bias


def weigh_zero_products(context: BlockContext, tile: Tile, logarithm: jax.Array) -> jax.Array:
    """Return the weights of a tile whose products q · k are treated as 0, shape (keys, queries).

    They are 2^(bias - logarithm) for visible entries, and 0 for masked entries.

    Args:
      logarithm: Number that is subtracted from all scores (to base 2) of a query, such as their
        maximum or logsumexp, shape (1, queries).
    """
    weights = jnp.broadcast_to(jnp.exp2(read_bias(context, tile) - logarithm), tile.shape)
    return zero_masked(weights, view_visibility(context, tile))


def zero_masked(weights: jax.Array, visible: jax.Array | None) -> jax.Array:
    """Set the weights of masked entries to 0. If `visible` is None, all entries are visible."""
    return weights if visible is None else jnp.where(visible, weights, 0.0)


def compute_score_gradient(
    context: BlockContext,
    tile: Tile,
    weights: jax.Array,
    weight_gradient: jax.Array,
    *,
    per_query: jax.Array,
    per_key: jax.Array | None,
) -> jax.Array:
    """Return the gradient of the scores of a tile, A_ij (dO_i · V_j + g_j - D_i).

    i is a query and j is a key. The result has the shape (keys, queries). With dropout, dO_i · V_j
    is 0 for dropped weights and scaled for kept weights. The module `fused.kernels` explains the
    formula.

    Args:
      weights: Attention weights A_ij before dropout, shape (keys, queries).
      weight_gradient: Products dO_i · V_j, shape (keys, queries), where dO is the cotangent of the
        attention output.
      per_query: Numbers -D_i, shape (1, queries): see `BackwardOperands.negative_delta`.
      per_key: Numbers g_j, shape (1, keys): the cotangent of the attention that each key receives.
        None if g is 0.
    """
    if context.score_map.has_dropout:
        weight_gradient = drop(context, tile, weight_gradient)
        weight_gradient *= read_dropout_scale(context.scalars)
    if per_key is not None:
        weight_gradient += to_column(per_key)
    return weights * (weight_gradient + per_query)


def drop(context: BlockContext, tile: Tile, entries: jax.Array) -> jax.Array:
    """Set the entries of a tile that dropout drops to 0. Do not scale the entries that it keeps.

    Without dropout, return `entries` unchanged.
    """
    if not context.score_map.has_dropout:
        return entries
    return jnp.where(kept_by_dropout(context, tile), entries, 0.0)


def is_visible_key(context: BlockContext, keys: int) -> jax.Array:
    """Return a mask of shape (1, keys) that is True for keys that are not masked and not padding.

    Args:
      context: Data of a block of keys.
      keys: Number of keys of the block.
    """
    if context.score_map.has_key_mask:
        return context.load("key_mask") > 0
    return lane_indices((1, keys)) < read_lengths(context.scalars).key - context.start


def fill_with_zeros(context: BlockContext) -> None:
    """Fill all buffers in `context.scratch` with zeros."""
    for buffer in context.scratch.values():
        buffer[...] = jnp.zeros_like(buffer)
