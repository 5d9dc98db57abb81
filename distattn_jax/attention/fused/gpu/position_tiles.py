"""Products of queries with position vectors in one tile, for `PositionScoring`.

There is one position vector R for each diagonal of the score map. The kernels compute the products
of all queries of a tile with the 128 position vectors of the tile. For each entry of the tile,
`skew` then selects the product of the query of the entry and the position vector of its diagonal.
The products of a query stay in the row of the query. If the score map is transposed, they stay in
the column of the query.

In the backward pass, `unskew` sorts the gradient dP of the products by diagonal:

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


def scratch_buffers(score_map: ScoreMap, *, gradient_dtype: Any = None) -> dict[str, Any]:
    """Return the buffers that a kernel needs for position vectors: see `KernelBody.scratch`.

    The dict is empty if the scoring has no position vectors.

    Args:
      gradient_dtype: Dtype of the queries. None if the kernel does not call `gradient_by_diagonal`.
    """
    if not score_map.scoring.has_positions:
        return {}
    buffers: dict[str, Any] = {SKEW: (skew.SKEW_ENTRIES, "float32")}
    if gradient_dtype is not None:
        buffers[UNSKEW] = (skew.UNSKEW_ENTRIES, gradient_dtype)
    return buffers


def clear_buffers(context: WarpgroupContext) -> None:
    """Fill the buffer of `gradient_by_diagonal` with zeros, if the kernel has this buffer."""
    if UNSKEW in context.scratch:
        skew.clear(context.scratch[UNSKEW])


class PositionTile(NamedTuple):
    """Queries and position vectors of a tile, in shared memory.

    Attributes:
      query: Queries that are multiplied by position vectors.
      lower: Position vectors of the diagonals 0 to 63.
      upper: Position vectors of the diagonals 64 to 127.
      release: Frees the slots of the queries and of the position vectors in the ring buffer. Arrays
        that are resident, and therefore not in the ring buffer, are not freed.
    """

    query: Any
    lower: Any
    upper: Any
    release: Callable[[], None]


def wait_for_positions(context: WarpgroupContext, tile: Tile) -> PositionTile | None:
    """Wait until the queries and position vectors of a tile are in shared memory. Return them.

    Return None if the scoring has no position vectors.
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

    The first pair consists of queries and keys. If the scoring has relation products, they are
    added to q · k. If it has position vectors, their products with the queries are added to q · k.
    The second pair, if present, consists of cotangents dO and values. If the scoring has relation
    weights, their cotangent is added to dO · V.

    Args:
      *pairs: Matrix a for the rows of the tile and matrix b for its columns, in shared memory.
      positions: Result of `wait_for_positions`.
      initial_gradient: Tile that is added to the result of the second pair. If None, nothing is
        added. It must be None if `positions` is not None.
    """
    if positions is None:
        initial = initial_products(
            context, tile, with_cotangent=len(pairs) > 1, initial_gradient=initial_gradient
        )
        return mosaic.multiply_transposed(*pairs, initial=initial)
    query, lower, upper, _ = positions
    if context.score_map.is_transposed:
        position_pairs = (lower, query), (upper, query)
    else:
        position_pairs = (query, lower), (query, upper)
    select = functools.partial(
        skew.skew, context.scratch[SKEW], keeps_rows=not context.score_map.is_transposed
    )
    if query.shape[-1] > MAX_WIDTH:  # All products at once would need too many registers.
        selected = select(*mosaic.multiply_transposed(*position_pairs))
        zeros = [mosaic.full(tile.shape, 0.0) for _ in pairs[1:]]
        return mosaic.multiply_transposed(*pairs, initial=(selected, *zeros))
    below, above, products, *others = mosaic.multiply_transposed(*position_pairs, *pairs)
    return products + select(below, above), *others


def multiply_score_operands(
    context: WarpgroupContext, tile: Tile, pair: tuple[Any, Any]
) -> jax.Array:
    """Return the products q · k of a tile, plus terms for relations or positions.

    See `multiply_rows_and_columns`.

    Args:
      pair: Matrices of the rows and of the columns of the tile: queries and keys, or keys and
        queries.
    """
    positions = wait_for_positions(context, tile)
    (products,) = multiply_rows_and_columns(context, tile, pair, positions=positions)
    if positions is not None:
        positions.release()
    return products


def gradient_by_diagonal(
    context: WarpgroupContext, product_gradient: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Sort the gradient of the products of a tile by diagonal: see `skew.unskew`.

    Return two tiles: one for the diagonals 0 to 63, and one for the diagonals 64 to 127.
    """
    keeps_rows = not context.score_map.is_transposed
    return skew.unskew(context.scratch[UNSKEW], product_gradient, keeps_rows=keeps_rows)
