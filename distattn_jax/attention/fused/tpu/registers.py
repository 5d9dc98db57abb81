"""Indices of lanes and sublanes, and the size of a register."""

import jax
import jax.numpy as jnp
from jax import lax

LANES = 128
SUBLANES = 8


def lane_indices(shape: tuple[int, int]) -> jax.Array:
    """Return an int32 array of a shape, with the index of the lane in each entry."""
    return lax.broadcasted_iota(jnp.int32, shape, 1)


def sublane_indices(shape: tuple[int, int]) -> jax.Array:
    """Return an int32 array of a shape, with the index of the sublane in each entry."""
    return lax.broadcasted_iota(jnp.int32, shape, 0)


def to_column(row: jax.Array) -> jax.Array:
    """Return a row of shape (1, n) as a column of shape (n, 1)."""
    return jnp.transpose(jnp.broadcast_to(row, (LANES, row.shape[1])))[:, :1]
