"""Conversion of arrays with one row per relation to squares of the score map, and back.

The relation of query i and key j is r = clip(j - i - offset, -k, k) + k: see `relations`. An array
by relation has one row per relation and one column (lane) per query. A band holds the same numbers
in the order of the score map. For each group of 128 queries, the band is a stack of 6 squares of
128 keys and 128 queries. A tile of the score map consists of such squares, so that it can be copied
from the band square by square:

    square 0      all entries have relation 0
    square 1-4    entries of several relations
    square 5      all entries have relation 2k

Four squares of several relations are sufficient for k <= 128. Together they have 512 rows. The
entry in row y and column i of the four squares has relation y - shift_i, clipped to 0 and 2k, with

    shift_i = i + (offset mod 128) + 128 - k

To make the four squares, column i of the array by relation moves down by shift_i. This takes one
selection for each of the 9 bits of the shifts. Moves by multiples of 8 rows cost nothing.
"""

import jax
import jax.numpy as jnp

from distattn_jax.attention.fused.tpu.registers import (
    LANES,
    SUBLANES,
    lane_indices,
    move_down,
    move_up,
    sublane_indices,
)

SQUARES = 6  # of a band
LAST = SQUARES - 1  # square in which all entries have relation 2k
ROWS = 4 * LANES  # of the squares between the first and the last
BITS = 9  # of a shift


def compute_shifts(offset: jax.Array, clip_distance: int) -> jax.Array:
    """Return the number of rows by which each of 128 columns moves down, shape (1, 128).

    Before the move, row r of column i belongs to query i and relation r. After the move, row y
    belongs to the y-th key of the squares 1 to 4 of a band: see `bands`.

    Args:
      offset: Position of query 0 minus the position of key 0.
      clip_distance: The distance k at which relations are clipped.
    """
    return lane_indices((1, LANES)) + ((offset & (LANES - 1)) + LANES - clip_distance)


def find_square(query: jax.Array | int, key: jax.Array | int, offset: jax.Array | int) -> jax.Array:
    """Return the index in the band, from 0 to 5, of a square of 128 keys and 128 queries.

    A band (see `bands`) contains a square in which all entries have relation 0 (index 0), four
    squares around the diagonal (1 to 4), and a square in which all entries have the last relation,
    2k (5).

    Args:
      query: Index of the first query of the square, a multiple of 128.
      key: Index of the first key of the square, a multiple of 128.
      offset: Position of query 0 minus the position of key 0.
    """
    bits = LANES.bit_length() - 1
    return jnp.clip((key >> bits) - (query >> bits) - (offset >> bits) + 2, 0, LAST)


def band_relations(shifts: jax.Array) -> jax.Array:
    """Return the relation of each entry of the squares 1 to 4 of a band, shape (512, 128).

    Rows are keys and columns are queries: see `bands`. The relations are not clipped: they may be
    smaller than 0 or larger than 2k, where k is the clip distance.

    Args:
      shifts: Result of `compute_shifts`.
    """
    return sublane_indices((ROWS, LANES)) - shifts


def expand_band(array: jax.Array, shifts: jax.Array, clip_distance: int) -> jax.Array:
    """Convert an array by relation to the squares 1 to 4 of a band, shape (512, 128).

    The array has one row per relation. The squares have one row per key instead: the entry of query
    i and key j is array[r, i], where r is their relation. See `bands`.

    Args:
      array: Array with one row per relation, at least 2k + 1 rows, and 128 columns, one per query.
      shifts: Result of `compute_shifts`.
      clip_distance: The distance k at which relations are clipped.
    """
    last = 2 * clip_distance
    relation = band_relations(shifts)
    inner = move_down(array, shifts, BITS)[:ROWS]
    inner = jnp.where(relation <= 0, array[:1], inner)
    return jnp.where(relation >= last, array[last : last + 1], inner)


def collapse_band(
    squares: jax.Array, shifts: jax.Array, clip_distance: int, ends: tuple[jax.Array, jax.Array]
) -> jax.Array:
    """Sum the entries of a band by relation, for each of 128 queries.

    Row r of the result contains the sums for relation r, with one column per query. The number of
    rows is 2k + 1, rounded up to a multiple of 8. The additional rows are 0.

    Args:
      squares: Squares 1 to 4 of a band (see `bands`), shape (512, 128): 512 keys and 128 queries.
      shifts: Result of `compute_shifts`.
      clip_distance: The distance k at which relations are clipped.
      ends: Sums over the entries outside of these squares, one number per query: first the sums of
        relation 0, then the sums of relation 2k. Each has shape (1, 128).
    """
    last = 2 * clip_distance
    relation = band_relations(shifts)
    before, after = (
        end + jnp.where(is_end, squares, 0.0).sum(axis=0, keepdims=True)
        for end, is_end in zip(ends, (relation <= 0, relation >= last), strict=True)
    )
    rows = count_rows(clip_distance)
    inner = move_up(squares, shifts, rows, BITS)
    row = sublane_indices((rows, LANES))
    result = jnp.where(row < last, inner, 0.0)
    result = jnp.where(row == 0, before, result)
    return jnp.where(row == last, after, result)


def count_rows(clip_distance: int) -> int:
    """Return the number of relations, rounded up to a multiple of 8.

    There are 2k + 1 relations, where k is the clip distance.
    """
    relations = 2 * clip_distance + 1
    return relations + -relations % SUBLANES
