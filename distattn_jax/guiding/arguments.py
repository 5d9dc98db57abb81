"""Arguments of the guides: checks of shapes and indices, padding masks, layers and shardings."""

import operator
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec, reshard
from jaxtyping import Array, Bool, Int

from distattn_jax.attention.validation import validate_lengths


def check_shape(name: str, array: Array, axes: str, sizes: dict[str, int]) -> None:
    """Raise a ValueError if the shape of an array does not match its axes.

    Args:
      name: Name of the array, for error messages.
      array: Array to check.
      axes: Expected axes, separated by spaces, e.g. "B L N S".
      sizes: Dict from the name of each axis checked so far to its size. New axes are added.
    """
    letters, shape = axes.split(), jnp.shape(array)
    fits = len(shape) == len(letters) and all(
        sizes.setdefault(letter, size) == size for letter, size in zip(letters, shape, strict=True)
    )
    if not fits:
        expected = ", ".join(str(sizes.get(letter, letter)) for letter in letters)
        raise ValueError(f"{name} must have the shape ({axes}), here ({expected}); got {shape}.")


def check_lengths(lengths: Int[Array, " B"], batch: int, longest: int) -> Int[Array, " B"]:
    """Return lengths as int32 numbers from 0 to `longest`. Raise an error for other values."""
    checked = validate_lengths("lengths", lengths, (batch,), longest)
    if checked is None:
        raise TypeError("lengths must be an array, one integer per example; got None.")
    return checked


def padding_mask(lengths: Int[Array, " B"], size: int) -> Bool[Array, "B size"]:
    """Return a mask of shape (B, size) that is True at valid positions and False at padding."""
    return jnp.arange(size, dtype=jnp.int32)[None, :] < lengths[:, None]


def check_integers(name: str, numbers: Sequence[int]) -> tuple[int, ...]:
    """Convert integers of any type to Python integers. Raise a ValueError for other values.

    Args:
      name: Name of the argument, for error messages.
      numbers: At least one integer.
    """
    try:
        integers = tuple(operator.index(number) for number in numbers)
    except TypeError as error:
        raise ValueError(f"{name} must be a sequence of integers; got {numbers!r}.") from error
    if not integers:
        raise ValueError(f"{name} must contain at least one number; got none.")
    return integers


def resolve_indices(name: str, indices: Sequence[int] | None, size: int) -> tuple[int, ...]:
    """Return nonnegative indices along an axis. A negative index is replaced by size + index.

    Args:
      name: Name of the argument, for error messages.
      indices: Distinct indices from -size to size - 1. None selects all.
      size: Size of the axis.
    """
    if indices is None:
        return tuple(range(size))
    indices = check_integers(name, indices)
    outside = [index for index in indices if not -size <= index < size]
    if outside:
        raise ValueError(f"{name} must lie from {-size} to {size - 1}; got {outside}.")
    resolved = tuple(index % size for index in indices)
    if len(set(resolved)) < len(resolved):
        raise ValueError(f"{name} must not repeat a number; got {indices}.")
    return resolved


def select_layers(array: Array, layers: Sequence[int] | None) -> Array:
    """Select layers along the second axis of an array. `layers=None` selects all."""
    indices = resolve_indices("layers", layers, array.shape[1])
    if indices == tuple(range(array.shape[1])):
        return array
    return jnp.stack([array[:, index] for index in indices], axis=1)


def gather_heads(array: Array) -> Array:
    """Replicate an array along all axes except the batch axis, which is the first.

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
