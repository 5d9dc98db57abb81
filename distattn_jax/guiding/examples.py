"""Examples in a batch: their shapes, their padding, and where they lie on a mesh."""

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec, reshard
from jaxtyping import Array, Bool, Int


def check_shape(name: str, array: Array, axes: str, sizes: dict[str, int]) -> None:
    """Raises unless an array has these axes, "B L N S", each of the size that is known of it.

    Sizes that are not known yet are added to `sizes`.
    """
    letters, shape = axes.split(), jnp.shape(array)
    fits = len(shape) == len(letters) and all(
        sizes.setdefault(letter, size) == size for letter, size in zip(letters, shape, strict=True)
    )
    if not fits:
        wanted = ", ".join(str(sizes.get(letter, letter)) for letter in letters)
        raise ValueError(f"{name} must have the shape ({axes}), here ({wanted}); got {shape}.")


def valid(lengths: Int[Array, " B"], size: int) -> Bool[Array, "B size"]:
    """True where a position is no padding."""
    return jnp.arange(size, dtype=jnp.int32)[None, :] < lengths[:, None]


def gathered(array: Array) -> Array:
    """The array with all heads of an example on one device, as products of heads need them.

    Only where its mesh has Explicit axes: elsewhere the compiler decides.
    """
    spec = _examples_alone(array)
    if spec is None:
        return array
    return reshard(array, NamedSharding(jax.typeof(array).sharding.mesh, spec))


def looked_up(table: Array, *indices: Array) -> Array:
    """table[indices], with the examples where those of the first index lie."""
    return jnp.asarray(table).at[indices].get(out_sharding=_examples_alone(indices[0]))


def _examples_alone(array: Array) -> PartitionSpec | None:
    """Its first axis sharded as it is, the others not at all; None without Explicit axes."""
    sharding = jax.typeof(array).sharding
    if AxisType.Explicit not in sharding.mesh.axis_types:
        return None
    return PartitionSpec(sharding.spec[0])
