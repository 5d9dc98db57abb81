"""Columns of a score map that each block of rows may see.

The rows of a block are queries and the columns are keys, or the rows are keys and the columns are
queries. A row sees a column if the query of the pair may attend to the key. Every restriction of
the visible keys (lengths, a window, a key mask, segments) defines two ranges of columns for each
block: the columns that some row may see, and the columns that all rows see.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

UNBOUNDED = 2**30  # larger than every distance, and every index of a column or tile


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
        """Window with `left` and `right` exchanged: it limits the queries that see a key."""
        return Window(self.right, self.left)

    def compare(self, compute_relative_positions: Callable[[], Array]) -> list[Array]:
        """Return one mask for each limit that is not None: True for pairs within the limit.

        A pair is a query and a key. The list is empty if both limits are None.

        Args:
          compute_relative_positions: Returns (position of query - position of key) for each pair,
            in any shape. The masks have the same shape.
        """
        if self == Window():
            return []
        relative_positions, masks = compute_relative_positions(), []
        if self.left is not None:
            masks.append(relative_positions <= self.left)
        if self.right is not None:
            masks.append(relative_positions >= -self.right)
        return masks


class Columns(NamedTuple):
    """Columns that some row of each block sees, and columns that all of its rows see.

    The fields are integers, or arrays that broadcast to (B, N, blocks).

    Attributes:
      start: First column that some row may see.
      end: Last column that some row may see, plus 1.
      common_start: First column of one range of consecutive columns that all rows see. There may be
        more such columns outside of the range.
      common_end: Last column of this range, plus 1.
    """

    start: Array | int = 0
    end: Array | int = UNBOUNDED
    common_start: Array | int = 0
    common_end: Array | int = UNBOUNDED


def intersect(ranges: Sequence[Columns]) -> Columns:
    """Return the intersection of several ranges of columns, one for each restriction."""
    start, end, common_start, common_end = ranges[0]
    for other in ranges[1:]:
        start, end = jnp.maximum(start, other.start), jnp.minimum(end, other.end)
        common_start = jnp.maximum(common_start, other.common_start)
        common_end = jnp.minimum(common_end, other.common_end)
    return Columns(start, end, common_start, common_end)


def columns_in_window(window: Window, position: Array, block_rows: int) -> Columns:
    """Return the columns that the window allows to the rows of each block.

    Args:
      window: Largest number of columns by which a visible column may be before and after the
        diagonal.
      position: For each block, the index of the column on the diagonal at the first row, where
        query and key have the same position.
      block_rows: Number of rows in a block.
    """
    last = position + block_rows - 1
    columns = Columns()
    if window.left is not None:
        columns = columns._replace(start=position - window.left, common_start=last - window.left)
    if window.right is not None:
        columns = columns._replace(
            end=last + window.right + 1, common_end=position + window.right + 1
        )
    return columns


def columns_in_reach(reach: Int[Array, "B N 2"], position: Array, block_rows: int) -> Columns:
    """Return the columns that are near enough to have a weight: see `forgetting`.

    All other columns may be skipped, but need no mask.

    Args:
      reach: Largest number of columns before, and after, the diagonal.
      position: For each block, the index of the column on the diagonal at the first row.
      block_rows: Number of rows in a block.
    """
    before, after = reach[:, :, :1], reach[:, :, 1:]
    return Columns(start=position - before, end=position + block_rows + after)


def columns_of_key_mask(mask: Bool[Array, "#B #N L"]) -> Columns:
    """Return the columns (keys) that a key mask leaves visible to blocks of queries.

    `start` is the first visible key, and `end` is the last visible key plus 1. `common_start` and
    `common_end` enclose the first run of consecutive visible keys. All blocks have the same result.

    Args:
      mask: True for visible keys.
    """
    visible = mask[:, :, None, :]
    return _first_run(visible, visible)


def columns_of_segments(
    row_segments: Int[Array, "B R"], column_segments: Int[Array, "B C"], block_rows: int
) -> Columns:
    """Return, for each block of rows, a range of columns that contains all columns of its segments.

    `start` is the first column whose segment number lies between the smallest and the largest
    number in the block, and `end` is the last such column plus 1. If the segments are not sorted,
    the range may contain columns of other segments. If the block has one segment only,
    `common_start` and `common_end` enclose the first run of columns of this segment. Otherwise they
    enclose no column.

    Args:
      row_segments: Segment number of each row.
      column_segments: Segment number of each column.
      block_rows: Number of rows in a block.
    """
    padding = -row_segments.shape[1] % block_rows
    padded = jnp.pad(row_segments, ((0, 0), (0, padding)), mode="edge")
    blocks = padded.reshape(padded.shape[0], 1, -1, block_rows)
    smallest, largest = blocks.min(axis=-1, keepdims=True), blocks.max(axis=-1, keepdims=True)
    columns = column_segments[:, None, None, :]
    seen = (columns >= smallest) & (columns <= largest)
    return _first_run(seen, (columns == smallest) & (smallest == largest))


def _first_run(seen: Bool[Array, "B N blocks C"], common: Bool[Array, "B N blocks C"]) -> Columns:
    """Return the range of the seen columns, and the first run of consecutive common columns.

    `start` and `end` of the result enclose all seen columns. `common_start` and `common_end`
    enclose the first run.

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
    return Columns(start, end, common_start, common_end)
