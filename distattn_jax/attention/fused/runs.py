"""Runs of consecutive tiles, and the properties that the tiles of a run share.

Tiles with the same properties are of one kind. A run consists of consecutive tiles of one kind. A
kernel has one loop per kind, so that it applies a mask or evaluates the distance function f only in
the tiles that require this.

    MASKED            some entries may be masked (`is_masked`)
    PLAIN             all entries are visible
    FAR               all entries are visible, and f is constant because |i - j| >= radius (see
                      `saturation`) with all keys before or all keys after all queries (`is_far`)
    ZERO              all entries are visible, and all scores are treated as 0 (`is_zero`)
    SMALL PLAIN       as PLAIN, in a head whose scores are all small (`has_small_scores`)
    SMALL FAR         as FAR, in a head whose scores are all small
    MASKED FAR        as FAR, but some entries may be masked
    MASKED ZERO       as ZERO, but some entries may be masked

ZERO tiles belong to heads whose scores beyond the radius are all treated as 0. Kernels skip these
tiles where their sum is 0 or known: see `skipped_tiles`.

The ends of a run are indices of tiles.
"""

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from distattn_jax.attention.fused.visible_columns import UNBOUNDED


class TileKind(NamedTuple):
    """Kind of tile: properties that a kernel can rely on.

    Attributes:
      is_far: True if the distance function is treated as constant in each of the tiles.
      is_zero: True if all scores of the tiles are treated as 0.
      is_masked: True if some entries of the tiles may be masked.
      side: 1 if all keys of a far tile are before all of its queries, -1 if they are after them. It
        is 0 in all other tiles, or if the side does not matter.
      has_small_scores: True if all scores of the head are small: see `small_scores`.
    """

    is_far: bool = False
    is_zero: bool = False
    is_masked: bool = False
    side: int = 0
    has_small_scores: bool = False


class Distinctions(NamedTuple):
    """Properties of tiles for which the kernels of a scoring need separate loops.

    Attributes:
      far: True if tiles beyond the radius differ from all other tiles.
      far_sides: True if far tiles before the diagonal differ from far tiles after the diagonal.
    """

    far: bool = False
    far_sides: bool = False


MASKED, PLAIN = TileKind(is_masked=True), TileKind()


class Run(NamedTuple):
    """Run of consecutive tiles of each block.

    Attributes:
      kind: Properties of the tiles.
      start: Index of the first tile. Blocks or heads may share it.
      end: Index of the last tile plus 1. The run is empty if `end` is not larger than `start`.
    """

    kind: TileKind
    start: Array | int
    end: Array | int

    def intersect(self, start: Array | int, end: Array | int) -> "Run":
        """Return the part of the run from tile `start` to tile `end` - 1."""
        return self._replace(start=jnp.maximum(self.start, start), end=jnp.minimum(self.end, end))


class Schedule(NamedTuple):
    """Tiles that each block of rows visits, as runs of consecutive tiles.

    Attributes:
      kinds: Properties of the tiles of each run. Runs of the same kind are neighbours, unless the
        tiles are in the order of their columns.
      runs: Index of the first tile of each run, and index of its last tile plus 1. Kernels visit
        the runs in this order.
      start: Index of the first tile that a block visits.
      end: Index of the last tile that a block visits, plus 1.
      is_in_column_order: True if each run begins where the previous run ends.
      parts: Number of parts of a block. If a block has several parts, each part has its own entry
        in `runs`, `start` and `end`, at the index block * parts + part. `runs` then has one more
        entry at its end: the first tile that any part of the block visits, and the last one plus 1.
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
        """Kind and runs of each loop of a kernel: neighbouring runs of one kind share a loop."""
        loops, start = [], 0
        for kind, runs in itertools.groupby(self.kinds):
            end = start + len(list(runs))
            loops.append((kind, range(start, end)))
            start = end
        return loops


def stack_runs(
    runs: list[Run], start: Array, end: Array, *, keeps_column_order: bool = False
) -> Schedule:
    """Combine the runs of all blocks into a schedule.

    Args:
      runs: Runs of each block, without overlap.
      start: Index of the first tile of each block.
      end: Index of the last tile of each block, plus 1.
      keeps_column_order: If False, runs of the same kind become neighbours.
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
    return Schedule(kinds, stacked, start, end, keeps_column_order)


def separate_small_scores(run: Run, has_small_scores: Array) -> list[Run]:
    """Return the run for heads with small scores, and the run for all other heads.

    Args:
      run: Run of all heads.
      has_small_scores: True for heads with small scores. It broadcasts to (B, N, blocks).
    """
    middle = jnp.where(has_small_scores, run.end, run.start)
    small = run.kind._replace(has_small_scores=True)
    return [run._replace(kind=small, end=middle), run._replace(start=middle)]


def join_parts(schedule: Schedule, parts: int) -> Schedule:
    """Combine the schedule of parts into that of blocks.

    A part skips the tiles of its block that only other parts visit.

    Args:
      schedule: Tiles that each part visits, in the order of their columns.
      parts: Number of parts of a block. The last block may lack some of them.
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


def mask_run(run: Run) -> Run:
    """Return the run with masked tiles."""
    return run._replace(kind=run.kind._replace(is_masked=True))
