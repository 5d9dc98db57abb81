"""Options of a call: dropout with a rate that may be traced, and the attention to return.

Random number generators are passed at call time.
"""

from collections.abc import Mapping
from typing import Any, TypedDict

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from distattn_jax.attention.dropout import is_off

Rngs = nnx.Rngs | nnx.RngStream
Rate = float | Float[Array, ""]


class DropoutOptions(TypedDict, total=False):
    """Dropout in one call of a module or model.

    Attributes:
      dropout_rate: Replaces every dropout rate of the constructor. May be traced. A model whose
        constructor has no dropout rate uses 0 by default.
      rngs: Random number generators of dropout. By default None, which disables dropout.
    """

    dropout_rate: Rate | None
    rngs: Rngs | None


class CallOptions(DropoutOptions, total=False):
    """Dropout in one call of a module or model, and the attention that it returns.

    Attributes:
      received: Also return the attention that each key receives, shape (B, L, N, S).
      weights: Also return the attention weights, shape (B, L, N, T, S).
    """

    received: bool
    weights: bool


def apply_dropout(x: Float[Array, "..."], options: Mapping[str, Any]) -> Float[Array, "..."]:
    """Apply dropout to the input or output of a model, with the options of its call."""
    return dropout(x, options.get("dropout_rate", 0.0), options.get("rngs"))


def dropout(x: Float[Array, "..."], rate: Rate, rngs: Rngs | None) -> Float[Array, "..."]:
    """Set each entry to 0 with probability `rate`, and divide all other entries by 1 - rate.

    Args:
      x: Array of any shape.
      rate: Dropout rate. May be traced.
      rngs: Random number generators, of which the stream `dropout` is used. None disables dropout.
    """
    if rngs is None or is_off(rate):
        return x
    kept = jax.random.bernoulli(dropout_key(rngs), 1 - rate, x.shape)
    return jnp.where(kept, x / (1 - rate), 0).astype(x.dtype)


def dropout_key(rngs: Rngs) -> Array:
    """Draw the next key of the stream `dropout`."""
    return rngs.dropout() if isinstance(rngs, nnx.Rngs) else rngs()
