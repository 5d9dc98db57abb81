"""Schedule of tiles: the tiles that each block of rows visits, and their properties.

The rows of a block are queries and the columns of its tiles are keys, or the rows are keys and the
columns are queries. A section is a set of tiles with the same properties. It consists of runs of
consecutive tiles. A kernel has one loop per section, so that it applies a mask or evaluates the
distance function f only in the sections that require this.

    MASKED        some entries may be masked
    PLAIN         all entries are visible
    BEFORE        all entries are visible, and no key is after a query
    AFTER         all entries are visible, and no key is before a query
    FAR           all entries are visible, and f is constant because |i - j| >= radius (see
                  `saturation`) with all keys before or all keys after all queries
    ZERO          all entries are visible, and all scores are treated as 0
    MASKED FAR    as FAR, but some entries may be masked
    MASKED ZERO   as ZERO, but some entries may be masked

A kernel compiles the code of each loop, so that a schedule has only the sections that the call
needs. A mask of pairs or segments may mask any tile. Only then are there MASKED FAR and MASKED ZERO
tiles, and only then does one loop visit all runs of a section. Under all other restrictions, masked
tiles are MASKED at any distance, and the tiles are visited in the order of their columns: equal
sections before and after the diagonal have a loop each, because one loop for both would need more
registers.

ZERO tiles belong to heads whose scores beyond the radius are all treated as 0. Kernels skip these
tiles where their sum is 0 or known: see `skipped_tiles`.

Every restriction of the visible keys (lengths, a window, a key mask, segments) defines two ranges
of columns for each block: the columns that some row may see, and the columns that all rows see. The
intersection of the ranges of all restrictions determines the sections.

Query i has position i + offset, and key j has position j. The ends of a run are indices of tiles.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


class Section(NamedTuple):
    """Properties of a set of tiles.

    Attributes:
      is_far: True if the distance function is treated as constant in each of the tiles.
      is_zero: True if all scores of the tiles are treated as 0.
      is_masked: True if some entries of the tiles may be masked.
      side: 1 if no key of a tile is after a query of the tile, -1 if no key is before a query, 0 if
        a tile may have keys before a query and keys after a query, or if the side does not matter.
    """

    is_far: bool = False
    is_zero: bool = False
    is_masked: bool = False
    side: int = 0


class Distinctions(NamedTuple):
    """Tiles that the kernels of a scoring compute in different ways.

    Attributes:
      far: True if tiles beyond the radius differ from all other tiles.
      far_sides: True if far tiles before the diagonal differ from far tiles after the diagonal.
      near_sides: True if tiles before, on and after the diagonal differ within the radius.
    """

    far: bool = False
    far_sides: bool = False
    near_sides: bool = False


INFINITE_RADIUS = 2**30  # larger than every distance
MASKED, PLAIN = Section(is_masked=True), Section()


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
      is_zero_beyond_radius: True for heads whose scores beyond the radius are all treated as 0.
        None means that there are no such heads.
      key_mask: True for keys that are visible. None means that all keys are visible.
      query_segments: Segment of each query. None means one segment.
      key_segments: Segment of each key. None means one segment.
      has_mask: True if there is a mask of pairs of a query and a key. All tiles are then masked.
    """

    query_lengths: Int[Array, " B"]
    key_lengths: Int[Array, " B"]
    offset: Int[Array, " B"]
    window: Window = Window()
    radius: Int[Array, "B N"] | None = None
    is_zero_beyond_radius: Bool[Array, "B N"] | None = None
    key_mask: Bool[Array, "#B #N S"] | None = None
    query_segments: Int[Array, "B T"] | None = None
    key_segments: Int[Array, "B S"] | None = None
    has_mask: bool = False


class Schedule(NamedTuple):
    """Tiles that each block of rows visits, as runs of consecutive tiles.

    Attributes:
      sections: Properties of the tiles of each run. Equal sections are neighbours, unless the tiles
        are in the order of their columns.
      runs: Index of the first tile of each run, and index of its last tile plus 1. Kernels visit
        the runs in this order.
      start: Index of the first tile that a block visits.
      end: Index of the last tile that a block visits, plus 1.
      is_in_column_order: True if each run begins where the previous run ends.
    """

    sections: tuple[Section, ...]
    runs: Int[Array, "#B #N blocks runs 2"]
    start: Int[Array, "#B #N blocks"]
    end: Int[Array, "#B #N blocks"]
    is_in_column_order: bool = False


def schedule_query_blocks(
    inputs: ScheduleInputs,
    length: int,
    block_rows: int,
    tile_columns: int,
    *,
    distinctions: Distinctions,
    visits_zero_tiles: bool = False,
    keeps_column_order: bool = False,
) -> Schedule:
    """Return the tiles of keys that each block of queries visits.

    Args:
      inputs: Restrictions and distances.
      length: Number of queries.
      block_rows: Number of queries in a block.
      tile_columns: Number of keys in a tile.
      distinctions: Tiles that the kernels compute in different ways.
      visits_zero_tiles: If True, visit the tiles whose scores are all treated as 0. If False, skip
        them.
      keeps_column_order: If True, the tiles are visited in the order of their columns. There must
        be no far tiles. Equal sections are then not always neighbours.
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
    has_segments = inputs.query_segments is not None
    has_mask_of_keys = inputs.key_mask is not None
    return _make_schedule(
        inputs,
        _intersect(ranges),
        _tiles_around(inputs, position, block_rows, tile_columns),
        tile_columns,
        distinctions=distinctions,
        starts_masked=has_segments or has_mask_of_keys or inputs.window.left is not None,
        ends_masked=True,  # because of key_lengths
        masks_any_tile=has_segments,
        side_of_first_columns=1,
        visits_zero_tiles=visits_zero_tiles,
        keeps_column_order=keeps_column_order,
    )


def schedule_key_blocks(
    inputs: ScheduleInputs,
    length: int,
    block_rows: int,
    tile_columns: int,
    *,
    distinctions: Distinctions,
    visits_zero_tiles: bool = False,
    keeps_column_order: bool = False,
) -> Schedule:
    """Return the tiles of queries that each block of keys visits.

    Padded queries count as visible, because their weights are 0. Masked keys between the first and
    the last visible key are visited, because the kernels set the outputs of masked keys to 0.

    Args:
      inputs: Restrictions and distances.
      length: Number of keys.
      block_rows: Number of keys in a block.
      tile_columns: Number of queries in a tile.
      distinctions: Tiles that the kernels compute in different ways.
      visits_zero_tiles: If True, visit the tiles whose scores are all treated as 0. If False, skip
        them.
      keeps_column_order: If True, the tiles are visited in the order of their columns. There must
        be no far tiles. Equal sections are then not always neighbours.
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
        distinctions=distinctions,
        starts_masked=inputs.window.right is not None or has_segments,
        ends_masked=inputs.window.left is not None or has_segments,
        masks_any_tile=has_segments,
        side_of_first_columns=-1,
        visits_zero_tiles=visits_zero_tiles,
        keeps_column_order=keeps_column_order,
    )


def schedule_diagonal_blocks(
    inputs: ScheduleInputs, blocks: int, block_rows: int, tile_size: int, origin: int
) -> Schedule:
    """Return the tiles of queries that each block of diagonals visits.

    The rows of a tile are keys. The first tile of a block that has a visible entry may have rows
    before row 0. All sizes are multiples of `tile_size`.

    Args:
      inputs: Restrictions. `radius` and `is_zero_beyond_radius` are None.
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
        return _stack_runs([_Run(MASKED, start, end)], start, end)
    plain_start = jnp.clip(_count_tiles(-first, tile_size), start, end)
    plain_end = jnp.clip((key_lengths - last_tile) // tile_size, plain_start, end)
    plain_end = jnp.where(hides_none, plain_end, plain_start)
    runs = [
        _Run(MASKED, start, plain_start),
        _Run(PLAIN, plain_start, plain_end),
        _Run(MASKED, plain_end, end),
    ]
    return _stack_runs(runs, start, end, keeps_column_order=True)


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
    diagonal_start = jnp.maximum(position + 1, 0) // tile_columns
    diagonal_end = _count_tiles(jnp.maximum(position + block_rows - 1, 0), tile_columns)
    return _TilesAround(
        near_start=jnp.maximum(position - largest_near_distance, 0) // tile_columns,
        diagonal_start=diagonal_start,
        diagonal_end=jnp.maximum(diagonal_start, diagonal_end),
        near_end=_count_tiles(
            jnp.maximum(position + block_rows + largest_near_distance, 0), tile_columns
        ),
    )


class _Run(NamedTuple):
    """Run of consecutive tiles of each block.

    Attributes:
      section: Properties of the tiles.
      start: Index of the first tile. Blocks or heads may share it.
      end: Index of the last tile plus 1. The run is empty if `end` is not larger than `start`.
    """

    section: Section
    start: Array | int
    end: Array | int

    def intersect(self, start: Array | int, end: Array | int) -> "_Run":
        """Return the part of the run between two tiles."""
        return self._replace(start=jnp.maximum(self.start, start), end=jnp.minimum(self.end, end))


def _make_schedule(
    inputs: ScheduleInputs,
    columns: _Columns,
    around: _TilesAround,
    tile_columns: int,
    *,
    distinctions: Distinctions,
    starts_masked: bool,
    ends_masked: bool,
    masks_any_tile: bool,
    side_of_first_columns: int,
    visits_zero_tiles: bool,
    keeps_column_order: bool,
) -> Schedule:
    """Return the schedule of blocks that see the given columns.

    Args:
      inputs: Restrictions and distances.
      columns: Columns that the rows of each block see.
      around: Tiles where the near columns and the diagonal of each block begin and end.
      tile_columns: Number of columns of a tile.
      distinctions: Tiles that the kernels compute in different ways.
      starts_masked: True if the first visited tiles may be masked.
      ends_masked: True if the last visited tiles may be masked.
      masks_any_tile: True if there are segments, which may mask any tile.
      side_of_first_columns: `Section.side` of the tiles before the diagonal: 1 if the columns are
        keys, -1 if they are queries.
      visits_zero_tiles: If False, skip the tiles whose scores are all treated as 0.
      keeps_column_order: If True, the tiles are visited in the order of their columns.
    """
    end = _count_tiles(jnp.maximum(columns.end, 0), tile_columns)
    start = jnp.minimum(jnp.maximum(columns.start, 0) // tile_columns, end)
    plain_start = jnp.clip(
        _count_tiles(jnp.asarray(columns.common_start), tile_columns), start, end
    )
    plain_end = jnp.clip(columns.common_end // tile_columns, plain_start, end)
    is_zero = inputs.is_zero_beyond_radius
    if is_zero is not None and not visits_zero_tiles:
        near_start = jnp.clip(around.near_start, start, end)
        near_end = jnp.clip(around.near_end, near_start, end)
        start = jnp.where(is_zero[:, :, None], near_start, start)
        end = jnp.where(is_zero[:, :, None], near_end, end)
    masks_any_tile |= inputs.has_mask
    first_far, near, last_far = _divide_by_distance(
        inputs,
        around,
        distinctions,
        side_of_first_columns=side_of_first_columns,
        visits_zero_tiles=visits_zero_tiles,
        masks_zero_tiles=masks_any_tile,
    )
    if inputs.window.is_causal:  # The last keys, or the first queries, are masked.
        first_far, last_far = (first_far, []) if side_of_first_columns == 1 else ([], last_far)
    near_range = near[0].start, near[-1].end
    if masks_any_tile:
        masked = [*map(_mask, first_far), _Run(MASKED, *near_range), *map(_mask, last_far)]
    else:
        masked = [_Run(MASKED, 0, INFINITE_RADIUS)]
    if inputs.has_mask:
        return _stack_runs([run.intersect(start, end) for run in masked], start, end)
    runs = []
    if starts_masked:
        runs += [run.intersect(start, jnp.minimum(plain_start, end)) for run in masked]
    if inputs.window.is_causal:  # All unmasked tiles are on the same side of the diagonal.
        near = [_Run(near[0 if side_of_first_columns == 1 else -1].section, *near_range)]
    first, last = jnp.maximum(plain_start, start), jnp.minimum(plain_end, end)
    runs += [run.intersect(first, last) for run in (*first_far, *near, *last_far)]
    if ends_masked:
        runs += [run.intersect(jnp.maximum(plain_end, start), end) for run in masked]
    keeps_column_order |= not masks_any_tile
    return _stack_runs(runs, start, end, keeps_column_order=keeps_column_order)


def _divide_by_distance(
    inputs: ScheduleInputs,
    around: _TilesAround,
    distinctions: Distinctions,
    *,
    side_of_first_columns: int,
    visits_zero_tiles: bool,
    masks_zero_tiles: bool,
) -> tuple[list[_Run], list[_Run], list[_Run]]:
    """Divide all tiles of a row into far tiles, near tiles and further far tiles.

    Args:
      inputs: Restrictions and distances.
      around: Tiles where the near columns and the diagonal of each block begin and end.
      distinctions: Tiles that the kernels compute in different ways.
      side_of_first_columns: `Section.side` of the tiles before the diagonal.
      visits_zero_tiles: True if there are tiles of scores that are treated as 0.
      masks_zero_tiles: True if these tiles may be masked. They have the same section as those
        that are not masked, so that there is one loop for both.
    """
    is_zero = inputs.is_zero_beyond_radius if visits_zero_tiles else None
    is_zero = None if is_zero is None else is_zero[:, :, None]
    has_far = distinctions.far and inputs.radius is not None
    near_start: Array | int = around.near_start
    near_end: Array | int = around.near_end
    if not has_far:  # Heads without tiles of zeros have no far tiles.
        near_start = 0 if is_zero is None else jnp.where(is_zero, near_start, 0)
        near_end = (
            INFINITE_RADIUS if is_zero is None else jnp.where(is_zero, near_end, INFINITE_RADIUS)
        )

    def far_runs(start: Array | int, end: Array | int, side: int) -> list[_Run]:
        runs, far_end = [], end
        if is_zero is not None:
            zero = Section(is_zero=True, is_masked=masks_zero_tiles)
            runs.append(_Run(zero, start, jnp.where(is_zero, end, start)))
            far_end = jnp.where(is_zero, start, end)
        if has_far:
            section = Section(is_far=True, side=side if distinctions.far_sides else 0)
            runs.append(_Run(section, start, far_end))
        return runs

    first, last = side_of_first_columns, -side_of_first_columns
    near = [_Run(PLAIN, near_start, near_end)]
    if distinctions.near_sides:
        near = [
            _Run(Section(side=first), near_start, around.diagonal_start),
            _Run(PLAIN, around.diagonal_start, around.diagonal_end),
            _Run(Section(side=last), around.diagonal_end, near_end),
        ]
    return far_runs(0, near_start, first), near, far_runs(near_end, INFINITE_RADIUS, last)


def _mask(run: _Run) -> _Run:
    """Return the run with a section of masked tiles."""
    return run._replace(section=run.section._replace(is_masked=True))


def _stack_runs(
    runs: list[_Run], start: Array, end: Array, *, keeps_column_order: bool = False
) -> Schedule:
    """Return the schedule of runs.

    Args:
      runs: Runs of each block, without overlap.
      start: Index of the first tile of each block.
      end: Index of the last tile of each block, plus 1.
      keeps_column_order: If False, runs of equal sections become neighbours.
    """
    if not keeps_column_order:
        order = [run.section for run in runs]
        runs = sorted(runs, key=lambda run: order.index(run.section))
    numbers = jnp.broadcast_arrays(start, end, *(x for run in runs for x in run[1:]))
    start, end, *others = (x.astype(jnp.int32) for x in numbers)
    starts, ends = jnp.stack(others[::2], axis=-1), jnp.stack(others[1::2], axis=-1)
    if keeps_column_order:  # An empty run begins and ends where the previous run ends.
        first = start[..., None]
        ends = jax.lax.cummax(jnp.where(starts < ends, ends, first), axis=3)
        starts = jnp.concatenate((first, ends[..., :-1]), axis=-1)
    stacked = jnp.stack((starts, jnp.maximum(starts, ends)), axis=-1)
    sections = tuple(run.section for run in runs)
    return Schedule(sections, stacked, start, end, keeps_column_order)


def _per_block(per_example: Int[Array, " B"]) -> Int[Array, "B 1 1"]:
    """Reshape (B,) to (B, 1, 1), so that the array broadcasts over heads and blocks."""
    return per_example[:, None, None]


def _block_starts(length: int, block_rows: int) -> Int[Array, "1 1 blocks"]:
    """Return the index of the first row of each block."""
    return jnp.arange(0, length, block_rows, dtype=jnp.int32)[None, None, :]


def _count_tiles(length: Array, tile_columns: int) -> Array:
    """Return the number of tiles that cover `length` columns."""
    return (length + tile_columns - 1) // tile_columns
