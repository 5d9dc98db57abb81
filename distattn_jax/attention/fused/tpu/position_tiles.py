"""Products of position queries with position vectors in one tile, for `PositionScoring`.

There is one position vector R[j - i] for each diagonal j - i of the score map, where i is a query
and j is a key. For a group of 128 queries, the kernels multiply the position queries p by the
vectors of all diagonals of a tile. The products have one row per diagonal and one column per query.
A tile, in contrast, has one row per key and one column per query. If j is counted from the first
key of the tile and i from the first query of the group, the product for key j and query i is in row
j - i + 128 of column i. Column i therefore moves up by 128 - i rows. In the backward pass, column i
of the gradient dP of the products moves down by 128 - i rows:

    query gradient       dp_i = Σ_j dP_ij R[j - i]
    position gradient    dR[x] = Σ_{j - i = x} dP_ij p_i
"""

import jax
import jax.experimental.pallas as pl
import jax.numpy as jnp

from distattn_jax.attention.fused.tpu.kernel_body import BlockContext, Tile
from distattn_jax.attention.fused.tpu.registers import (
    LANES,
    lane_indices,
    move_down,
    move_up,
    multiply,
)

BITS = 8  # of a shift
LANES_BITS = LANES.bit_length() - 1


def read_positions(context: BlockContext, tile: Tile) -> jax.Array:
    """Return p_i · R[j - i] for each query i and key j of a tile, shape (keys, queries).

    p_i is the position query of query i, and R[j - i] is the position vector of the diagonal j - i.
    """
    load = tile.load if context.score_map.is_transposed else context.load
    query, positions = load("position_query"), tile.load("positions")
    columns = []
    for first in range(0, tile.shape[1], LANES):
        part = query[:, first : first + LANES]
        products = multiply(_select_window(tile, positions, first), part, (0, 0))
        columns.append(move_up(products, _shifts(), tile.shape[0], BITS))
    return jnp.concatenate(columns, axis=1)


def add_gradients(
    context: BlockContext, tile: Tile, product_gradient: jax.Array, origin: int
) -> None:
    """Add the contribution of a tile to the gradients of position queries and position vectors.

    The gradient of the position queries is in the buffer `position_query`, shape (W, queries),
    where W is the width of a position vector. The gradient of the position vectors is in the output
    `positions`: matrices of shape (W, 128), stacked on axis 0. Matrix g has one column for each of
    the diagonals 128 g to 128 g + 127, and one row for each component of a position vector.

    Args:
      product_gradient: Gradient of the products of the tile, shape (keys, queries).
      origin: Index of the main diagonal (query = key) among all diagonals.
    """
    query, positions = context.load("position_query"), tile.load("positions")
    width = query.shape[0]
    for first in range(0, tile.shape[1], LANES):
        window = _select_window(tile, positions, first)
        by_diagonal = arrange_by_diagonal(tile, product_gradient, first).astype(window.dtype)
        target = context.scratch["position_query"].at[:, pl.ds(first, LANES)]
        target[...] += multiply(window, by_diagonal, (1, 0))
        gradient = multiply(query[:, first : first + LANES], by_diagonal, (1, 1))
        group = find_group(tile, first, origin)
        for i in range(window.shape[1] // LANES):
            rows = pl.ds(pl.multiple_of((group + i) * width, width), width)
            context.sums["positions"].at[rows][...] += gradient[:, i * LANES : (i + 1) * LANES]


def arrange_by_diagonal(tile: Tile, entries: jax.Array, first: int) -> jax.Array:
    """Return the entries of a group of 128 queries, with one row for each of keys + 128 diagonals.

    Column i of the result has the entries of query i of the group. Where a diagonal has no entry,
    the result is 0.

    Args:
      tile: Tile of the score map.
      entries: One number for each entry of the tile, shape (keys, queries).
      first: Index of the first query of the group, counted from the first query of the tile.
    """
    part = entries[:, first : first + LANES]
    return move_down(part, _shifts(), BITS)[: tile.shape[0] + LANES]


def find_group(tile: Tile, first: int, origin: int) -> jax.Array:
    """Return g if the first row of `arrange_by_diagonal` is diagonal 128 g among all diagonals.

    Args:
      tile: Tile of the score map.
      first: Index of the first query of the group, counted from the first query of the tile.
      origin: Index of the main diagonal (query = key) among all diagonals.
    """
    return ((origin + tile.key - tile.query - first) >> LANES_BITS) - 1


def _select_window(tile: Tile, positions: jax.Array, first: int) -> jax.Array:
    """Return the position vectors that a group of 128 queries of a tile needs.

    The result has one column for each of keys + 128 diagonals.

    Args:
      tile: Tile of the score map, shape (keys, queries).
      positions: Position vectors of all diagonals of the tile, one column per diagonal.
      first: Index of the first query of the group, counted from the first query of the tile.
    """
    start = tile.shape[1] - LANES - first
    return positions[:, start : start + tile.shape[0] + LANES]


def _shifts() -> jax.Array:
    """Return 128 - i for each column i of 128 columns, shape (1, 128).

    Column i contains the products of query i with the position vectors of all diagonals. It moves
    by this number of rows, so that rows become keys.
    """
    return LANES - lane_indices((1, LANES))
