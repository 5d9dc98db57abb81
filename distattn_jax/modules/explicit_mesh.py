"""Shardings of arrays that are joined, on a mesh with Explicit axes.

On such a mesh, JAX concatenates two arrays, or writes one into the other, only if they are sharded
alike.
"""

import jax
from jax.sharding import AxisType, reshard
from jaxtyping import Array


def is_explicit(x: Array) -> bool:
    """Return True if the mesh of an array has Explicit axes."""
    return AxisType.Explicit in jax.typeof(x).sharding.mesh.axis_types


def shard_alike(stored: Array, new: Array, axis: int) -> tuple[Array, Array]:
    """Shard two arrays like `new`, but replicate the axis along which they are joined.

    Without Explicit axes, the arrays are returned unchanged.

    Args:
      stored: Array that was made earlier, possibly without a sharding.
      new: Array with the same number of axes.
      axis: Index of the axis along which the arrays are joined.
    """
    if not is_explicit(new):
        return stored, new
    names = list(jax.typeof(new).sharding.spec)
    names[axis] = None
    return reshard(stored, jax.P(*names)), reshard(new, jax.P(*names))
