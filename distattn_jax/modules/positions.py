"""Sinusoidal position encodings of the original Transformer (Vaswani et al. 2017, section 3.5)."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from distattn_jax.attention import sinusoid


def add_positions(
    embeddings: Float[Array, "*batch T D"],
    first: int | Int[Array, "*#batch"] = 0,
    *,
    scale: float | Float[Array, ""] = 1.0,
) -> Float[Array, "*batch T D"]:
    """Return the embeddings plus the sinusoidal encodings of their positions.

    Args:
      embeddings: Embedded tokens of even width D.
      first: Position of the first token: one integer for all examples, or one for each example.
      scale: Factor that multiplies the position encodings.
    """
    length, width = embeddings.shape[-2:]
    if width % 2:
        raise ValueError(f"embeddings must have an even width (sines and cosines); got {width}.")
    if not jnp.issubdtype(embeddings.dtype, jnp.floating):
        raise ValueError(f"embeddings must be floating point; got dtype {embeddings.dtype}.")
    is_array = isinstance(first, int | float | np.generic | np.ndarray | jax.Array)
    if not is_array or not jnp.issubdtype(jnp.result_type(first), jnp.integer):
        raise ValueError(f"first must be an integer or an array of integers; got {first!r}.")
    if jnp.ndim(first) > embeddings.ndim - 2:
        raise ValueError(
            f"first must have at most the batch axes of embeddings, {embeddings.shape[:-2]}; got "
            f"shape {jnp.shape(first)}."
        )
    dtype = jnp.promote_types(embeddings.dtype, jnp.float32)
    positions = jnp.expand_dims(first, -1) + jnp.arange(length).reshape(
        [1] * jnp.ndim(first) + [-1]
    )
    encodings = sinusoid(positions.reshape(-1), width, dtype).reshape(*positions.shape, width)
    encodings = jnp.expand_dims(encodings, range(embeddings.ndim - encodings.ndim))
    return (embeddings + scale * encodings).astype(embeddings.dtype)
