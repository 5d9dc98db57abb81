"""Which tiles a block of rows must see, and what is known of them in advance.

Tiles stream by in the order of their columns. What is known of one is the same for long stretches,
the sections: a pass has one loop for each, so that no tile pays for what it does not need.

    masked   some entries may be invisible: the end of the keys, the diagonal of a causal map
    plain    none is
    before   none is, and all keys come before all queries, or are where they are
    after    none is, and all keys come after all queries, or are where they are
    far      none is, and f is a constant: |i - j| ≥ radius (see `saturation`)

A head that averages what is far (`skips`) has no far tiles at all: only those around the diagonal.
Scorings that know no distance have but plain and masked tiles.

Queries have position i + offset, keys j. Bounds number tiles; a stretch ends before its last bound.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


class Section(NamedTuple):
    """What is known of a stretch of tiles; `side`: the sign of position of query minus key."""

    far: bool = False
    masked: bool = False
    side: int = 0


NEVER = 2**30  # a radius beyond all distances
MASKED, PLAIN, FAR = Section(masked=True), Section(), Section(far=True)
BEFORE, AFTER = Section(side=1), Section(side=-1)


class Extent(NamedTuple):
    """What of the map is real, and where f has not yet become a constant.

    Attributes:
      query_lengths: queries that ask.
      key_lengths: keys that are seen.
      offset: position of query 0 minus that of key 0.
      radius: from this distance on f is a constant; None: it never is.
      skips: whether that constant makes every score 0.
    """

    query_lengths: Int[Array, " B"]
    key_lengths: Int[Array, " B"]
    offset: Int[Array, " B"]
    radius: Int[Array, "B N"] | None
    skips: Bool[Array, "B N"] | None


class Walk(NamedTuple):
    """The sections that each block of rows meets, and the tiles at which they begin and end."""

    sections: tuple[Section, ...]
    bounds: Int[Array, "#B #N blocks bounds"]


def walk_of_queries(
    extent: Extent, length: int, height: int, columns: int, *, is_causal: bool, distance: bool
) -> Walk:
    """How blocks of `height` of `length` queries meet tiles of keys."""
    start = _starts(length, height)
    position = start + _of_examples(extent.offset)
    key_length = _of_examples(extent.key_lengths)
    seen = jnp.minimum(key_length, position + height) if is_causal else key_length
    seen = jnp.where(start < _of_examples(extent.query_lengths), jnp.maximum(seen, 0), 0)
    whole = jnp.minimum(seen, position + 1) if is_causal else seen  # by all of the block's rows
    full, last = jnp.maximum(whole, 0) // columns, _tiles(seen, columns)
    if not distance:
        return Walk((PLAIN, MASKED), _bounds(0, full, last))
    near, one, other, stop = _around(extent, position, height, columns)
    if is_causal:  # the diagonal is masked, and nothing is seen beyond it
        sections: tuple[Section, ...] = (FAR, BEFORE, MASKED)
        marks = [near, full]
    else:
        sections = (FAR, BEFORE, PLAIN, AFTER, FAR, MASKED)
        marks = [near, one, other, stop, full]
    marks = [jnp.minimum(mark, full) for mark in marks]
    end = jnp.minimum(stop, last)
    skipped = [jnp.minimum(mark, end) for mark in marks[1:]]
    near = jnp.minimum(near, end)
    return _walk(extent, sections, [0, *marks, last], [near, near, *skipped, end])


def walk_of_keys(
    extent: Extent, length: int, height: int, columns: int, *, is_causal: bool, distance: bool
) -> Walk:
    """How blocks of `height` of `length` keys meet tiles of queries."""
    start = _starts(length, height)
    position = start - _of_examples(extent.offset)  # of the first key, counted in queries
    query_tiles = _tiles(_of_examples(extent.query_lengths), columns)
    last = jnp.where(start < _of_examples(extent.key_lengths), query_tiles, 0)
    near, one, other, stop = (
        jnp.minimum(mark, last) for mark in _around(extent, position, height, columns)
    )
    first = jnp.minimum(jnp.maximum(position, 0) // columns, last)
    if not distance:
        if is_causal:
            return Walk((MASKED, PLAIN), _bounds(first, other, last))
        return Walk((PLAIN,), _bounds(0, last))
    if is_causal:  # nothing is seen before the diagonal, which is masked
        marks = [first, other, stop]
        return _walk(extent, (MASKED, BEFORE, FAR), [*marks, last], [*marks, stop])
    marks = [near, one, other, stop]
    sections = (FAR, AFTER, PLAIN, BEFORE, FAR)
    return _walk(extent, sections, [0, *marks, last], [near, *marks, stop])


def _around(extent: Extent, position: Array, height: int, columns: int) -> tuple[Array, ...]:
    """Tiles around `height` rows at `position`.

    Returns:
      The first with a column nearer than the radius; the first that is not wholly on one side; the
      first that is wholly on the other; the first after that with no column nearer.
    """
    radius = jnp.full((1, 1), NEVER, jnp.int32) if extent.radius is None else extent.radius
    furthest = jnp.clip(radius, 1, NEVER)[:, :, None] - 1
    near = jnp.maximum(position - furthest, 0) // columns
    one = jnp.maximum(position + 1, 0) // columns
    other = _tiles(jnp.maximum(position + height - 1, 0), columns)
    stop = _tiles(jnp.maximum(position + height + furthest, 0), columns)
    return near, one, other, stop


def _walk(extent: Extent, sections: tuple[Section, ...], visited: Any, skipped: Any) -> Walk:
    """A walk from its marks: those of heads that visit what is far, and of those that skip it."""
    if extent.skips is not None:
        bounds = jnp.where(extent.skips[:, :, None, None], _bounds(*skipped), _bounds(*visited))
        return Walk(sections, bounds)
    near = [i for i, section in enumerate(sections) if not section.far]  # nothing is far: no tiles
    return Walk(tuple(sections[i] for i in near), _bounds(*(visited[i] for i in near), visited[-1]))


def _of_examples(numbers: Int[Array, " B"]) -> Int[Array, "B 1 1"]:
    return numbers[:, None, None]


def _starts(length: int, height: int) -> Int[Array, "1 1 blocks"]:
    return jnp.arange(0, length, height, dtype=jnp.int32)[None, None, :]


def _tiles(length: Array, columns: int) -> Array:
    """How many tiles hold so many columns."""
    return (length + columns - 1) // columns


def _bounds(*marks: Array | int) -> Int[Array, "B N blocks bounds"]:
    """Marks side by side, none before the one to its left."""
    stacked = jnp.stack(jnp.broadcast_arrays(*marks), axis=-1).astype(jnp.int32)
    return jax.lax.cummax(stacked, axis=3)
