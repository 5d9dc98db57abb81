"""Shape checks and padding masks for batches of examples."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


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


def padding_mask(lengths: Int[Array, " B"], size: int) -> Bool[Array, "B size"]:
    """Return a mask of shape (B, size) that is True at valid positions and False at padding."""
    return jnp.arange(size, dtype=jnp.int32)[None, :] < lengths[:, None]
