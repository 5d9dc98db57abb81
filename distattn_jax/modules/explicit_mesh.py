"""Reshard two arrays alike before they are joined, on a mesh with Explicit axes.

On such a mesh, JAX can concatenate two arrays, or write one into the other, only if both have the
same sharding.
"""

import jax
from jax.sharding import AxisType, reshard
from jaxtyping import Array


def is_explicit(x: Array) -> bool:
    """Return True if the mesh of an array has axes of type `AxisType.Explicit`."""
    return AxisType.Explicit in jax.typeof(x).sharding.mesh.axis_types


def shard_alike(stored: Array, new: Array, axis: int) -> tuple[Array, Array]:
    """Return both arrays with the sharding of `new`, except that `axis` is replicated.

    Without Explicit axes, the arrays are returned unchanged.

    Args:
      stored: Array with any sharding.
      new: Array with the same number of axes.
      axis: Index of the axis along which the arrays are joined.
    """
    if not is_explicit(new):
        return stored, new
    names = list(jax.typeof(new).sharding.spec)
    names[axis] = None
    return reshard(stored, jax.P(*names)), reshard(new, jax.P(*names))
