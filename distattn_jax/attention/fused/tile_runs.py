"""Runs of consecutive tiles, and the properties (kinds) that the tiles of a run share.

Tiles with the same properties are of one kind. A run consists of consecutive tiles of one kind. A
kernel has separate loops for different kinds, so that it applies a mask or evaluates the distance
function f only in the tiles that require this.

    MASKED            some entries may be masked (`is_masked`)
    PLAIN             all entries are visible
    FAR               all entries are visible, and f is constant because |i - j| >= radius (see
                      `saturation`); all keys are before, or all keys are after, the queries
                      (`is_far`)
    ZERO              all entries are visible, and all products q · k are treated as 0: the score
                      is 0, or a bias that depends on the position (`is_zero`)
    SMALL PLAIN       as PLAIN, in a head whose scores are all small (`has_small_scores`)
    SMALL FAR         as FAR, in a head whose scores are all small
    SMALL ZERO        as ZERO, in a head whose scores are all small; only if there is a bias
    MASKED FAR        as FAR, but some entries may be masked
    MASKED ZERO       as ZERO, but some entries may be masked

ZERO tiles belong to heads whose products q · k are all treated as 0 beyond the radius. Kernels skip
ZERO tiles if their contribution is 0 or can be computed in advance: see `skipped_tiles`.
"""

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from distattn_jax.attention.fused.visible_columns import UNBOUNDED


class TileKind(NamedTuple):
    """Kind of a tile: properties that all tiles of one run have.

    A kernel is compiled with separate code for each kind. i is a query, and j is a key.

    Attributes:
      is_far: True if the distance function f(|i - j|) is treated as constant in each of the tiles.
      is_zero: True if all products q · k of the tiles are treated as 0: see `Scoring.score_zeros`.
      is_masked: True if some entries of the tiles may be masked.
      side: 1 if all keys of a far tile are before all queries of the tile, -1 if all keys are after
        all queries. 0 if the tile is not far, or if the side does not matter.
      has_small_scores: True if all scores of the head are small: see `small_scores`.
    """

    is_far: bool = False
    is_zero: bool = False
    is_masked: bool = False
    side: int = 0
    has_small_scores: bool = False


class Distinctions(NamedTuple):
    """Differences between tiles that force the kernels of a scoring to use separate loops.

    Attributes:
      far: True if far tiles need their own loop. In a far tile, all distances between queries and
        keys are at least the radius: see `saturation`.
      far_sides: True if far tiles before and after the diagonal need different loops.
      zero_scores: True if tiles whose products q · k are treated as 0 have other scores than 0. In
        heads with small scores, they then need their own loop.
    """

    far: bool = False
    far_sides: bool = False
    zero_scores: bool = False


MASKED, PLAIN = TileKind(is_masked=True), TileKind()


class TileRun(NamedTuple):
    """One run of consecutive tiles for each block and head.

    Attributes:
      kind: Properties of the tiles.
      start: Index of the first tile. It broadcasts to (B, N, blocks).
      end: Index of the last tile plus 1. It broadcasts to (B, N, blocks). The run is empty if `end`
        is not larger than `start`.
    """

    kind: TileKind
    start: Array | int
    end: Array | int

    def intersect(self, start: Array | int, end: Array | int) -> "TileRun":
        """Return a run with the tiles of this run from `start` (inclusive) to `end` (exclusive)."""
        return self._replace(start=jnp.maximum(self.start, start), end=jnp.minimum(self.end, end))


class TileSchedule(NamedTuple):
    """Tiles that each block of rows visits, as runs of consecutive tiles.

    Attributes:
      kinds: Properties of the tiles of each run. Runs of the same kind are neighbours, unless the
        tiles are in the order of their columns.
      runs: Index of the first tile of each run, and index of its last tile plus 1. Axis 2 is the
        block, and axis 3 is the run. Kernels visit the runs in this order.
      start: Index of the first tile that a block visits.
      end: Index of the last tile that a block visits, plus 1.
      is_in_column_order: True if each run begins where the previous run ends.
      parts: Number of parts of a block that can visit different tiles. If there are several parts,
        each part has its own entry on axis 2 of `runs`, `start` and `end`, at the index
        block * parts + part. Axis 3 of `runs` then has one more pair at its end, which is not a
        run: the first tile and the last tile plus 1 of all parts of the block.
    """

    kinds: tuple[TileKind, ...]
    runs: Int[Array, "#B #N _ runs 2"]
    start: Int[Array, "#B #N _"]
    end: Int[Array, "#B #N _"]
    is_in_column_order: bool = False
    parts: int = 1

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return self.start.shape[2] // self.parts

    @property
    def loops(self) -> list[tuple[TileKind, range]]:
        """Loops of a kernel: for each loop, the kind of its tiles and the range of its runs.

        Neighbouring runs of one kind share a loop. The range contains indices into `kinds` and into
        axis 3 of `runs`.
        """
        loops, start = [], 0
        for kind, runs in itertools.groupby(self.kinds):
            end = start + len(list(runs))
            loops.append((kind, range(start, end)))
            start = end
        return loops


def stack_runs(
    runs: list[TileRun], start: Array, end: Array, *, keeps_column_order: bool = False
) -> TileSchedule:
    """Combine runs of tiles into a schedule.

    Args:
      runs: Runs without overlap. Each of them has one range of tiles for each block.
      start: Index of the first tile that a block visits.
      end: Index of the last tile that a block visits, plus 1.
      keeps_column_order: If True, the order of the runs does not change. If False, runs of the same
        kind become neighbours.
    """
    if not keeps_column_order:
        order = [run.kind for run in runs]
        runs = sorted(runs, key=lambda run: order.index(run.kind))
    numbers = jnp.broadcast_arrays(start, end, *(x for run in runs for x in run[1:]))
    start, end, *others = (x.astype(jnp.int32) for x in numbers)
    starts, ends = jnp.stack(others[::2], axis=-1), jnp.stack(others[1::2], axis=-1)
    if keeps_column_order:  # An empty run begins and ends where the previous run ends.
        first = start[..., None]
        ends = jax.lax.cummax(jnp.where(starts < ends, ends, first), axis=3)
        starts = jnp.concatenate((first, ends[..., :-1]), axis=-1)
    stacked = jnp.stack((starts, jnp.maximum(starts, ends)), axis=-1)
    kinds = tuple(run.kind for run in runs)
    return TileSchedule(kinds, stacked, start, end, keeps_column_order)


def separate_small_scores(run: TileRun, has_small_scores: Array) -> list[TileRun]:
    """Split a run into one run for heads with small scores, and one run for all other heads.

    Each of the two runs is empty for the heads of the other run.

    Args:
      has_small_scores: True for heads with small scores. It broadcasts to (B, N, blocks).
    """
    middle = jnp.where(has_small_scores, run.end, run.start)
    small = run.kind._replace(has_small_scores=True)
    return [run._replace(kind=small, end=middle), run._replace(start=middle)]


def join_parts(schedule: TileSchedule, parts: int) -> TileSchedule:
    """Combine each group of `parts` consecutive blocks into one block with several parts.

    See `TileSchedule.parts`. A part skips the tiles that only other parts of its block visit.

    Args:
      schedule: Tiles that each of the smaller blocks visits, in the order of their columns.
      parts: Number of parts of a block. If the last group is smaller, its missing parts visit no
        tiles.
    """
    missing = -schedule.start.shape[2] % parts
    start, end, runs = (
        jnp.pad(x, ((0, 0), (0, 0), (0, missing), *[(0, 0)] * (x.ndim - 3)))
        for x in (schedule.start, schedule.end, schedule.runs)
    )
    is_empty = start >= end
    by_block = (*start.shape[:2], -1, parts)
    last = jnp.where(is_empty, 0, end).reshape(by_block).max(axis=3)
    first = jnp.where(is_empty, UNBOUNDED, start).reshape(by_block).min(axis=3)
    bounds = jnp.stack((jnp.minimum(first, last), last), axis=-1)
    bounds = jnp.repeat(bounds, parts, axis=2)[:, :, :, None]
    runs = jnp.clip(runs, bounds[..., :1], bounds[..., 1:])  # Empty runs may be outside.
    runs = jnp.concatenate((runs, bounds), axis=3)
    return schedule._replace(runs=runs, start=start, end=end, parts=parts)


def mask_run(run: TileRun) -> TileRun:
    """Return a copy of a run whose kind has `is_masked` set to True."""
    return run._replace(kind=run.kind._replace(is_masked=True))


class TileLimits(NamedTuple):
    """First near tile and last near tile (plus 1) of each block of rows.

    A tile is far if all distances between its queries and its keys are at least the radius of the
    head (see `saturation`). The distance function is treated as constant in far tiles. All other
    tiles are near.

    Attributes:
      near_start: Index of the first tile that contains a distance below the radius.
      near_end: Index of the last tile that contains a distance below the radius, plus 1.
    """

    near_start: Array
    near_end: Array


def find_tile_limits(
    radius: Int[Array, "#B #N *sides"] | None,
    position: Array,
    block_rows: int,
    tile_columns: int,
    *,
    is_transposed: bool,
) -> TileLimits:
    """Return the first near tile and the last near tile (plus 1) of each block of rows.

    A near tile contains a distance below the radius.

    Args:
      radius: Smallest distance from which on the distance function is treated as constant: one
        number, or one for keys before and one for keys after the query. None means that no tile is
        far.
      position: For each block, the index of the column on the diagonal at the first row, where
        query and key have the same position.
      block_rows: Number of rows in a block.
      tile_columns: Number of columns in a tile.
      is_transposed: True if the rows are keys. The columns before the diagonal are then queries
        that see the keys after themselves.
    """
    if radius is None:
        radius = jnp.full((1, 1), UNBOUNDED, jnp.int32)
    sides = radius if radius.ndim == 3 else radius[:, :, None]
    largest_near_distance = jnp.clip(sides[..., ::-1] if is_transposed else sides, 1, UNBOUNDED) - 1
    before, after = largest_near_distance[..., :1], largest_near_distance[..., -1:]
    return TileLimits(
        near_start=jnp.maximum(position - before, 0) // tile_columns,
        near_end=count_tiles(jnp.maximum(position + block_rows + after, 0), tile_columns),
    )


def divide_by_distance(
    limits: TileLimits,
    distinctions: Distinctions,
    *,
    side_before_diagonal: int,
    has_radius: bool,
    is_zero_beyond_radius: Bool[Array, "B N"] | None,
    masks_zero_tiles: bool,
) -> tuple[list[TileRun], TileRun, list[TileRun]]:
    """Divide the tiles of each block into far tiles, near tiles, and far tiles again.

    Return the runs of the far tiles before the diagonal, the run of the near tiles, and the runs of
    the far tiles after the diagonal. A list of far runs is empty if no tile is far.

    Args:
      limits: First and last near tile of each block.
      distinctions: Differences between tiles that require separate loops.
      side_before_diagonal: `TileKind.side` of the tiles before the diagonal: 1 if the rows of a
        block are queries, -1 if they are keys.
      has_radius: True if the heads have a radius. If False, no tile is far.
      is_zero_beyond_radius: True for heads whose products beyond the radius are treated as 0.
        None means that there are no such heads, or that their far tiles are skipped.
      masks_zero_tiles: True if tiles whose products are treated as 0 may be masked. All of these
        tiles then have `TileKind.is_masked`, so that one loop visits all of them.
    """
    is_zero = None if is_zero_beyond_radius is None else is_zero_beyond_radius[:, :, None]
    has_far = distinctions.far and has_radius
    near_start: Array | int = limits.near_start
    near_end: Array | int = limits.near_end
    if not has_far:  # Only heads with zero scores beyond the radius have far tiles.
        near_start = 0 if is_zero is None else jnp.where(is_zero, near_start, 0)
        near_end = UNBOUNDED if is_zero is None else jnp.where(is_zero, near_end, UNBOUNDED)

    def far_runs(start: Array | int, end: Array | int, side: int) -> list[TileRun]:
        runs, far_end = [], end
        if is_zero is not None:
            zero = TileKind(is_zero=True, is_masked=masks_zero_tiles)
            runs.append(TileRun(zero, start, jnp.where(is_zero, end, start)))
            far_end = jnp.where(is_zero, start, end)
        if has_far:
            kind = TileKind(is_far=True, side=side if distinctions.far_sides else 0)
            runs.append(TileRun(kind, start, far_end))
        return runs

    first, last = side_before_diagonal, -side_before_diagonal
    near = TileRun(PLAIN, near_start, near_end)
    return far_runs(0, near_start, first), near, far_runs(near_end, UNBOUNDED, last)


def count_tiles(length: Array, tile_columns: int) -> Array:
    """Return the number of tiles that cover `length` columns."""
    return (length + tile_columns - 1) // tile_columns
