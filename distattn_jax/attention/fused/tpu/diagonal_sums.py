"""Sums of the entries of a tile along its diagonals, for the gradient of a table.

All entries of the score map with the same relative position i - j of query i and key j share one
number of a table of `Operands.position_tables`. The gradient of this number is thus the sum over a
diagonal. A group of 128 queries of a tile is rearranged to one row per diagonal and one column per
query, as in `position_tiles`. A matrix product with ones then adds up each row, and returns 8 equal
rows with one column per diagonal.
"""

from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.numpy as jnp

from distattn_jax.attention.fused.tpu.kernel_body import Tile
from distattn_jax.attention.fused.tpu.position_tiles import arrange_by_diagonal, find_group
from distattn_jax.attention.fused.tpu.registers import LANES, SUBLANES, multiply


def add(total: Any, tile: Tile, entries: jax.Array, origin: int) -> None:
    """Add the entries of a tile to the sums of their diagonals.

    Args:
      total: Reference to the sums: groups of 8 equal rows, stacked on axis 0. Group g has one
        column for each of the diagonals 128 g to 128 g + 127.
      entries: One number for each entry of the tile, shape (keys, queries).
      origin: Index of the main diagonal (query = key) among all diagonals.
    """
    ones = jnp.ones((SUBLANES, LANES), jnp.float32)
    for first in range(0, tile.shape[1], LANES):
        sums = multiply(ones, arrange_by_diagonal(tile, entries, first), (1, 1))
        group = find_group(tile, first, origin)
        for i in range(sums.shape[1] // LANES):
            rows = pl.ds(pl.multiple_of((group + i) * SUBLANES, SUBLANES), SUBLANES)
            total.at[rows][...] += sums[:, i * LANES : (i + 1) * LANES]
