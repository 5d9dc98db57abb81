"""Schedule of tiles: the tiles that each block of rows visits, and their properties.

The rows of a block are queries and the columns of its tiles are keys, or the rows are keys and the
columns are queries. Tiles are visited in the order of their columns. A section is a run of tiles
with the same properties. A kernel has one loop per section, so that it applies a mask or evaluates
the distance function f only in the sections that require this.

    MASKED   some entries may be masked, because of padded keys or a causal mask
    PLAIN    all entries are visible
    BEFORE   all entries are visible, and no key is after a query
    AFTER    all entries are visible, and no key is before a query
    FAR      all entries are visible, and f is constant because |i - j| >= radius (see `saturation`)

Heads that skip far tiles have empty FAR sections. Scorings without distance have only MASKED and
PLAIN sections.

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
      is_masked: True if some entries of the tiles may be masked.
      side: 1 if no key of a tile is after a query of the tile, -1 if no key is before a query, 0 if
        a tile may have keys before a query and keys after a query.
    """

    is_far: bool = False
    is_masked: bool = False
    side: int = 0


INFINITE_RADIUS = 2**30  # larger than every distance
MASKED, PLAIN, FAR = Section(is_masked=True), Section(), Section(is_far=True)
BEFORE, AFTER = Section(side=1), Section(side=-1)


class ScheduleInputs(NamedTuple):
    """Arrays that determine the tiles that each block of rows visits.

    Attributes:
      query_lengths: Number of queries of each example before the padding.
      key_lengths: Number of keys of each example before the padding.
      offset: Position of query 0 minus the position of key 0.
      radius: Smallest distance at which the distance function is treated as constant. None means
        that no tile is far.
      skips_far_tiles: True for heads that skip the tiles beyond the radius. It is None if `radius`
        is None.
    """

    query_lengths: Int[Array, " B"]
    key_lengths: Int[Array, " B"]
    offset: Int[Array, " B"]
    radius: Int[Array, "B N"] | None
    skips_far_tiles: Bool[Array, "B N"] | None


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
    is_causal: bool,
    uses_distance: bool,
) -> Schedule:
    """Return the tiles of keys that each block of queries visits.

    Args:
      inputs: Arrays that determine the schedule.
      length: Number of queries.
      block_rows: Number of queries in a block.
      tile_columns: Number of keys in a tile.
      is_causal: If True, mask the keys at later positions than the query.
      uses_distance: True if the scores depend on the distance between query and key.
    """
    start = _block_starts(length, block_rows)
    position = start + _per_block(inputs.offset)
    key_length = _per_block(inputs.key_lengths)
    visible = jnp.minimum(key_length, position + block_rows) if is_causal else key_length
    visible = jnp.where(start < _per_block(inputs.query_lengths), jnp.maximum(visible, 0), 0)
    visible_to_all_rows = jnp.minimum(visible, position + 1) if is_causal else visible
    unmasked_end = jnp.maximum(visible_to_all_rows, 0) // tile_columns
    end = _count_tiles(visible, tile_columns)
    if not uses_distance:
        return Schedule((PLAIN, MASKED), _stack_bounds(0, unmasked_end, end))
    near_start, diagonal_start, diagonal_end, near_end = _tiles_around(
        inputs, position, block_rows, tile_columns
    )
    if is_causal:  # the tiles on the diagonal are masked, and later tiles are not visited
        sections: tuple[Section, ...] = (FAR, BEFORE, MASKED)
        bounds = [near_start, unmasked_end]
    else:
        sections = (FAR, BEFORE, PLAIN, AFTER, FAR, MASKED)
        bounds = [near_start, diagonal_start, diagonal_end, near_end, unmasked_end]
    bounds = [jnp.minimum(bound, unmasked_end) for bound in bounds]
    skipping_end = jnp.minimum(near_end, end)
    skipping_bounds = [jnp.minimum(bound, skipping_end) for bound in bounds[1:]]
    skipping_start = jnp.minimum(near_start, skipping_end)
    return _make_schedule(
        inputs,
        sections,
        [0, *bounds, end],
        [skipping_start, skipping_start, *skipping_bounds, skipping_end],
    )


def schedule_key_blocks(
    inputs: ScheduleInputs,
    length: int,
    block_rows: int,
    tile_columns: int,
    *,
    is_causal: bool,
    uses_distance: bool,
) -> Schedule:
    """Return the tiles of queries that each block of keys visits.

    Args:
      inputs: Arrays that determine the schedule.
      length: Number of keys.
      block_rows: Number of keys in a block.
      tile_columns: Number of queries in a tile.
      is_causal: If True, mask the keys at later positions than the query.
      uses_distance: True if the scores depend on the distance between query and key.
    """
    start = _block_starts(length, block_rows)
    position = start - _per_block(inputs.offset)  # query index at the position of the first key
    query_tiles = _count_tiles(_per_block(inputs.query_lengths), tile_columns)
    end = jnp.where(start < _per_block(inputs.key_lengths), query_tiles, 0)
    near_start, diagonal_start, diagonal_end, near_end = (
        jnp.minimum(bound, end)
        for bound in _tiles_around(inputs, position, block_rows, tile_columns)
    )
    causal_start = jnp.minimum(jnp.maximum(position, 0) // tile_columns, end)
    if not uses_distance:
        if is_causal:
            return Schedule((MASKED, PLAIN), _stack_bounds(causal_start, diagonal_end, end))
        return Schedule((PLAIN,), _stack_bounds(0, end))
    if is_causal:  # the tiles on the diagonal are masked, and earlier tiles are not visited
        bounds = [causal_start, diagonal_end, near_end]
        sections: tuple[Section, ...] = (MASKED, BEFORE, FAR)
        return _make_schedule(inputs, sections, [*bounds, end], [*bounds, near_end])
    bounds = [near_start, diagonal_start, diagonal_end, near_end]
    sections = (FAR, AFTER, PLAIN, BEFORE, FAR)
    return _make_schedule(inputs, sections, [0, *bounds, end], [near_start, *bounds, near_end])


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
    sections: tuple[Section, ...],
    visiting_bounds: Sequence[Array | int],
    skipping_bounds: Sequence[Array | int],
) -> Schedule:
    """Return a schedule in which some heads skip far tiles and all other heads visit them.

    Args:
      inputs: Arrays that determine the schedule.
      sections: Sections in the order of their columns.
      visiting_bounds: Tile indices that separate the sections, for heads that visit far tiles.
      skipping_bounds: Tile indices that separate the sections, for heads that skip far tiles.
    """
    if inputs.skips_far_tiles is not None:
        bounds = jnp.where(
            inputs.skips_far_tiles[:, :, None, None],
            _stack_bounds(*skipping_bounds),
            _stack_bounds(*visiting_bounds),
        )
        return Schedule(sections, bounds)
    # Without a radius no tile is far: leave the FAR sections out.
    near = [i for i, section in enumerate(sections) if not section.is_far]
    bounds = _stack_bounds(*(visiting_bounds[i] for i in near), visiting_bounds[-1])
    return Schedule(tuple(sections[i] for i in near), bounds)


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
