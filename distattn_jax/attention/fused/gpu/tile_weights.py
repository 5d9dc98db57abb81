"""Attention weights of a tile, and the gradient of the scores of a tile."""

import functools
import operator

import jax
import jax.numpy as jnp

from distattn_jax.attention.fused.gpu import dropout_tiles, mosaic, registers
from distattn_jax.attention.fused.gpu.kernel_body import Tile, WarpgroupContext
from distattn_jax.attention.fused.gpu.tile_view import view_visibility, weigh_bias
from distattn_jax.attention.fused.score_map import TileView, read_lengths

Shape = tuple[int, int]  # rows and columns of a tile
RECIPROCAL_SUM = "reciprocal_sum"  # name of a vector with 2^-logsumexp for each query


def compute_weights(
    view: TileView, logarithm: jax.Array | None, *, rounds_scores: bool = False
) -> jax.Array:
    """Return 2^(s - logarithm) for each entry of a tile, where s is its score to base 2.

    If `logarithm` is the logsumexp, the results are the attention weights. If it is a maximum, they
    are weights that are not yet normalised.

    Args:
      view: Scores of the tile.
      logarithm: Tile with the logsumexp, or the running maximum, of the query of each entry. None
        means 0.
      rounds_scores: True if the scores are also needed for something else, such as the maximum. The
        result is the same, apart from rounding.
    """
    if logarithm is None:
        return jnp.exp2(view.scores * view.score_multiplier)
    if rounds_scores and view.has_final_scores:
        return jnp.exp2(registers.subtract_rounded(view.scores, logarithm))
    return jnp.exp2(view.scores * view.score_multiplier - logarithm)


def weigh_zero_scores(context: WarpgroupContext, tile: Tile) -> jax.Array:
    """Return the attention weights of a tile whose products q · k are treated as 0.

    The weight is 2^(bias - logsumexp) for visible entries, and 0 for masked entries. The rows of
    the tile must be keys, and its columns must be queries.
    """
    visible, bias_weights = view_visibility(context, tile), weigh_bias(context, tile)
    if RECIPROCAL_SUM in tile.ring_names:
        weights = tile.load_vector(RECIPROCAL_SUM)
    else:
        weights = jnp.exp2(-tile.load_vector("logsumexp"))
    weights = mosaic.expand_per_column(weights, tile.shape)
    if bias_weights is not None:
        weights *= bias_weights
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
    kept_factors: jax.Array | None = None,
) -> jax.Array:
    """Return `factor` times the gradient of the scores of a tile, A (dO · V + g - D).

    A are the attention weights, dO is the cotangent of the attention output, V are the values, and
    g is the cotangent of the attention that each key receives. The module `kernels` of the package
    `fused` explains this formula. With dropout, the products dO · V are set to 0 where a weight is
    dropped, and scaled where it is kept. The result is then in units of
    `dropout_tiles.gradient_unit`: multiply the sums of all tiles by this number.

    g has one number per key, and -D has one number per query (see `BackwardOperands`). One of them
    is the argument `per_row`, and the other is `per_column`. One instruction adds a vector to
    dO · V and multiplies dO · V by `factor`, so that `factor` costs nothing if at least one vector
    is given.

    Args:
      weights: Tile of the weights A.
      weight_gradient: Tile of the products dO · V. If both vectors are None, it is dO · V + g - D.
      per_row: -D if the rows of the tile are queries, g if they are keys. If None, nothing is
        added.
      per_column: -D if the columns of the tile are queries, g if they are keys. If None, nothing is
        added.
      factor: Number by which the gradient is multiplied. None means 1.
      kept_factors: Result of `dropout_tiles.kept_factors`, or None without dropout.
    """
    if kept_factors is not None:
        weight_gradient *= kept_factors
        reciprocal = 1 / dropout_tiles.gradient_unit(context.scalars)
        per_row = None if per_row is None else per_row * reciprocal
        per_column = None if per_column is None else per_column * reciprocal
    if factor is not None:
        weight_gradient *= factor
        per_row = None if per_row is None else per_row * factor
        per_column = None if per_column is None else per_column * factor
    return weights * add_vectors(weight_gradient, per_row, per_column, tile.shape)


def add_vectors(
    entries: jax.Array | None, per_row: jax.Array | None, per_column: jax.Array | None, shape: Shape
) -> jax.Array:
    """Return a tile whose entry (i, j) is entries[i, j] + per_row[i] + per_column[j].

    An argument that is None counts as 0. At least one of the three must not be None.

    Args:
      shape: Number of rows and number of columns of the tile.
    """
    terms = [] if entries is None else [entries]
    if per_row is not None:
        terms.append(mosaic.expand_per_row(per_row, shape))
    if per_column is not None:
        terms.append(mosaic.expand_per_column(per_column, shape))
    return functools.reduce(operator.add, terms)


def is_visible_key(context: WarpgroupContext, rows: int) -> jax.Array:
    """Return a boolean vector: True for each row whose key is neither masked nor padding.

    The rows of the warpgroup must be keys.

    Args:
      rows: Number of rows of the warpgroup.
    """
    if context.score_map.has_key_mask:
        return context.vectors["key_mask"] > 0
    return mosaic.row_indices(rows) < read_lengths(context.scalars).key - context.row
