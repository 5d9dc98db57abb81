"""Conversion between arrays by relative position and arrays by key.

T queries and S keys have T + S - 1 relative positions. An array by relative position has one column
for each relative position, and one more column at the end.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num


def descending_positions(queries: int, keys: int, offset: Int[Array, ""]) -> Int[Array, " P"]:
    """Return the relative position i - j of each of the T + S columns, in descending order."""
    return offset + queries - 1 - jnp.arange(queries + keys, dtype=jnp.int32)


def select_positions(
    rows: Num[Array, "P ..."], queries: int, keys: int, start: Int[Array, ""]
) -> Num[Array, "_ ..."]:
    """Select the rows of the relative positions that occur in a block of queries.

    Args:
      rows: One row for each of the `descending_positions` of all queries.
      queries: Number of queries of the block.
      keys: Number of keys.
      start: Index of the first query of the block.
    """
    count = queries + keys
    return jax.lax.dynamic_slice_in_dim(rows, rows.shape[0] - count - start, count)


def skew(entries: Float[Array, "T _"]) -> Float[Array, "T S"]:
    """Return the array with entry (i, j) = entries[i, T - 1 - i + j], by reshapes and slices.

    Args:
      entries: Array of shape (T, T + S).
    """
    rows, width = entries.shape
    flat = entries.reshape(-1)[rows - 1 : rows - 1 + rows * (width - 1)]
    return flat.reshape(rows, width - 1)[:, : width - rows]


def unskew(entries: Float[Array, "T S"]) -> Float[Array, "T _"]:
    """Return the (T, T + S) array with entry (i, T - 1 - i + j) = entries[i, j], and 0 elsewhere.

    This is the transpose of `skew`.
    """
    rows, columns = entries.shape
    flat = jnp.pad(entries, ((0, 0), (0, rows - 1))).reshape(-1)
    return jnp.pad(flat, (rows - 1, 1)).reshape(rows, rows + columns)
