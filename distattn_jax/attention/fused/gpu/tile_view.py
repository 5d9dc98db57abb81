"""Scores, visibility and distances of one tile.

The rows of a tile are queries and the columns are keys. If `ScoreMap.is_transposed` is True, the
rows are keys and the columns are queries. An entry is a pair of a query and a key. An entry is
visible if the query may attend to the key.
"""

import functools
import operator

import jax
import jax.numpy as jnp

from distattn_jax.attention.fused.distance_functions import Distances
from distattn_jax.attention.fused.gpu import mosaic, registers
from distattn_jax.attention.fused.gpu.kernel_body import Tile, WarpgroupContext
from distattn_jax.attention.fused.score_map import TileView, read_coefficients, read_lengths
from distattn_jax.attention.fused.scoring import TileScores


def view_tile(
    context: WarpgroupContext,
    tile: Tile,
    products: jax.Array,
    *,
    for_gradient: bool = False,
    needs_weights: bool = True,
) -> TileView:
    """Return the scores of a tile, with their distances and visibility mask.

    Args:
      products: Tile of the products q · k, including the terms for relations or positions.
      for_gradient: If True, keep the intermediate results from which the gradient of the scores is
        computed.
      needs_weights: If False, the weights of entries whose score is a constant may be 0, and the
        result may contain `TileScores.log_derivative`: the kernel must multiply the attention
        weights by this derivative. Pass False only if the kernel has no other use for the weights
        than the gradient of the scores. If True, `log_derivative` is None.
    """
    scoring = context.score_map.scoring
    coefficients = read_coefficients(context.scalars)
    positions = scoring.read_positions(
        lambda: _tile_distances(context, tile),
        tile.load_diagonals,
        is_far=tile.kind.is_far,
    )
    visible = view_visibility(context, tile)
    tile_scores = None
    if not needs_weights:
        tile_scores = scoring.score_derivatives(products, positions, coefficients)
    if tile_scores is None:
        tile_scores = scoring.score(products, positions, coefficients, for_gradient=for_gradient)
    return TileView(scoring, tile_scores, positions, visible, coefficients)


def view_bias(context: WarpgroupContext, tile: Tile) -> TileView:
    """Return the scores of a tile whose products q · k are treated as 0, if there is a bias.

    The scores are the bias. They are equal along each diagonal, before entries are masked.
    """
    scoring = context.score_map.scoring
    bias = scoring.score_zeros(tile.load_diagonals)
    assert bias is not None, "only a scoring with a bias has tiles of a bias"
    tile_scores = TileScores(bias, products=mosaic.full(tile.shape, 0.0))
    return TileView(scoring, tile_scores, None, view_visibility(context, tile), coefficients=None)


def weigh_bias(context: WarpgroupContext, tile: Tile) -> jax.Array | None:
    """Return 2^bias for each entry of a tile whose products q · k are treated as 0.

    No power overflows: see `saturation.LARGEST_FAR_BIAS`. The result is None if there is no bias.
    """
    bias = context.score_map.scoring.score_zeros(tile.load_diagonals)
    return None if bias is None else registers.share_diagonals(jnp.exp2(bias))


def view_visibility(context: WarpgroupContext, tile: Tile) -> jax.Array | None:
    """Return a tile that is True for visible entries, or None if all entries are visible.

    An entry is visible if its query may attend to its key.
    """
    return _visible_entries(context, tile) if tile.kind.is_masked else None


def _visible_entries(context: WarpgroupContext, tile: Tile) -> jax.Array:
    """Return a tile that is True for visible entries and False for masked entries.

    A kernel need not mask entries whose effect it removes later. Padded queries therefore count as
    visible: the forward kernel sets their outputs to 0, and their logsumexp makes their weights 0
    in all other kernels. If the rows are keys, padded keys and keys that the key mask hides also
    count as visible, because the kernels set the outputs of these keys to 0. The kernel
    `position_gradient` has no output per key, so that such keys are masked there.
    """
    conditions = []
    if context.score_map.has_moving_rows:
        if context.score_map.has_key_mask:
            conditions.append(
                mosaic.expand_per_row(tile.load_row_vector("key_mask") > 0, tile.shape)
            )
        else:
            rows = mosaic.row_indices(tile.shape[0]) + tile.row
            is_key = (rows >= 0) & (rows < read_lengths(context.scalars).key)
            conditions.append(mosaic.expand_per_row(is_key, tile.shape))
    elif not context.score_map.is_transposed:
        if context.score_map.has_key_mask:
            key_mask = mosaic.expand_per_column(tile.load_vector("key_mask"), tile.shape)
            conditions.append(key_mask > 0)
        else:
            columns = mosaic.expand_per_column(mosaic.column_indices(tile.shape[1]), tile.shape)
            conditions.append(columns < read_lengths(context.scalars).key - tile.column)
    conditions += context.score_map.window.compare(lambda: _relative_positions(context, tile))
    if context.score_map.has_segments:
        if context.score_map.has_moving_rows:
            row_segments = tile.load_row_vector("row_segments")
        else:
            row_segments = context.vectors["row_segments"]
        rows = mosaic.expand_per_row(row_segments, tile.shape)
        columns = mosaic.expand_per_column(tile.load_vector("column_segments"), tile.shape)
        conditions.append(rows == columns)
    if context.score_map.has_mask:
        conditions.append(tile.load_entries("mask") != 0)
    return functools.reduce(operator.and_, conditions)


def _relative_positions(context: WarpgroupContext, tile: Tile) -> jax.Array:
    """Return a float32 tile of (position of the query - position of the key) for each entry.

    Integers are exact in float32 up to 2²⁴.
    """
    rows, columns = mosaic.row_indices(tile.shape[0]), mosaic.column_indices(tile.shape[1])
    offset = read_lengths(context.scalars).offset
    if context.score_map.is_transposed:
        rows, columns = tile.column + offset - tile.row - rows, columns
    else:
        rows, columns = tile.row + offset - tile.column + rows, -columns
    rows, columns = rows.astype(jnp.float32), columns.astype(jnp.float32)
    return mosaic.expand_per_row(rows, tile.shape) + mosaic.expand_per_column(columns, tile.shape)


def _tile_distances(context: WarpgroupContext, tile: Tile) -> Distances:
    """Return a `Distances` for one tile. Its functions compute or load a tile when called.

    `entries()` computes |i - j| for each entry, where i is the position of the query, and j is the
    position of the key. `stored()` loads height f for each entry from the table "function", where f
    is the distance function of the scoring. `stored` is None if the kernel has no such table.
    """
    stored = None
    if "function" in tile.ring_names:
        stored = functools.partial(tile.load_diagonals, "function")
    return Distances(
        entries=lambda: registers.share_diagonals(jnp.abs(_relative_positions(context, tile))),
        share_diagonals=registers.share_diagonals,
        sum_diagonals=registers.sum_diagonals,
        stored=stored,
    )
