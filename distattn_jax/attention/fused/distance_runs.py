"""Division of the tiles of each block of rows by distance: near tiles and far tiles.

A tile is far if all distances between its queries and its keys are at least the radius of the head
(see `saturation`). The distance function is treated as constant in far tiles. Some heads treat all
scores of far tiles as 0.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from distattn_jax.attention.fused.runs import PLAIN, Distinctions, Run, TileKind
from distattn_jax.attention.fused.visible_columns import UNBOUNDED


class TileLimits(NamedTuple):
    """Tile indices where the near columns of each block of rows begin and end.

    A column is near a block if some distance between them is below the radius of the head. Rows and
    columns are compared by their positions in the sequence.

    Attributes:
      near_start: First tile that contains a distance below the radius.
      near_end: First tile after the block whose distances are all at least the radius.
    """

    near_start: Array
    near_end: Array


def find_tile_limits(
    radius: Int[Array, "B N"] | None, position: Array, block_rows: int, tile_columns: int
) -> TileLimits:
    """Return where the near columns of each block of rows begin and end.

    Args:
      radius: Smallest distance at which the distance function is treated as constant. None means
        that no tile is far.
      position: For each block, the column that is aligned with its first row.
      block_rows: Number of rows of a block.
      tile_columns: Number of columns of a tile.
    """
    if radius is None:
        radius = jnp.full((1, 1), UNBOUNDED, jnp.int32)
    largest_near_distance = jnp.clip(radius, 1, UNBOUNDED)[:, :, None] - 1
    return TileLimits(
        near_start=jnp.maximum(position - largest_near_distance, 0) // tile_columns,
        near_end=count_tiles(
            jnp.maximum(position + block_rows + largest_near_distance, 0), tile_columns
        ),
    )


def divide_by_distance(
    limits: TileLimits,
    distinctions: Distinctions,
    *,
    side_before_diagonal: int,
    has_radius: bool,
    is_zero_beyond_radius: Bool[Array, "B N"] | None,
    masks_zero_tiles: bool,
) -> tuple[list[Run], Run, list[Run]]:
    """Return the far runs before the near tiles, the run of near tiles, and the far runs after it.

    Args:
      limits: Tiles where the near columns of each block begin and end.
      distinctions: Properties of tiles for which the kernels need separate loops.
      side_before_diagonal: `TileKind.side` of the tiles before the diagonal.
      has_radius: True if the heads have a radius. If False, no tile is far.
      is_zero_beyond_radius: True for heads whose scores beyond the radius are all treated as 0.
        None means that there are no such heads, or that their far tiles are skipped.
      masks_zero_tiles: True if tiles of zero scores may be masked. All of them are then of a masked
        kind, so that one loop visits them.
    """
    is_zero = None if is_zero_beyond_radius is None else is_zero_beyond_radius[:, :, None]
    has_far = distinctions.far and has_radius
    near_start: Array | int = limits.near_start
    near_end: Array | int = limits.near_end
    if not has_far:  # Only heads with zero scores beyond the radius have far tiles.
        near_start = 0 if is_zero is None else jnp.where(is_zero, near_start, 0)
        near_end = UNBOUNDED if is_zero is None else jnp.where(is_zero, near_end, UNBOUNDED)

    def far_runs(start: Array | int, end: Array | int, side: int) -> list[Run]:
        runs, far_end = [], end
        if is_zero is not None:
            zero = TileKind(is_zero=True, is_masked=masks_zero_tiles)
            runs.append(Run(zero, start, jnp.where(is_zero, end, start)))
            far_end = jnp.where(is_zero, start, end)
        if has_far:
            kind = TileKind(is_far=True, side=side if distinctions.far_sides else 0)
            runs.append(Run(kind, start, far_end))
        return runs

    first, last = side_before_diagonal, -side_before_diagonal
    near = Run(PLAIN, near_start, near_end)
    return far_runs(0, near_start, first), near, far_runs(near_end, UNBOUNDED, last)


def count_tiles(length: Array, tile_columns: int) -> Array:
    """Return the number of tiles that cover `length` columns."""
    return (length + tile_columns - 1) // tile_columns
