"""The five mappings f from weighted distance to coefficient (DA-Transformer, sections 3.2 and 4.3).

Each takes x = wR of one head and `shape`, the parameters of that head, and returns f(x) in the
dtype of x. `DistanceAware.shape` holds what the mapping takes, with the head axis in front:

    learnable_sigmoid   f(x) = (1 + eᵛ) / (1 + eᵛ⁻ˣ)     v (N,)                eq. 5
    sigmoid             f(x) = 1 / (1 + e⁻ˣ)             ()
    exponent            f(x) = eˣ                        ()
    linear              f(x) = k x + b                   (k (N,), b (N,))
    clip                f(x) = min(x, T)                 T (N,) or (1,), not trained

Where a mapping would overflow float32 its exponent is cut at 60: e⁶⁰ ≈ 1e26 still leaves room for
a score to be multiplied by it, and a softmax has long saturated there.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

LARGEST_EXPONENT = 60.0  # in float32
Mapping = Callable[[Float[Array, "..."], Any], Float[Array, "..."]]


def learnable_sigmoid(x: Float[Array, "..."], shape: Float[Array, "..."]) -> Float[Array, "..."]:
    """(1 + eᵛ) sigmoid(x - v): the printed quotient without its overflow.

    The quotient's gradient is NaN in float32 from about x = -88. The product's is not, and it is
    one special function per distance. v is cut as said above: f is exact to float32 up to e⁴³.
    """
    v = jnp.minimum(shape, _largest_exponent(x))
    return (1 + jnp.exp(v)) * jax.nn.sigmoid(x - v)


def sigmoid(x: Float[Array, "..."], shape: tuple[()]) -> Float[Array, "..."]:
    """The learnable sigmoid at v = 0, halved: f(0) = 1/2."""
    return jax.nn.sigmoid(x)


def exponent(x: Float[Array, "..."], shape: tuple[()]) -> Float[Array, "..."]:
    """Overflows by nature on long sequences; constant where it is cut."""
    return jnp.exp(jnp.minimum(x, _largest_exponent(x)))


def linear(
    x: Float[Array, "..."], shape: tuple[Float[Array, "..."], Float[Array, "..."]]
) -> Float[Array, "..."]:
    """May be negative, which turns the ReLU of early_multiply against itself (section 4.3)."""
    slope, intercept = shape
    return slope * x + intercept


def clip(x: Float[Array, "..."], shape: Float[Array, "..."]) -> Float[Array, "..."]:
    """Beyond the threshold all distances are the same."""
    return jnp.minimum(x, jax.lax.stop_gradient(shape))


def _largest_exponent(x: Array) -> float:
    return 600.0 if x.dtype == jnp.float64 else LARGEST_EXPONENT


MAPPINGS: dict[str, Mapping] = {
    f.__name__: f for f in (learnable_sigmoid, sigmoid, exponent, linear, clip)
}
