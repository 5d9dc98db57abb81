"""Products of queries with position vectors in one tile, for `PositionScoring`.

There is one position vector R for each diagonal j - i of the score map. For a group of 128 queries,
the kernels multiply the position queries p by the vectors of all diagonals of a tile. The products
have one row per diagonal and one column per query. Key j and query i of the tile need row
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
    """Return the product of position query i and position vector j - i for each entry of a tile.

    i is the query and j is the key of the entry.
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
    """Add the contribution of a tile to the gradients dp of the position queries and dR of R.

    R are the position vectors. The buffer `position_query` contains dp. The output `positions`
    contains dR: the rows g W to (g + 1) W - 1 belong to the diagonals 128 g to 128 g + 127, with
    one column per diagonal. W is the width of a position vector.

    Args:
      product_gradient: Gradient dP of the products of the tile.
      origin: Index of the diagonal query = key among all diagonals.
    """
    query, positions = context.load("position_query"), tile.load("positions")
    width = query.shape[0]
    for first in range(0, tile.shape[1], LANES):
        window = _select_window(tile, positions, first)
        part = product_gradient[:, first : first + LANES]
        by_diagonal = move_down(part, _shifts(), BITS)[: window.shape[1]].astype(window.dtype)
        target = context.scratch["position_query"].at[:, pl.ds(first, LANES)]
        target[...] += multiply(window, by_diagonal, (1, 0))
        gradient = multiply(query[:, first : first + LANES], by_diagonal, (1, 1))
        group = ((origin + tile.key - tile.query - first) >> LANES_BITS) - 1
        for i in range(window.shape[1] // LANES):
            rows = pl.ds(pl.multiple_of((group + i) * width, width), width)
            context.sums["positions"].at[rows][...] += gradient[:, i * LANES : (i + 1) * LANES]


def _select_window(tile: Tile, positions: jax.Array, first: int) -> jax.Array:
    """Return the position vectors that a group of 128 queries of a tile needs.

    Args:
      positions: Position vectors of all diagonals of the tile, one column per diagonal.
      first: Index of the first query of the group, counted from the first query of the tile.
    """
    start = tile.shape[1] - LANES - first
    return positions[:, start : start + tile.shape[0] + LANES]


def _shifts() -> jax.Array:
    """Return the number of rows by which the products of each query move, shape (1, 128).

    Column i moves by 128 - i rows: see the top of this module.
    """
    return LANES - lane_indices((1, LANES))
