"""Products of queries with position vectors in one tile, for `PositionScoring`.

There is one position vector R[x] for each relative position x = i - j of a query i and a key j. All
entries on one diagonal of the score map have the same relative position. A tile has 64 rows and 64
columns, hence 127 diagonals. The kernels compute the product of each position query p_i of the tile
with 128 position vectors. Entry (i, j) needs only one of these 128 products, p_i · R[i - j]. The
function `skew` selects it. If the rows of the tile are queries, the products of a query are in its
row before and after `skew`. If the columns are queries, they are in its column.

In the backward pass, dP is the gradient of the products of the tile. The function `unskew` sorts dP
by diagonal, so that matrix products can compute these sums:

    query gradient       dp_i = Σ_j dP_ij R[i - j]
    position gradient    dR[x] = Σ_{i - j = x} dP_ij p_i
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from distattn_jax.attention.fused.gpu import mosaic, skew
from distattn_jax.attention.fused.gpu.kernel_body import Tile, WarpgroupContext
from distattn_jax.attention.fused.gpu.relation_tiles import initial_products
from distattn_jax.attention.fused.gpu.tile_configs import MAX_WIDTH
from distattn_jax.attention.fused.score_map import ScoreMap

SKEW, UNSKEW = "skew", "unskew"  # names of buffers in shared memory


def scratch_buffers(
    score_map: ScoreMap, query_type: Any, *, sorts_gradient: bool = False
) -> dict[str, Any]:
    """Return the buffers in shared memory that a kernel needs for position vectors.

    The result has the form of `KernelBody.scratch`. It is empty if the scoring has no position
    vectors. If heads are wider than 64, other arrays need most of the shared memory. There is then
    only one buffer, which is smaller if possible: see the argument `is_halved` of `skew.skew`.

    Args:
      query_type: Type of the queries: their shape and dtype.
      sorts_gradient: True if the kernel calls `gradient_by_diagonal`.
    """
    if not score_map.scoring.has_positions:
        return {}
    is_wide = query_type.shape[-1] > MAX_WIDTH
    is_halved = is_wide and not score_map.is_transposed
    buffers: dict[str, Any] = {SKEW: ((skew.SKEW_ENTRIES // (1 + is_halved),), "float32")}
    if sorts_gradient and not is_wide:
        buffers[UNSKEW] = ((skew.UNSKEW_ENTRIES,), query_type.dtype)
    return buffers


def _is_halved(context: WarpgroupContext) -> bool:
    """Return True if the buffer of `skew` has half of the usual size."""
    return context.scratch[SKEW].shape[0] < skew.SKEW_ENTRIES


def clear_buffers(context: WarpgroupContext) -> None:
    """Fill the buffer that `gradient_by_diagonal` uses with zeros.

    Do nothing if the kernel has no such buffer.
    """
    if UNSKEW in context.scratch:
        skew.clear(context.scratch[UNSKEW])


class PositionTile(NamedTuple):
    """References to the position queries and position vectors of a tile, in shared memory.

    The tile has 64 rows and 64 columns. The diagonal of its entry (row, column) is
    row - column + 64. On a GPU, an array that `TileConfig.held` names is in registers instead.

    Attributes:
      query: Part of `Operands.position_query` for the queries of the tile, one row per query.
      lower: Position vectors of the diagonals 0 to 63, one row per diagonal.
      upper: Position vectors of the diagonals 64 to 127, one row per diagonal.
      release: Frees the slots of `query`, `lower` and `upper` in the ring buffers. Arrays that are
        resident have no slot, and stay in shared memory.
    """

    query: Any
    lower: Any
    upper: Any
    release: Callable[[], None]


def wait_for_positions(context: WarpgroupContext, tile: Tile) -> PositionTile | None:
    """Wait for the position queries and position vectors of a tile, and return them.

    The function waits until both are in shared memory. Return None if the scoring has no position
    vectors.
    """
    if not context.score_map.scoring.has_positions:
        return None
    if "positions" in tile.ring_names:
        lower, upper = tile.wait_diagonals("positions")
    else:
        lower, upper = (context.resident[f"{part}_positions"] for part in ("lower", "upper"))
    if "position_query" in tile.ring_names:
        query = tile.wait("position_query")
    else:
        query = context.resident["position_query"]

    def release():
        for name in ("positions", "position_query"):
            if name in tile.ring_names:
                tile.release(name)

    return PositionTile(query, lower, upper, release)


def multiply_rows_and_columns(
    context: WarpgroupContext,
    tile: Tile,
    *pairs: tuple[Any, Any],
    positions: PositionTile | None,
    initial_gradient: jax.Array | None = None,
) -> tuple[jax.Array, ...]:
    """Return the matrix product a bᵀ for each pair (a, b), plus terms for relations or positions.

    Entry (row, column) of a bᵀ is a[row] · b[column]. The first pair consists of the queries and
    keys of the tile. To q · k, the function adds the relation products if the scoring has them, and
    the products of position queries and position vectors if the scoring has these. The second pair,
    if present, consists of the cotangents dO of the attention output and the values. To dO · v, the
    function adds the cotangent of the relation weights if the scoring has them.

    Args:
      *pairs: Matrix a for the rows of the tile, and matrix b for its columns. If the rows are
        queries, the pairs are (queries, keys) and (dO, values). If the rows are keys, the pairs are
        (keys, queries) and (values, dO).
      positions: Result of `wait_for_positions`.
      initial_gradient: Tile that is added to the result of the second pair. If None, nothing is
        added. It must be None if `positions` is not None.
    """
    if positions is None:
        initial = initial_products(
            context, tile, with_cotangent=len(pairs) > 1, initial_gradient=initial_gradient
        )
        return context.products.multiply_transposed(*pairs, initial=initial)
    query, lower, upper, _ = positions
    if context.score_map.is_transposed:
        position_pairs = (lower, query), (upper, query)
    else:
        position_pairs = (query, lower), (query, upper)
    select = functools.partial(
        skew.skew,
        context.scratch[SKEW],
        keeps_rows=not context.score_map.is_transposed,
        is_halved=_is_halved(context),
    )
    # All products at once need many registers, and too many if the head is wide.
    if query.shape[-1] > MAX_WIDTH or not context.products.is_asynchronous:
        selected = select(*context.products.multiply_transposed(*position_pairs))
        zeros = [mosaic.full(tile.shape, 0.0) for _ in pairs[1:]]
        return context.products.multiply_transposed(*pairs, initial=(selected, *zeros))
    below, above, products, *others = context.products.multiply_transposed(*position_pairs, *pairs)
    return products + select(below, above), *others


def multiply_score_operands(
    context: WarpgroupContext, tile: Tile, pair: tuple[Any, Any]
) -> jax.Array:
    """Return a tile of the products q · k, plus terms for relations or positions.

    The function `multiply_rows_and_columns` describes these terms.

    Args:
      pair: Matrix for the rows of the tile and matrix for its columns: (queries, keys) if the rows
        are queries, and (keys, queries) if the rows are keys.
    """
    positions = wait_for_positions(context, tile)
    (products,) = multiply_rows_and_columns(context, tile, pair, positions=positions)
    if positions is not None:
        positions.release()
    return products


def gradient_by_diagonal(
    context: WarpgroupContext, product_gradient: jax.Array, dtype: Any
) -> tuple[jax.Array, jax.Array]:
    """Sort the gradient of the products q · k of a tile by diagonal.

    The diagonal of entry (row, column) is row - column + 64. Return two tiles, for the diagonals 0
    to 63 and for the diagonals 64 to 127. If the rows of the score map are queries, a tile has one
    row per query and one column per diagonal. If the columns are queries, it has one row per
    diagonal and one column per query.

    Args:
      product_gradient: Gradient of the products, one number for each entry of the tile.
      dtype: Dtype of the result, that of the queries.
    """
    has_own_buffer = UNSKEW in context.scratch
    return skew.unskew(
        context.scratch[UNSKEW if has_own_buffer else SKEW],
        product_gradient,
        dtype,
        keeps_rows=not context.score_map.is_transposed,
        is_cleared=has_own_buffer,
        is_halved=_is_halved(context),
    )
