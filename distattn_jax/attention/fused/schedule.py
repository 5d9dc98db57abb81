"""Schedule of tiles: the tiles that each block of rows visits, and their properties.

The rows of a block are queries and the columns of its tiles are keys, or the rows are keys and the
columns are queries. Each restriction (lengths, window, masks, segments, reach) limits the columns
that a block sees: see `visible_columns`. The columns that satisfy all restrictions, and the
distances, determine the kinds and runs of tiles: see `tile_runs`. For example, the distance
function is constant in FAR tiles, and all products q · k of ZERO tiles are treated as 0.

A kernel compiles one loop for each sequence of neighbouring runs of the same kind. A schedule
therefore contains only the kinds that the call needs. There are two cases:

- With segments or a mask of pairs, any tile may be masked. There are also MASKED FAR and MASKED
  ZERO tiles. All runs of a kind become neighbours, so that each kind has one loop.
- Otherwise, masked tiles are of the kind MASKED at all distances, and the tiles are visited in the
  order of their columns. A kind that occurs before and after the diagonal then has two loops. One
  loop for both would need more registers.

Query i has position i + offset, and key j has position j.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from distattn_jax.attention.fused import skipped_tiles, tile_runs
from distattn_jax.attention.fused.kernels import Plan
from distattn_jax.attention.fused.operands import Operands
from distattn_jax.attention.fused.tile_runs import (
    MASKED,
    PLAIN,
    Distinctions,
    TileRun,
    TileSchedule,
)
from distattn_jax.attention.fused.visible_columns import (
    UNBOUNDED,
    Columns,
    Window,
    columns_in_reach,
    columns_in_window,
    columns_of_key_mask,
    columns_of_segments,
    intersect,
)


class TileSizes(NamedTuple):
    """Sizes of the blocks and tiles of a kernel.

    Attributes:
      block_rows: Number of rows (queries, keys or diagonals) in a block.
      columns: Number of columns in a tile.
      parts: Number of equal parts into which the rows of a block are divided. Each part can visit
        different tiles. On a GPU, a part is the rows of one warpgroup.
    """

    block_rows: int
    columns: int
    parts: int = 1


class ScheduleInputs(NamedTuple):
    """Restrictions and distances that determine the tiles that each block visits.

    A block consists of consecutive queries or of consecutive keys.

    Attributes:
      query_lengths: Number of queries of each example before the padding.
      key_lengths: Number of keys of each example before the padding.
      offset: Position of query 0 minus the position of key 0.
      window: Limits of the distance between a query and a visible key.
      radius: Smallest distance from which on the distance function is treated as constant: see
        `saturation`. One number, or one for keys before and one for keys after the query. None
        means that no tile is far.
      is_zero_beyond_radius: True for heads whose products q · k beyond the radius are all treated
        as 0. None means that there are no such heads.
      reach: Largest distance of a key before a query, and of a key after a query, that kernels may
        not skip: see `forgetting`. None means that no tile is skipped for this reason.
      has_small_scores: True for heads whose scores are all small: see `small_scores`. None means
        that kernels do not distinguish them.
      key_mask: True for keys that are visible. None means that all keys are visible.
      query_segments: Segment of each query. None means one segment.
      key_segments: Segment of each key. None means one segment.
      has_mask: True if there is a mask of pairs of a query and a key. All tiles are then masked.
      full_keys: Number of keys of every example, if no example has padded keys. None if some
        example may have padded keys.
    """

    query_lengths: Int[Array, "#B"]
    key_lengths: Int[Array, "#B"]
    offset: Int[Array, "#B"]
    window: Window = Window()
    radius: Int[Array, "#B #N *sides"] | None = None
    is_zero_beyond_radius: Bool[Array, "B N"] | None = None
    reach: Int[Array, "B N 2"] | None = None
    has_small_scores: Bool[Array, "B N"] | None = None
    key_mask: Bool[Array, "#B #N S"] | None = None
    query_segments: Int[Array, "B T"] | None = None
    key_segments: Int[Array, "B S"] | None = None
    has_mask: bool = False
    full_keys: int | None = None

    @property
    def has_segments(self) -> bool:
        """True if queries see only keys of their own segment."""
        return self.query_segments is not None


class VisibleColumns(NamedTuple):
    """Columns of the score map that each block of rows sees.

    The rows are queries and the columns are keys, or the rows are keys and the columns are queries.

    Attributes:
      position: Index of the column on the diagonal at the first row of the block, where query and
        key have the same position. It may be negative, or larger than the last column.
      columns: Range of columns that at least one row of the block sees, and range of columns that
        all rows see.
      starts_masked: True if the first visited tiles of a block may contain masked entries.
      ends_masked: True if the last visited tiles of a block may contain masked entries.
    """

    position: Int[Array, "#B 1 blocks"]
    columns: Columns
    starts_masked: bool
    ends_masked: bool


def schedule_blocks(
    inputs: ScheduleInputs,
    length: int,
    block_rows: int,
    tile_columns: int,
    *,
    is_transposed: bool,
    distinctions: Distinctions,
    visits_zero_tiles: bool = False,
    keeps_column_order: bool = False,
) -> TileSchedule:
    """Return the tiles that each block of rows visits.

    The rows are queries and the tiles consist of keys. If `is_transposed`, the rows are keys and
    the tiles consist of queries.

    Args:
      inputs: Restrictions and distances of the call.
      length: Number of rows.
      block_rows: Number of rows in a block.
      tile_columns: Number of columns in a tile.
      is_transposed: True if the rows are keys, False if the rows are queries.
      distinctions: Differences between tiles that require separate loops.
      visits_zero_tiles: If False, skip the tiles whose products q · k are all treated as 0.
      keeps_column_order: If True, always visit the tiles in the order of their columns. If False,
        segments or a mask of pairs change the order: runs of the same kind become neighbours.
    """
    if is_transposed:
        visible = _find_queries(inputs, length, block_rows)
    else:
        visible = _find_keys(inputs, length, block_rows, tile_columns)
    position, columns, starts_masked, ends_masked = visible
    limits = tile_runs.find_tile_limits(
        inputs.radius, position, block_rows, tile_columns, is_transposed=is_transposed
    )
    end = tile_runs.count_tiles(jnp.maximum(columns.end, 0), tile_columns)
    start = jnp.minimum(jnp.maximum(columns.start, 0) // tile_columns, end)
    plain_start = jnp.clip(
        tile_runs.count_tiles(jnp.asarray(columns.common_start), tile_columns), start, end
    )
    plain_end = jnp.clip(columns.common_end // tile_columns, plain_start, end)
    is_zero = inputs.is_zero_beyond_radius
    if is_zero is not None and not visits_zero_tiles:
        near_start = jnp.clip(limits.near_start, start, end)
        near_end = jnp.clip(limits.near_end, near_start, end)
        start = jnp.where(is_zero[:, :, None], near_start, start)
        end = jnp.where(is_zero[:, :, None], near_end, end)
    masks_any_tile = inputs.has_mask or inputs.has_segments
    first_far, near, last_far = tile_runs.divide_by_distance(
        limits,
        distinctions,
        side_before_diagonal=-1 if is_transposed else 1,
        has_radius=inputs.radius is not None,
        is_zero_beyond_radius=is_zero if visits_zero_tiles else None,
        masks_zero_tiles=masks_any_tile,
    )
    if inputs.window.is_causal:  # The last keys, or the first queries, are masked.
        first_far, last_far = ([], last_far) if is_transposed else (first_far, [])
    if masks_any_tile:
        masked = [*map(tile_runs.mask_run, (*first_far, near, *last_far))]
    else:
        masked = [TileRun(MASKED, 0, UNBOUNDED)]
    if inputs.has_mask:
        runs = [run.intersect(start, end) for run in masked]
        return tile_runs.stack_runs(runs, start, end, keeps_column_order=keeps_column_order)
    runs = []
    if starts_masked:
        runs += [run.intersect(start, jnp.minimum(plain_start, end)) for run in masked]
    first, last = jnp.maximum(plain_start, start), jnp.minimum(plain_end, end)
    for run in (*first_far, near, *last_far):
        plain = run.intersect(first, last)
        has_scores = distinctions.zero_scores or not run.kind.is_zero
        if inputs.has_small_scores is not None and has_scores:
            runs += tile_runs.separate_small_scores(plain, inputs.has_small_scores[:, :, None])
        else:
            runs.append(plain)
    if ends_masked:
        runs += [run.intersect(jnp.maximum(plain_end, start), end) for run in masked]
    keeps_column_order |= not masks_any_tile
    return tile_runs.stack_runs(runs, start, end, keeps_column_order=keeps_column_order)


def _find_keys(
    inputs: ScheduleInputs, length: int, block_rows: int, tile_columns: int
) -> VisibleColumns:
    """Return the keys that each block of queries sees."""
    start = _block_starts(length, block_rows)
    position = start + _per_block(inputs.offset)
    key_lengths = _per_block(inputs.key_lengths)
    end = jnp.where(start < _per_block(inputs.query_lengths), key_lengths, 0)
    ranges = [Columns(end=end, common_end=key_lengths)]
    ranges.append(columns_in_window(inputs.window, position, block_rows))
    if inputs.reach is not None:
        ranges.append(columns_in_reach(inputs.reach, position, block_rows))
    if inputs.key_mask is not None:
        ranges.append(columns_of_key_mask(inputs.key_mask))
    if inputs.query_segments is not None and inputs.key_segments is not None:
        ranges.append(columns_of_segments(inputs.query_segments, inputs.key_segments, block_rows))
    ends_inside_tile = inputs.full_keys is None or inputs.full_keys % tile_columns > 0
    may_be_masked = inputs.has_segments or inputs.key_mask is not None
    return VisibleColumns(
        position,
        intersect(ranges),
        starts_masked=may_be_masked or inputs.window.left is not None,
        ends_masked=may_be_masked or inputs.window.right is not None or ends_inside_tile,
    )


def _find_queries(inputs: ScheduleInputs, length: int, block_rows: int) -> VisibleColumns:
    """Return the queries that see each block of keys.

    Padded queries are included, because their weights are 0. A block of keys counts as visible if
    it overlaps the range from the first to the last visible key. It may contain masked keys,
    because the kernels set the outputs of masked keys to 0.
    """
    start = _block_starts(length, block_rows)
    position = start - _per_block(inputs.offset)
    is_visible = start < _per_block(inputs.key_lengths)
    if inputs.key_mask is not None:
        visible = columns_of_key_mask(inputs.key_mask)
        is_visible &= (start < visible.end) & (start + block_rows > visible.start)
    ranges = [Columns(end=jnp.where(is_visible, _per_block(inputs.query_lengths), 0))]
    ranges.append(columns_in_window(inputs.window.mirrored, position, block_rows))
    if inputs.reach is not None:
        ranges.append(columns_in_reach(inputs.reach[..., ::-1], position, block_rows))
    if inputs.query_segments is not None and inputs.key_segments is not None:
        ranges.append(columns_of_segments(inputs.key_segments, inputs.query_segments, block_rows))
    return VisibleColumns(
        position,
        intersect(ranges),
        starts_masked=inputs.has_segments or inputs.window.right is not None,
        ends_masked=inputs.has_segments or inputs.window.left is not None,
    )


def schedule_diagonal_blocks(
    inputs: ScheduleInputs, blocks: int, block_rows: int, tile_size: int, origin: int
) -> TileSchedule:
    """Return the tiles of queries that each block of diagonals visits.

    A tile has `tile_size` queries. For each tile, the kernel computes a strip of `block_rows` keys
    that begins on the first diagonal of the block. The strip thus moves with the queries, and may
    begin before key 0. All sizes must be multiples of `tile_size`, and `inputs.radius` must be
    None.

    Args:
      inputs: Restrictions of the call.
      blocks: Number of blocks of diagonals.
      block_rows: Number of diagonals in a block.
      tile_size: Number of queries in a tile.
      origin: Index of the diagonal of query 0 and key 0. Diagonal x contains the queries i and keys
        j with j - i = x - origin.
    """
    # A block has `block_rows` / `tile_size` tiles for each tile of queries. Key `first` + i is the
    # first key of the tiles that begin with query i.
    first = _block_starts(blocks * block_rows, block_rows) - origin
    key_lengths, query_lengths = _per_block(inputs.key_lengths), _per_block(inputs.query_lengths)
    last_tile = first + block_rows - tile_size
    smallest = _per_block(inputs.offset) - last_tile - (tile_size - 1)  # position of query - key
    largest = _per_block(inputs.offset) - first + (tile_size - 1)
    left, right = inputs.window
    window_hides_none, window_hides_all = jnp.bool_(True), jnp.bool_(False)
    if left is not None:
        window_hides_none, window_hides_all = largest <= left, smallest > left
    if right is not None:
        window_hides_none, window_hides_all = (
            window_hides_none & (smallest >= -right),
            window_hides_all | (largest < -right),
        )
    start = jnp.maximum(-last_tile, 0) // tile_size
    end = jnp.where(window_hides_all, 0, jnp.minimum(query_lengths, key_lengths - first))
    end = jnp.maximum(tile_runs.count_tiles(end, tile_size), start)
    if inputs.has_mask or inputs.key_mask is not None or inputs.query_segments is not None:
        return tile_runs.stack_runs(
            [TileRun(MASKED, start, end)], start, end, keeps_column_order=True
        )
    plain_start = jnp.clip(tile_runs.count_tiles(-first, tile_size), start, end)
    plain_end = jnp.clip((key_lengths - last_tile) // tile_size, plain_start, end)
    plain_end = jnp.where(window_hides_none, plain_end, plain_start)
    runs = [
        TileRun(MASKED, start, plain_start),
        TileRun(PLAIN, plain_start, plain_end),
        TileRun(MASKED, plain_end, end),
    ]
    return tile_runs.stack_runs(runs, start, end, keeps_column_order=True)


def _per_block(per_example: Int[Array, "#B"]) -> Int[Array, "#B 1 1"]:
    """Reshape (B,) to (B, 1, 1), so that the array broadcasts over heads and blocks."""
    return per_example[:, None, None]


def _block_starts(length: int, block_rows: int) -> Int[Array, "1 1 blocks"]:
    """Return the index of the first row of each block, for `length` rows in total.

    The result is a constant, so that XLA computes a schedule that depends on no other array while
    it compiles.
    """
    return jnp.asarray(np.arange(0, length, block_rows, dtype=np.int32)[None, None, :])


class CallSchedules:
    """Schedules of the kernels of one attention call.

    Examples or heads that visit the same tiles share a schedule.
    """

    def __init__(self, plan: Plan, operands: Operands):
        self.plan, self.operands = plan, operands
        self.inputs = ScheduleInputs(
            query_lengths=operands.query_lengths,
            key_lengths=operands.key_lengths,
            offset=operands.offset,
            window=plan.window,
            radius=operands.radius,
            is_zero_beyond_radius=operands.is_zero_beyond_radius,
            reach=operands.reach,
            key_mask=operands.key_mask,
            query_segments=operands.query_segments,
            key_segments=operands.key_segments,
            has_mask=operands.mask is not None,
            full_keys=None if plan.has_padded_keys else operands.key.shape[1],
        )

    def blocks(
        self,
        sizes: TileSizes,
        *,
        is_transposed: bool = False,
        drops_weights: bool = False,
        needs_zero_tiles: bool = True,
        separates_small_scores: bool = False,
    ) -> TileSchedule:
        """Return the tiles that each block of rows visits.

        Args:
          is_transposed: True if the rows are keys, False if the rows are queries.
          drops_weights: True if the kernel sums weights after dropout. This has no effect if the
            call has no dropout.
          needs_zero_tiles: False if the kernel may skip tiles whose products are treated as 0.
          separates_small_scores: True if heads with small scores get their own kinds of tiles (see
            `TileKind.has_small_scores`).
        """
        inputs, operands = self.inputs, self.operands
        if separates_small_scores:
            inputs = inputs._replace(has_small_scores=operands.has_small_scores)
        parts = sizes.parts if self._may_visit_different_tiles() else 1
        schedule = schedule_blocks(
            inputs,
            (operands.key if is_transposed else operands.query).shape[1],
            sizes.block_rows // parts,
            sizes.columns,
            is_transposed=is_transposed,
            distinctions=self.plan.scoring.distinctions,
            visits_zero_tiles=needs_zero_tiles and self._needs_zero_tiles(drops_weights),
            # Neighbouring tiles share position vectors, which are copied once.
            keeps_column_order=self.plan.scoring.has_positions,
        )
        return tile_runs.join_parts(schedule, parts) if parts > 1 else schedule

    def diagonal_blocks(self, sizes: TileSizes, length: int, origin: int) -> TileSchedule:
        """Return the tiles of queries that each block of diagonals visits.

        This is the schedule of the GPU kernel `position_gradient`: see `schedule_diagonal_blocks`.

        Args:
          length: Number of diagonals of the score map.
          origin: Index of the diagonal of query 0 and key 0.
        """
        blocks = length // sizes.block_rows
        return schedule_diagonal_blocks(
            self.inputs, blocks, sizes.block_rows, sizes.columns, origin
        )

    def _needs_zero_tiles(self, drops_weights: bool) -> bool:
        """Return True if a kernel must visit the tiles whose products q · k are treated as 0.

        A kernel skips these tiles if it can add precomputed sums instead: see `skipped_tiles`.
        """
        has_sums = skipped_tiles.has_sums(self.plan, self.operands, drops_weights=drops_weights)
        return self.operands.is_zero_beyond_radius is not None and not has_sums

    def _may_visit_different_tiles(self) -> bool:
        """Return True if the parts of a block may visit different tiles: see `TileSizes.parts`.

        This requires that the tiles are visited in the order of their columns.
        """
        window, operands = self.plan.window, self.operands
        limits = (operands.radius, operands.reach)
        differs = any(x is not None for x in limits) or window != Window()
        may_leave_column_order = operands.mask is not None or operands.query_segments is not None
        return differs and not may_leave_column_order and not self.plan.scoring.has_positions
