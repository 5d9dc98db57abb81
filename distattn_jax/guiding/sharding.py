"""Sharding of batches on meshes with Explicit axes, where operations must specify shardings."""

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec, reshard
from jaxtyping import Array


def gather_heads(array: Array) -> Array:
    """Replicate all axes of an array except the first, the batch axis.

    On a mesh with Explicit axes, a product between different heads requires that the heads are not
    sharded. On other meshes the compiler inserts the communication, and the array is returned
    unchanged.
    """
    spec = _batch_spec(array)
    if spec is None:
        return array
    return reshard(array, NamedSharding(jax.typeof(array).sharding.mesh, spec))


def look_up(table: Array, *indices: Array) -> Array:
    """Return `table[indices]`, sharded along the batch axis like the first array of indices."""
    return jnp.asarray(table).at[indices].get(out_sharding=_batch_spec(indices[0]))


def _batch_spec(array: Array) -> PartitionSpec | None:
    """Return a partition spec that shards only the first axis, like the first axis of `array`.

    Return None if the mesh has no Explicit axes.
    """
    sharding = jax.typeof(array).sharding
    if AxisType.Explicit not in sharding.mesh.axis_types:
        return None
    return PartitionSpec(sharding.spec[0])
