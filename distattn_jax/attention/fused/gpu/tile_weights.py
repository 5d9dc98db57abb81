"""Attention weights of a tile, dropout, and the gradient of the scores of a tile."""

import functools
import operator

import jax
import jax.numpy as jnp

from distattn_jax.attention.fused.gpu import mosaic
from distattn_jax.attention.fused.gpu.kernel_body import Tile, WarpgroupContext
from distattn_jax.attention.fused.gpu.tile_view import kept_by_dropout, view_visibility
from distattn_jax.attention.fused.score_map import TileView, read_dropout_scale, read_lengths

Shape = tuple[int, int]  # rows and columns of a tile


def compute_weights(view: TileView, logarithm: jax.Array) -> jax.Array:
    """Return 2^(score - logarithm) for each entry of a tile. Scores are to base 2.

    Args:
      logarithm: Tile that contains the maximum or the logsumexp of the query of each entry.
    """
    return jnp.exp2(view.scores * view.score_multiplier - logarithm)


def weigh_zero_scores(context: WarpgroupContext, tile: Tile) -> jax.Array:
    """Return the attention weights of a tile whose scores are treated as 0.

    The weight is 2^-logsumexp for visible entries, and 0 for masked entries. The columns of the
    tile must be queries.
    """
    visible = view_visibility(context, tile)
    logsumexp = mosaic.expand_per_column(tile.load_vector("logsumexp"), tile.shape)
    weights = jnp.exp2(-logsumexp)
    return weights if visible is None else jnp.where(visible, weights, 0.0)


def compute_score_gradient(
    context: WarpgroupContext,
    tile: Tile,
    weights: jax.Array,
    weight_gradient: jax.Array,
    *,
    per_row: jax.Array | None,
    per_column: jax.Array | None,
    factor: jax.Array | None = None,
) -> jax.Array:
    """Return `factor` times the gradient of the scores, which is A (dO · V + g - D).

    The module `kernels` of the package `fused` explains this formula. The vectors -D and g are the
    arguments `per_row` and `per_column`. One instruction adds a vector to dO · V and multiplies
    dO · V by `factor`, so that `factor` costs nothing if at least one vector is given.

    Args:
      weights: Attention weights A.
      weight_gradient: Products dO · V of the tile. If both vectors are None, the products already
        contain them: dO · V + g - D.
      per_row: Vector with one number for each row of the tile: -D if the rows are queries, g if the
        rows are keys. If None, nothing is added.
      per_column: Vector with one number for each column of the tile: -D if the columns are queries,
        g if the columns are keys. If None, nothing is added.
      factor: Number by which the gradient is multiplied. None means 1.
    """
    weight_gradient = drop(context, tile, weight_gradient)
    if context.score_map.has_dropout:
        weight_gradient *= read_dropout_scale(context.scalars)
    if factor is not None:
        weight_gradient *= factor
        per_row = None if per_row is None else per_row * factor
        per_column = None if per_column is None else per_column * factor
    return weights * add_vectors(weight_gradient, per_row, per_column, tile.shape)


def add_vectors(
    entries: jax.Array | None, per_row: jax.Array | None, per_column: jax.Array | None, shape: Shape
) -> jax.Array:
    """Return the sum of a tile, a per-row vector and a per-column vector.

    An argument that is None adds nothing. At least one of the three is not None.
    """
    terms = [] if entries is None else [entries]
    if per_row is not None:
        terms.append(mosaic.expand_per_row(per_row, shape))
    if per_column is not None:
        terms.append(mosaic.expand_per_column(per_column, shape))
    return functools.reduce(operator.add, terms)


def drop(context: WarpgroupContext, tile: Tile, entries: jax.Array) -> jax.Array:
    """Set the entries that dropout drops to 0. Do not scale the entries that it keeps."""
    if not context.score_map.has_dropout:
        return entries
    return jnp.where(kept_by_dropout(context, tile), entries, 0.0)


def is_visible_key(context: WarpgroupContext, rows: int) -> jax.Array:
    """Return a mask that is True for each row whose key is neither masked nor padding."""
    if context.score_map.has_key_mask:
        return context.vectors["key_mask"] > 0
    return mosaic.row_indices(rows) < read_lengths(context.scalars).key - context.row
