"""Operations on matrices in registers: indices, products, and columns that move up or down.

A register has 8 rows (sublanes) and 128 columns (lanes).
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import tpu as pltpu

from distattn_jax.attention.fused.operands import select_precision

LANES = 128
SUBLANES = 8


def lane_indices(shape: tuple[int, int]) -> jax.Array:
    """Return an int32 array in which each entry is the index of its lane (column)."""
    return lax.broadcasted_iota(jnp.int32, shape, 1)


def sublane_indices(shape: tuple[int, int]) -> jax.Array:
    """Return an int32 array in which each entry is the index of its sublane (row)."""
    return lax.broadcasted_iota(jnp.int32, shape, 0)


def to_column(row: jax.Array) -> jax.Array:
    """Return a row of shape (1, n) as a column of shape (n, 1)."""
    return jnp.transpose(jnp.broadcast_to(row, (LANES, row.shape[1])))[:, :1]


def multiply(left: jax.Array, right: jax.Array, axes: tuple[int, int]) -> jax.Array:
    """Multiply two matrices, and return the product in float32.

    Products of 16-bit numbers are exact: the precision that is set in JAX must not apply to them,
    because a TPU kernel does not support every precision.

    Args:
      axes: Contracted axis of each matrix: (1, 0) is left @ right, (0, 0) is left.T @ right.
    """
    return lax.dot_general(
        left,
        right,
        (((axes[0],), (axes[1],)), ((), ())),
        precision=select_precision(left.dtype) or lax.Precision.DEFAULT,
        preferred_element_type=jnp.float32,
    )


def move_down(array: jax.Array, shifts: jax.Array, bits: int) -> jax.Array:
    """Move column i of an array down by shifts[0, i] rows, and fill the rows above with zeros.

    The result has at least 2^bits more rows than the array.

    Args:
      array: Array of 128 columns.
      shifts: Number of rows for each column, from 0 to 2^bits - 1, shape (1, 128).
      bits: Number of bits of the shifts.
    """
    rows = _append_zeros(array, SUBLANES)
    for bit in range(bits):
        step = 1 << bit
        if step < SUBLANES:  # The last rows, which are zeros, become the first rows.
            moved = pltpu.roll(rows, step, 0)
        else:
            moved = jnp.concatenate([jnp.zeros((step, LANES), rows.dtype), rows])
            rows = _append_zeros(rows, step)
        rows = jnp.where((shifts & step) != 0, moved, rows)
    return rows


def move_up(array: jax.Array, shifts: jax.Array, count: int, bits: int) -> jax.Array:
    """Move column i of an array up by shifts[0, i] rows, and return the first `count` rows.

    Args:
      array: Array of 128 columns and at most count + 2^bits rows.
      shifts: Number of rows for each column, from 0 to 2^bits - 1, shape (1, 128).
      count: Number of rows of the result.
      bits: Number of bits of the shifts.
    """
    rows = _append_zeros(array, count + (1 << bits) - array.shape[0])
    for bit in reversed(range(bits)):
        step = 1 << bit
        if step < SUBLANES:
            moved = pltpu.roll(rows, rows.shape[0] - step, 0)
        else:  # Smaller bits move the result by less than `step` rows.
            moved, rows = rows[step : count + 2 * step], rows[: count + step]
        rows = jnp.where((shifts & step) != 0, moved, rows)
    return rows[:count]


def _append_zeros(array: jax.Array, count: int) -> jax.Array:
    return jnp.concatenate([array, jnp.zeros((count, LANES), array.dtype)])
