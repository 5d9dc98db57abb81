"""Mappings f from weighted distance to coefficient (DA-Transformer, sections 3.2 and 4.3).

A mapping has the arguments (x, shape) and computes one head. x contains the weighted distances
w |i - j|, and `shape` contains the parameters of the mapping, which determine the shape of its
curve. The mapping returns f(x) in the dtype of x. `DistanceAware.shape` contains the parameters of
all heads, with a leading head axis:

    learnable_sigmoid   f(x) = (1 + eᵛ) / (1 + eᵛ⁻ˣ)     v (N,)                eq. 5
    sigmoid             f(x) = 1 / (1 + e⁻ˣ)             ()
    exponent            f(x) = eˣ                        ()
    linear              f(x) = k x + b                   (k (N,), b (N,))
    clip                f(x) = min(x, T)                 T (N,) or (1,), not trained

In float32, exponents above 60 are replaced by 60 to prevent overflow: e⁶⁰ ≈ 1e26 times a score is
still finite. A softmax saturates at much smaller logits. Outside of `jit`, where the value of v is
known, `DistanceAware` refuses v above 60 in float32.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

LARGEST_EXPONENT = 60.0  # for float32
MappingFunction = Callable[[Float[Array, "..."], Any], Float[Array, "..."]]


def learnable_sigmoid(x: Float[Array, "..."], shape: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return (1 + eᵛ) / (1 + eᵛ⁻ˣ), equation 5 of the paper, computed as (1 + eᵛ) sigmoid(x - v).

    In float32, the gradient of the quotient would be NaN for x below about -88. The gradient of the
    product is always finite. A v above 60 is replaced by 60 in float32, so that eᵛ does not
    overflow.

    Args:
      x: Weighted distances w |i - j|.
      shape: Learnable parameter v of the head.
    """
    v = jnp.minimum(shape, largest_exponent(x))
    return (1 + jnp.exp(v)) * jax.nn.sigmoid(x - v)


def sigmoid(x: Float[Array, "..."], shape: tuple[()]) -> Float[Array, "..."]:
    """Return 1 / (1 + e⁻ˣ), which is half of `learnable_sigmoid` with v = 0."""
    return jax.nn.sigmoid(x)


def exponent(x: Float[Array, "..."], shape: tuple[()]) -> Float[Array, "..."]:
    """Return eˣ. In float32, x above 60 is replaced by 60 to prevent overflow."""
    return jnp.exp(jnp.minimum(x, largest_exponent(x)))


def linear(
    x: Float[Array, "..."], shape: tuple[Float[Array, "..."], Float[Array, "..."]]
) -> Float[Array, "..."]:
    """Return k x + b for shape = (k, b).

    The result may be negative. With `early_multiply`, a negative result turns the largest scores
    into the smallest (section 4.3 of the paper).
    """
    slope, intercept = shape
    return slope * x + intercept


def clip(x: Float[Array, "..."], shape: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return min(x, threshold). `shape` is the threshold, which receives no gradient."""
    return jnp.minimum(x, jax.lax.stop_gradient(shape))


def largest_exponent(x: Array) -> float:
    """Return the largest exponent that the mappings use, to prevent overflow in the dtype of x."""
    return 600.0 if x.dtype == jnp.float64 else LARGEST_EXPONENT


MAPPINGS: dict[str, MappingFunction] = {
    f.__name__: f for f in (learnable_sigmoid, sigmoid, exponent, linear, clip)
}


def find_mapping(mapping: MappingFunction | str) -> MappingFunction:
    """Look up a mapping by its name in `MAPPINGS`. Return a function unchanged."""
    names = ", ".join(MAPPINGS)
    if isinstance(mapping, str):
        if mapping not in MAPPINGS:
            raise ValueError(f"mapping must be one of {names}; got {mapping!r}.")
        return MAPPINGS[mapping]
    if not callable(mapping):
        raise TypeError(
            f"mapping must be a function of (x, shape), or one of {names}; got {mapping!r}."
        )
    return mapping


# Names of the arrays in `shape`. One array stands alone, several arrays are a tuple.
MAPPING_PARAMETER_NAMES: dict[MappingFunction, tuple[str, ...]] = {
    learnable_sigmoid: ("v",),
    sigmoid: (),
    exponent: (),
    linear: ("k", "b"),
    clip: ("threshold",),
}
