"""Schedule of tiles: the tiles that each block of rows visits, and their properties.

The rows of a block are queries and the columns of its tiles are keys, or the rows are keys and the
columns are queries. Tiles are visited in the order of their columns. A section is a run of tiles
with the same properties. A kernel has one loop per section, so that it applies a mask or evaluates
the distance function f only in the sections that require this.

    MASKED   some entries may be masked
    PLAIN    all entries are visible
    BEFORE   all entries are visible, and no key is after a query
    AFTER    all entries are visible, and no key is before a query
    FAR      all entries are visible, and f is constant because |i - j| >= radius (see `saturation`)
             with all keys before or all keys after all queries
    ZERO     all entries are visible, and all scores are treated as 0

The order is MASKED, ZERO, FAR, BEFORE, PLAIN, AFTER, FAR, ZERO, MASKED for blocks of queries. For
blocks of keys, AFTER and BEFORE are exchanged. Sections that are always
empty for a call are left out. Heads that skip far tiles have empty FAR sections. With dropout, some
kernels cannot skip these tiles and visit them as ZERO tiles. Scorings without distance have only
MASKED, ZERO and PLAIN sections.

Every restriction of the visible keys (lengths, a window, a key mask, segments) defines two ranges
of columns for each block: the columns that some row may see, and the columns that all rows see. The
intersection of the ranges of all restrictions determines the sections.

Query i has position i + offset, and key j has position j. A bound is the index of a tile, and
section s consists of the tiles bounds[s] to bounds[s + 1] - 1.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


class Section(NamedTuple):
    """Properties of a run of consecutive tiles.

    Attributes:
      is_far: True if the distance function is treated as constant in each of the tiles.
      is_zero: True if all scores of the tiles are treated as 0.
      is_masked: True if some entries of the tiles may be masked.
      side: 1 if no key of a tile is after a query of the tile, -1 if no key is before a query, 0 if
        a tile may have keys before a query and keys after a query.
    """

    is_far: bool = False
    is_zero: bool = False
    is_masked: bool = False
    side: int = 0


INFINITE_RADIUS = 2**30  # larger than every distance
MASKED, PLAIN, ZERO = Section(is_masked=True), Section(), Section(is_zero=True)


class Window(NamedTuple):
    """Largest number of positions by which a visible key may be before and after the query.

    Attributes:
      left: Limit for keys before the query. None means no limit.
      right: Limit for keys after the query. None means no limit. 0 is a causal mask.
    """

    left: int | None = None
    right: int | None = None

    @property
    def is_causal(self) -> bool:
        """True if no key after a query is visible."""
        return self.right == 0

    @property
    def mirrored(self) -> "Window":
        """Window of the queries that see a key, relative to the position of the key."""
        return Window(self.right, self.left)


class ScheduleInputs(NamedTuple):
    """Restrictions and distances that determine the tiles that each block of rows visits.

    Attributes:
      query_lengths: Number of queries of each example before the padding.
      key_lengths: Number of keys of each example before the padding.
      offset: Position of query 0 minus the position of key 0.
      window: Limits of the distance between a query and a visible key.
      radius: Smallest distance at which the distance function is treated as constant. None means
        that no tile is far.
      skips_far_tiles: True for heads that skip the tiles beyond the radius. None means that no
        head skips tiles.
      key_mask: True for keys that are visible. None means that all keys are visible.
      query_segments: Segment of each query. None means one segment.
      key_segments: Segment of each key. None means one segment.
      has_mask: True if there is a mask of pairs of a query and a key. All tiles are then MASKED.
    """

    query_lengths: Int[Array, " B"]
    key_lengths: Int[Array, " B"]
    offset: Int[Array, " B"]
    window: Window = Window()
    radius: Int[Array, "B N"] | None = None
    skips_far_tiles: Bool[Array, "B N"] | None = None
    key_mask: Bool[Array, "#B #N S"] | None = None
    query_segments: Int[Array, "B T"] | None = None
    key_segments: Int[Array, "B S"] | None = None
    has_mask: bool = False


class Schedule(NamedTuple):
    """Tiles that each block of rows visits, divided into sections of consecutive tiles.

    Attributes:
      sections: Properties of the tiles of each section.
      bounds: Index of the first tile of each section, followed by the end of the last section: the
        index of its last tile plus 1.
    """

    sections: tuple[Section, ...]
    bounds: Int[Array, "#B #N blocks bounds"]


def schedule_query_blocks(
    inputs: ScheduleInputs,
    length: int,
    block_rows: int,
    tile_columns: int,
    *,
    uses_distance: bool,
    visits_zero_tiles: bool = False,
) -> Schedule:
    """Return the tiles of keys that each block of queries visits.

    Args:
      inputs: Restrictions and distances.
      length: Number of queries.
      block_rows: Number of queries in a block.
      tile_columns: Number of keys in a tile.
      uses_distance: True if kernels compute the scores from the distance between query and key.
      visits_zero_tiles: If True, heads with `skips_far_tiles` visit their far tiles as ZERO tiles.
    """
    start = _block_starts(length, block_rows)
    position = start + _per_block(inputs.offset)
    key_lengths = _per_block(inputs.key_lengths)
    end = jnp.where(start < _per_block(inputs.query_lengths), key_lengths, 0)
    ranges = [_Columns(end=end, common_end=key_lengths)]
    ranges.append(_columns_in_window(inputs.window, position, block_rows))
    if inputs.key_mask is not None:
        ranges.append(_visible_columns(inputs.key_mask))
    if inputs.query_segments is not None and inputs.key_segments is not None:
        ranges.append(_columns_of_segments(inputs.query_segments, inputs.key_segments, block_rows))
    starts_masked = (
        inputs.window.left is not None
        or inputs.key_mask is not None
        or inputs.query_segments is not None
    )
    return _make_schedule(
        inputs,
        _intersect(ranges),
        _tiles_around(inputs, position, block_rows, tile_columns),
        tile_columns,
        uses_distance=uses_distance,
        starts_masked=starts_masked,
        ends_masked=True,  # because of key_lengths
        side_of_first_columns=1,
        is_one_sided=inputs.window.is_causal,
        visits_zero_tiles=visits_zero_tiles,
    )


def schedule_key_blocks(
    inputs: ScheduleInputs,
    length: int,
    block_rows: int,
    tile_columns: int,
    *,
    uses_distance: bool,
    visits_zero_tiles: bool = False,
) -> Schedule:
    """Return the tiles of queries that each block of keys visits.

    Padded queries count as visible, because their weights are 0. Masked keys between the first and
    the last visible key are visited, because the kernels set the outputs of masked keys to 0.

    Args:
      inputs: Restrictions and distances.
      length: Number of keys.
      block_rows: Number of keys in a block.
      tile_columns: Number of queries in a tile.
      uses_distance: True if kernels compute the scores from the distance between query and key.
      visits_zero_tiles: If True, heads with `skips_far_tiles` visit their far tiles as ZERO tiles.
    """
    start = _block_starts(length, block_rows)
    position = start - _per_block(inputs.offset)  # query index at the position of the first key
    is_visible = start < _per_block(inputs.key_lengths)
    if inputs.key_mask is not None:
        visible = _visible_columns(inputs.key_mask)
        is_visible &= (start < visible.end) & (start + block_rows > visible.start)
    ranges = [_Columns(end=jnp.where(is_visible, _per_block(inputs.query_lengths), 0))]
    ranges.append(_columns_in_window(inputs.window.mirrored, position, block_rows))
    if inputs.query_segments is not None and inputs.key_segments is not None:
        ranges.append(_columns_of_segments(inputs.key_segments, inputs.query_segments, block_rows))
    has_segments = inputs.query_segments is not None
    return _make_schedule(
        inputs,
        _intersect(ranges),
        _tiles_around(inputs, position, block_rows, tile_columns),
        tile_columns,
        uses_distance=uses_distance,
        starts_masked=inputs.window.right is not None or has_segments,
        ends_masked=inputs.window.left is not None or has_segments,
        side_of_first_columns=-1,
        is_one_sided=inputs.window.is_causal,
        visits_zero_tiles=visits_zero_tiles,
    )


def schedule_diagonal_blocks(
    inputs: ScheduleInputs, blocks: int, block_rows: int, tile_size: int, origin: int
) -> Schedule:
    """Return the tiles of queries that each block of diagonals visits.

    The rows of a tile are keys. The first tile of a block that has a visible entry may have rows
    before row 0. All sizes are multiples of `tile_size`.

    Args:
      inputs: Restrictions. `radius` and `skips_far_tiles` are None.
      blocks: Number of blocks.
      block_rows: Number of diagonals in a block.
      tile_size: Number of keys and number of queries in a tile.
      origin: Index of the diagonal of query 0 and key 0. Diagonal x contains the queries i and keys
        j with j - i = x - origin.
    """
    # A block has `block_rows` / `tile_size` tiles for each tile of queries. Key `first` + i is the
    # first key of the tiles that begin with query i.
    first = _block_starts(blocks * block_rows, block_rows) - origin
    key_lengths, query_lengths = _per_block(inputs.key_lengths), _per_block(inputs.query_lengths)
    last_tile = first + block_rows - tile_size
    smallest = _per_block(inputs.offset) - last_tile - (tile_size - 1)  # of query - key
    largest = _per_block(inputs.offset) - first + (tile_size - 1)
    left, right = inputs.window
    hides_none, hides_all = jnp.bool_(True), jnp.bool_(False)
    if left is not None:
        hides_none, hides_all = largest <= left, smallest > left
    if right is not None:
        hides_none, hides_all = hides_none & (smallest >= -right), hides_all | (largest < -right)
    start = jnp.maximum(-last_tile, 0) // tile_size
    end = jnp.where(hides_all, 0, jnp.minimum(query_lengths, key_lengths - first))
    end = jnp.maximum(_count_tiles(end, tile_size), start)
    if inputs.has_mask or inputs.key_mask is not None or inputs.query_segments is not None:
        return Schedule((MASKED,), _stack_bounds(start, end))
    plain_start = jnp.clip(_count_tiles(-first, tile_size), start, end)
    plain_end = jnp.clip((key_lengths - last_tile) // tile_size, plain_start, end)
    plain_end = jnp.where(hides_none, plain_end, plain_start)
    return Schedule((MASKED, PLAIN, MASKED), _stack_bounds(start, plain_start, plain_end, end))


class _Columns(NamedTuple):
    """Columns that the rows of each block may see, as arrays that broadcast to (B, N, blocks).

    Attributes:
      start: First column that some row may see.
      end: Last column that some row may see, plus 1.
      common_start: First column of a run of columns that all rows see.
      common_end: Last column of this run, plus 1.
    """

    start: Array | int = 0
    end: Array | int = INFINITE_RADIUS
    common_start: Array | int = 0
    common_end: Array | int = INFINITE_RADIUS


def _intersect(ranges: Sequence[_Columns]) -> _Columns:
    """Return the columns that satisfy all restrictions."""
    start, end, common_start, common_end = ranges[0]
    for other in ranges[1:]:
        start, end = jnp.maximum(start, other.start), jnp.minimum(end, other.end)
        common_start = jnp.maximum(common_start, other.common_start)
        common_end = jnp.minimum(common_end, other.common_end)
    return _Columns(start, end, common_start, common_end)


def _columns_in_window(window: Window, position: Array, block_rows: int) -> _Columns:
    """Return the columns inside the windows of the rows of each block.

    Args:
      window: Limits of the distance between a row and a column.
      position: For each block, the column that is aligned with its first row.
      block_rows: Number of rows of a block.
    """
    last = position + block_rows - 1
    columns = _Columns()
    if window.left is not None:
        columns = columns._replace(start=position - window.left, common_start=last - window.left)
    if window.right is not None:
        columns = columns._replace(
            end=last + window.right + 1, common_end=position + window.right + 1
        )
    return columns


def _visible_columns(mask: Bool[Array, "#B #N L"]) -> _Columns:
    """Return the columns from the first to the last visible one, and the first run of them."""
    visible = mask[:, :, None, :]
    return _first_run(visible, visible)


def _columns_of_segments(
    row_segments: Int[Array, "B R"], column_segments: Int[Array, "B C"], block_rows: int
) -> _Columns:
    """Return the columns whose segments occur in the rows of each block.

    If the segments are not sorted, the range may contain columns of other segments.

    Args:
      row_segments: Segment of each row.
      column_segments: Segment of each column.
      block_rows: Number of rows of a block.
    """
    padding = -row_segments.shape[1] % block_rows
    padded = jnp.pad(row_segments, ((0, 0), (0, padding)), mode="edge")
    blocks = padded.reshape(padded.shape[0], 1, -1, block_rows)
    smallest, largest = blocks.min(axis=-1, keepdims=True), blocks.max(axis=-1, keepdims=True)
    columns = column_segments[:, None, None, :]
    seen = (columns >= smallest) & (columns <= largest)
    return _first_run(seen, (columns == smallest) & (smallest == largest))


def _first_run(seen: Bool[Array, "B N blocks C"], common: Bool[Array, "B N blocks C"]) -> _Columns:
    """Return the range of the seen columns, and the first run of common columns.

    Args:
      seen: True for columns that some row of a block may see.
      common: True for columns that all rows of a block see.
    """
    count = seen.shape[-1]
    index = jnp.arange(count, dtype=jnp.int32)[None, None, None, :]
    start = jnp.where(seen, index, count).min(axis=-1)
    end = jnp.where(seen, index + 1, 0).max(axis=-1)
    common_start = jnp.where(common, index, count).min(axis=-1)
    interrupts = ~common & (index >= common_start[..., None])
    common_end = jnp.where(interrupts, index, count).min(axis=-1)
    return _Columns(start, end, common_start, common_end)


def merge_near_sections(schedule: Schedule) -> Schedule:
    """Merge consecutive sections that differ only in their side, except for far sections."""
    sections = [x if x.is_far else x._replace(side=0) for x in schedule.sections]
    first = [i for i in range(len(sections)) if i == 0 or sections[i] != sections[i - 1]]
    bounds = schedule.bounds[..., jnp.asarray([*first, len(sections)])]
    return Schedule(tuple(sections[i] for i in first), bounds)


class _TilesAround(NamedTuple):
    """Tile indices where the near columns and the diagonal of each block of rows begin and end.

    A column is near a block if some distance between them is below the radius of the head. Rows and
    columns are compared by their positions in the sequence.

    Attributes:
      near_start: First tile that contains a distance below the radius.
      diagonal_start: First tile that contains a column after the first row of the block.
      diagonal_end: First tile whose columns are all at or after the last row of the block.
      near_end: First tile after the block whose distances are all at least the radius.
    """

    near_start: Array
    diagonal_start: Array
    diagonal_end: Array
    near_end: Array


def _tiles_around(
    inputs: ScheduleInputs, position: Array, block_rows: int, tile_columns: int
) -> _TilesAround:
    """Return where the near columns and the diagonal of each block of rows begin and end.

    Args:
      inputs: Arrays that determine the schedule.
      position: For each block, the column that is aligned with its first row.
      block_rows: Number of rows of a block.
      tile_columns: Number of columns of a tile.
    """
    if inputs.radius is None:
        radius = jnp.full((1, 1), INFINITE_RADIUS, jnp.int32)
    else:
        radius = inputs.radius
    largest_near_distance = jnp.clip(radius, 1, INFINITE_RADIUS)[:, :, None] - 1
    return _TilesAround(
        near_start=jnp.maximum(position - largest_near_distance, 0) // tile_columns,
        diagonal_start=jnp.maximum(position + 1, 0) // tile_columns,
        diagonal_end=_count_tiles(jnp.maximum(position + block_rows - 1, 0), tile_columns),
        near_end=_count_tiles(
            jnp.maximum(position + block_rows + largest_near_distance, 0), tile_columns
        ),
    )


def _make_schedule(
    inputs: ScheduleInputs,
    columns: _Columns,
    around: _TilesAround,
    tile_columns: int,
    *,
    uses_distance: bool,
    starts_masked: bool,
    ends_masked: bool,
    side_of_first_columns: int,
    is_one_sided: bool,
    visits_zero_tiles: bool,
) -> Schedule:
    """Return the schedule of blocks that see the given columns.

    Args:
      inputs: Restrictions and distances.
      columns: Columns that the rows of each block see.
      around: Tiles where the near columns and the diagonal of each block begin and end.
      tile_columns: Number of columns of a tile.
      uses_distance: True if kernels compute the scores from the distance between query and key.
      starts_masked: True if the first visited tiles may be masked.
      ends_masked: True if the last visited tiles may be masked.
      side_of_first_columns: `Section.side` of the tiles before the diagonal: 1 if the columns are
        keys, -1 if they are queries.
      is_one_sided: True if no plain tile has keys after a query, because of a causal mask.
      visits_zero_tiles: If True, heads that skip far tiles visit them as ZERO tiles instead.
    """
    end = _count_tiles(jnp.maximum(columns.end, 0), tile_columns)
    start = jnp.minimum(jnp.maximum(columns.start, 0) // tile_columns, end)
    plain_start = jnp.clip(
        _count_tiles(jnp.asarray(columns.common_start), tile_columns), start, end
    )
    plain_end = jnp.clip(columns.common_end // tile_columns, plain_start, end)
    if inputs.has_mask:
        return Schedule((MASKED,), _stack_bounds(start, end))
    first, last = Section(side=side_of_first_columns), Section(side=-side_of_first_columns)
    far_first, far_last = (section._replace(is_far=True) for section in (first, last))
    sections = [MASKED, ZERO, far_first, first, PLAIN, last, far_last, ZERO, MASKED]
    has_far, has_zero = uses_distance and inputs.radius is not None, visits_zero_tiles
    is_used = [
        starts_masked,
        has_zero,
        has_far,
        uses_distance,
        True,
        uses_distance,
        has_far,
        has_zero,
        ends_masked,
    ]
    if is_one_sided:  # Unmasked keys are before the diagonal, unmasked queries after it.
        hidden = slice(4, 8) if side_of_first_columns == 1 else slice(1, 5)
        is_used[hidden] = [False] * 4
        is_used[4] = not uses_distance
    near = [jnp.clip(bound, plain_start, plain_end) for bound in around]
    bounds = [start, plain_start, plain_start, *near, plain_end, plain_end, end]
    skips = None if inputs.skips_far_tiles is None else inputs.skips_far_tiles[:, :, None]
    if skips is not None and visits_zero_tiles:
        bounds[2] = jnp.where(skips, near[0], plain_start)
        bounds[7] = jnp.where(skips, near[-1], plain_end)
    if not uses_distance:
        bounds[3:7] = [bounds[2]] * 4
    if skips is not None and not visits_zero_tiles:
        near_start = jnp.clip(around.near_start, start, end)
        near_end = jnp.clip(around.near_end, near_start, end)
        bounds = [
            jnp.where(skips, jnp.clip(bound, near_start, near_end), bound) for bound in bounds
        ]
    used = [i for i in range(len(sections)) if is_used[i]]
    stacked = _stack_bounds(*(bounds[i] for i in used), bounds[-1])
    return Schedule(tuple(sections[i] for i in used), stacked)


def _per_block(per_example: Int[Array, " B"]) -> Int[Array, "B 1 1"]:
    """Reshape (B,) to (B, 1, 1), so that the array broadcasts over heads and blocks."""
    return per_example[:, None, None]


def _block_starts(length: int, block_rows: int) -> Int[Array, "1 1 blocks"]:
    """Return the index of the first row of each block."""
    return jnp.arange(0, length, block_rows, dtype=jnp.int32)[None, None, :]


def _count_tiles(length: Array, tile_columns: int) -> Array:
    """Return the number of tiles that cover `length` columns."""
    return (length + tile_columns - 1) // tile_columns


def _stack_bounds(*bounds: Array | int) -> Int[Array, "B N blocks bounds"]:
    """Stack bounds on a new last axis and make them nondecreasing.

    A bound that is smaller than an earlier bound is replaced by the earlier bound. The section
    between the two bounds is then empty.
    """
    stacked = jnp.stack(jnp.broadcast_arrays(*bounds), axis=-1).astype(jnp.int32)
    return jax.lax.cummax(stacked, axis=3)
