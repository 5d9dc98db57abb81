"""Check integer indices and token ids, and select layers by index."""

import operator
from collections.abc import Sequence

import jax.numpy as jnp
from jaxtyping import Array


def check_integers(name: str, numbers: Sequence[int]) -> tuple[int, ...]:
    """Convert a sequence of integers of any type to Python integers, or raise a ValueError.

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
