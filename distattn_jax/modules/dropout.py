"""Dropout as a function, with a rate that may be traced."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from distattn_jax.attention.dropout import is_off, is_real

Rngs = nnx.Rngs | nnx.RngStream
Rate = float | Float[Array, ""]


def dropout(x: Float[Array, "..."], rate: Rate, rngs: Rngs | None) -> Float[Array, "..."]:
    """Set each entry to 0 with probability `rate`, and divide all other entries by 1 - rate.

    Args:
      x: Array of any shape.
      rate: Dropout rate, from 0 to 1. May be traced.
      rngs: Random number generators. The stream `dropout` is used. None disables dropout.
    """
    if not isinstance(rate, jax.core.Tracer):
        if not is_real(rate) or np.ndim(rate) or not 0 <= np.asarray(rate) <= 1:
            raise ValueError(f"rate must be one number, at least 0 and at most 1; got {rate!r}.")
        rate = float(rate) if isinstance(rate, int) else rate
    if rngs is None or is_off(rate):
        return x
    kept = jax.random.bernoulli(dropout_key(rngs), 1 - rate, x.shape)
    divisor = jnp.where(rate < 1, 1 - rate, 1)  # at rate 1, 0 / 0 would make the gradient NaN
    return jnp.where(kept, x / divisor, 0).astype(x.dtype)


def dropout_key(rngs: Rngs) -> Array:
    """Return the next PRNG key of the stream `dropout`."""
    if not callable(rngs):
        raise TypeError(f"rngs must be random number generators, nnx.Rngs(seed); got {rngs!r}.")
    return rngs.dropout() if isinstance(rngs, nnx.Rngs) else rngs()
