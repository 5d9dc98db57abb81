"""Sharding of batches on meshes with Explicit axes, where the compiler decides nothing."""

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec, reshard
from jaxtyping import Array


def gather_heads(array: Array) -> Array:
    """Gather all axes but the batch axis on each device, as products of heads require.

    On a mesh with Auto axes the compiler does the same, and the array is returned unchanged.
    """
    spec = _batch_spec(array)
    if spec is None:
        return array
    return reshard(array, NamedSharding(jax.typeof(array).sharding.mesh, spec))


def look_up(table: Array, *indices: Array) -> Array:
    """Return `table[indices]`, with its batch axis sharded like that of the first index."""
    return jnp.asarray(table).at[indices].get(out_sharding=_batch_spec(indices[0]))


def _batch_spec(array: Array) -> PartitionSpec | None:
    """Return a spec that shards the first axis as in the array. None means no Explicit axes."""
    sharding = jax.typeof(array).sharding
    if AxisType.Explicit not in sharding.mesh.axis_types:
        return None
    return PartitionSpec(sharding.spec[0])
