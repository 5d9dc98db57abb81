"""Dropout with the generator at call time, and a rate that may be traced."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from distattn_jax.attention.dropout import is_off

Rngs = nnx.Rngs | nnx.RngStream
Rate = float | Float[Array, ""]


def dropout(x: Float[Array, "..."], rate: Rate, rngs: Rngs | None) -> Float[Array, "..."]:
    """Zeroes a share `rate` of the entries and scales up the others; does nothing without rngs."""
    if rngs is None or is_off(rate):
        return x
    kept = jax.random.bernoulli(dropout_key(rngs), 1 - rate, x.shape)
    return jnp.where(kept, x / (1 - rate), 0).astype(x.dtype)


def dropout_key(rngs: Rngs) -> Array:
    """The next key of the stream `dropout`."""
    return rngs.dropout() if isinstance(rngs, nnx.Rngs) else rngs()
