"""Which tiles a block of rows must see, and what is known of them in advance.

Tiles stream by in the order of their columns. What is known of one is the same for long stretches,
the sections: a pass has one loop for each, so that no tile pays for what it does not need.

    plain    every score is to be computed
    masked   some may be invisible: the end of the keys, the diagonal of a causal map
    far      f is a constant there: |i - j| ≥ radius (see `saturation`)

A head that averages what is far (`skips`) has no far tiles at all: only those around the diagonal.

Letters: a block is rows [start, stop); queries have position i + offset, keys j. `first` and `last`
number tiles, `last` is the first one that is not seen.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


class Section(NamedTuple):
    """What is known of a stretch of tiles."""

    far: bool = False
    masked: bool = False


PLAIN, FAR, MASKED = Section(), Section(far=True), Section(masked=True)


class Extent(NamedTuple):
    """What of the map is real, and where f has not yet become a constant.

    Attributes:
      query_lengths: queries that ask.
      key_lengths: keys that are seen.
      offset: position of query 0 minus that of key 0.
      radius: from this distance on f is a constant.
      skips: whether that constant makes every score 0.
      is_causal: whether later keys are invisible.
    """

    query_lengths: Int[Array, "B 1"]
    key_lengths: Int[Array, "B 1"]
    offset: Int[Array, "B 1"]
    radius: Int[Array, "B N"]
    skips: Bool[Array, "B N"]
    is_causal: bool


def sections_of_queries(saturates: bool) -> tuple[Section, ...]:
    """The order in which a block of queries meets its keys."""
    return (FAR, PLAIN, FAR, MASKED) if saturates else (PLAIN, MASKED)


def sections_of_keys(saturates: bool, is_causal: bool) -> tuple[Section, ...]:
    """The order in which a block of keys meets its queries."""
    plain = (FAR, PLAIN, FAR) if saturates else (PLAIN,)
    return (MASKED, *plain) if is_causal else plain


def ranges_of_queries(
    extent: Extent, length: int, height: int, columns: int, *, saturates: bool
) -> Int[Array, "B N blocks bounds"]:
    """Bounds of the sections, for blocks of `height` of `length` queries."""
    query_length, key_length, offset, radius, skips = _with_blocks(extent)
    start = _starts(length, height)
    position = start + offset
    seen = key_length  # keys that the last row of the block sees,
    whole = key_length  # and keys that all of its rows see
    if extent.is_causal:
        seen = jnp.minimum(seen, position + height)
        whole = jnp.minimum(whole, position + 1)
    seen = jnp.where(start < query_length, jnp.maximum(seen, 0), 0)
    whole = jnp.minimum(jnp.maximum(whole, 0), seen)
    last, full = _tiles(seen, columns), whole // columns
    if not saturates:
        return _bounds(0, full, last)
    near, stop = _near(position, height, radius, columns)
    near, stop = jnp.minimum(near, last), jnp.minimum(stop, last)
    skipping = _bounds(near, near, jnp.minimum(stop, full), jnp.minimum(stop, full), stop)
    visiting = _bounds(0, jnp.minimum(near, full), jnp.minimum(stop, full), full, last)
    return jnp.where(skips[..., None], skipping, visiting)


def ranges_of_keys(
    extent: Extent, length: int, height: int, columns: int, *, saturates: bool
) -> Int[Array, "B N blocks bounds"]:
    """Bounds of the sections, for blocks of `height` of `length` keys."""
    query_length, key_length, offset, radius, skips = _with_blocks(extent)
    start = _starts(length, height)
    position = start - offset  # of the first key, counted in queries
    last = jnp.where(start < key_length, _tiles(query_length, columns), 0)
    first = full = jnp.zeros_like(last)
    if extent.is_causal:
        first = jnp.minimum(jnp.maximum(position, 0) // columns, last)
        full = jnp.minimum(_tiles(jnp.maximum(position + height - 1, 0), columns), last)
    masked = (first,) if extent.is_causal else ()
    if not saturates:
        return _bounds(*masked, full, last)
    near, stop = _near(position, height, radius, columns)
    near, stop = jnp.clip(near, first, last), jnp.clip(stop, first, last)
    masked_near = (near,) if extent.is_causal else ()
    begin = jnp.maximum(near, full)
    skipping = _bounds(*masked_near, begin, begin, stop, stop)
    visiting = _bounds(*masked, full, near, stop, last)
    return jnp.where(skips[..., None], skipping, visiting)


def _with_blocks(extent: Extent) -> tuple[Array, ...]:
    return tuple(array[:, :, None] for array in extent[:-1])


def _starts(length: int, height: int) -> Int[Array, "1 1 blocks"]:
    return jnp.arange(0, length, height, dtype=jnp.int32)[None, None, :]


def _tiles(length: Array, columns: int) -> Array:
    """How many tiles hold so many columns."""
    return (length + columns - 1) // columns


def _near(position: Array, height: int, radius: Array, columns: int) -> tuple[Array, Array]:
    """The tiles that hold a column nearer than `radius` to one of `height` rows at `position`."""
    furthest = jnp.minimum(radius, 2**30) - 1
    first = jnp.maximum(position - furthest, 0) // columns
    stop = _tiles(jnp.maximum(position + height + furthest, 0), columns)
    return first, stop


def _bounds(*bounds: Array | int) -> Int[Array, "B N blocks bounds"]:
    """Bounds side by side, none before the one to its left."""
    stacked = jnp.stack(jnp.broadcast_arrays(*bounds), axis=-1).astype(jnp.int32)
    return jnp.maximum.accumulate(stacked, axis=-1)
