"""Functions for the arguments of guides: validation, padding masks, layer selection, sharding."""

import operator
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec, reshard
from jaxtyping import Array, Bool, Int

from distattn_jax.attention.validation import validate_lengths


def check_shape(name: str, array: Array, axes: str, sizes: dict[str, int]) -> None:
    """Raise a ValueError unless an array has the expected axes.

    Axes with the same name must have the same size in all arrays that are checked with the same
    dict `sizes`.

    Args:
      name: Name of the array, for error messages.
      array: Array to check.
      axes: Names of the expected axes, separated by spaces, e.g. "B L N S".
      sizes: Dict from the name of an axis to its size. The function adds the axes of this array.
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
    """Return a mask that is True at positions below the length of each example.

    Args:
      lengths: Number of valid positions of each example. The rest is padding.
      size: Number of positions, including padding.
    """
    return jnp.arange(size, dtype=jnp.int32)[None, :] < lengths[:, None]


def check_integers(name: str, numbers: Sequence[int]) -> tuple[int, ...]:
    """Convert numbers to Python integers. Raise a ValueError unless all are integers.

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
    """Validate indices along an axis. Return them with index + size in place of a negative index.

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
    """Return the selected layers of an array, whose second axis is the layer axis.

    Args:
      array: Array of shape (B, L, ...).
      layers: Indices of layers. None selects all.
    """
    indices = resolve_indices("layers", layers, array.shape[1])
    if indices == tuple(range(array.shape[1])):
        return array
    return jnp.stack([array[:, index] for index in indices], axis=1)


def gather_heads(array: Array) -> Array:
    """Return the array sharded along its first axis, the batch, and replicated along all others.

    On a mesh with Explicit axes, dot products between different heads require that the heads are
    not sharded. On other meshes, the array is returned unchanged: the compiler inserts the
    communication.
    """
    spec = _batch_spec(array)
    if spec is None:
        return array
    return reshard(array, NamedSharding(jax.typeof(array).sharding.mesh, spec))


def look_up(table: Array, *indices: Array) -> Array:
    """Return `table[indices]`, with its first axis, the batch, sharded like that of indices[0]."""
    return jnp.asarray(table).at[indices].get(out_sharding=_batch_spec(indices[0]))


def _batch_spec(array: Array) -> PartitionSpec | None:
    """Return a partition spec that shards the first axis like that of `array`, and no other axis.

    Return None if the mesh has no Explicit axes.
    """
    sharding = jax.typeof(array).sharding
    if AxisType.Explicit not in sharding.mesh.axis_types:
        return None
    return PartitionSpec(sharding.spec[0])
