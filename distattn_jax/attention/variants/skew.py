"""Conversion between arrays with one column per relative position and arrays with one per key.

T queries and S keys have T + S - 1 different relative positions. An array by relative position has
T + S columns: one for each relative position i - j, in descending order, and an unused last column.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num


def descending_positions(queries: int, keys: int, offset: Int[Array, ""]) -> Int[Array, " P"]:
    """Return T + S relative positions i - j in descending order, one for each column of `skew`.

    Args:
      queries: Number of queries T.
      keys: Number of keys S.
      offset: Position of query 0 minus the position of key 0.
    """
    return offset + queries - 1 - jnp.arange(queries + keys, dtype=jnp.int32)


def select_positions(
    rows: Num[Array, "P ..."], queries: int, keys: int, start: Int[Array, ""]
) -> Num[Array, "_ ..."]:
    """Select the rows of the relative positions that occur in a block of queries.

    Args:
      rows: Array with one row for each relative position of all queries, in the order of
        `descending_positions`.
      queries: Number of queries of the block.
      keys: Number of keys.
      start: Index of the first query of the block.
    """
    count = queries + keys
    return jax.lax.dynamic_slice_in_dim(rows, rows.shape[0] - count - start, count)


def skew(entries: Float[Array, "T _"]) -> Float[Array, "T S"]:
    """Return the (T, S) array with entry (i, j) = entries[i, T - 1 - i + j], without a gather.

    Args:
      entries: Array of shape (T, T + S), with columns in the order of `descending_positions`.
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
