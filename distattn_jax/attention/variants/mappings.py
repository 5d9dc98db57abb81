"""Mappings f from weighted distance to coefficient (DA-Transformer, sections 3.2 and 4.3).

A mapping is a function of (x, shape) for one head: x = wR are the weighted distances, and `shape`
contains the parameters of the mapping. The mapping returns f(x) in the dtype of x.
`DistanceAware.shape` contains the parameters of all heads, with a leading head axis:

    learnable_sigmoid   f(x) = (1 + eᵛ) / (1 + eᵛ⁻ˣ)     v (N,)                eq. 5
    sigmoid             f(x) = 1 / (1 + e⁻ˣ)             ()
    exponent            f(x) = eˣ                        ()
    linear              f(x) = k x + b                   (k (N,), b (N,))
    clip                f(x) = min(x, T)                 T (N,) or (1,), not trained

In float32, exponents are clamped at 60 to prevent overflow: e⁶⁰ ≈ 1e26 times a score is still
finite. A softmax saturates at much smaller logits. `DistanceAware` refuses v above 60 in float32
if it can read the value of v, that is outside of `jit`.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

LARGEST_EXPONENT = 60.0  # for float32
MappingFunction = Callable[[Float[Array, "..."], Any], Float[Array, "..."]]


def learnable_sigmoid(x: Float[Array, "..."], shape: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return (1 + eᵛ) sigmoid(x - v), which equals (1 + eᵛ) / (1 + eᵛ⁻ˣ) of the paper's eq. 5.

    In float32 the gradient of the quotient is NaN below about x = -88. The gradient of the product
    is always finite. v is clamped at 60 for float32, so that eᵛ does not overflow.

    Args:
      x: Weighted distances.
      shape: Learnable parameter v, the shape of the sigmoid of a head.
    """
    v = jnp.minimum(shape, largest_exponent(x))
    return (1 + jnp.exp(v)) * jax.nn.sigmoid(x - v)


def sigmoid(x: Float[Array, "..."], shape: tuple[()]) -> Float[Array, "..."]:
    """Return 1 / (1 + e⁻ˣ), which is half of `learnable_sigmoid` with v = 0."""
    return jax.nn.sigmoid(x)


def exponent(x: Float[Array, "..."], shape: tuple[()]) -> Float[Array, "..."]:
    """Return eˣ, with x clamped at 60 for float32 to prevent overflow on long sequences."""
    return jnp.exp(jnp.minimum(x, largest_exponent(x)))


def linear(
    x: Float[Array, "..."], shape: tuple[Float[Array, "..."], Float[Array, "..."]]
) -> Float[Array, "..."]:
    """Return k x + b for shape = (k, b).

    The result may be negative. `early_multiply` multiplies the scores by the result, so that a
    negative result turns large scores into small ones (section 4.3 of the paper).
    """
    slope, intercept = shape
    return slope * x + intercept


def clip(x: Float[Array, "..."], shape: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return min(x, threshold). `shape` is the threshold, which receives no gradient."""
    return jnp.minimum(x, jax.lax.stop_gradient(shape))


def largest_exponent(x: Array) -> float:
    """Return the value at which exponents are clamped, to prevent overflow in the dtype of x."""
    return 600.0 if x.dtype == jnp.float64 else LARGEST_EXPONENT


MAPPINGS: dict[str, MappingFunction] = {
    f.__name__: f for f in (learnable_sigmoid, sigmoid, exponent, linear, clip)
}

# Names of the arrays in `shape`. One array stands alone, several arrays are a tuple.
SHAPE_NAMES: dict[MappingFunction, tuple[str, ...]] = {
    learnable_sigmoid: ("v",),
    sigmoid: (),
    exponent: (),
    linear: ("k", "b"),
    clip: ("threshold",),
}
