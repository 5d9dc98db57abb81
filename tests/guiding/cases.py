"""Random arrays and attention of several layers for the tests of guides."""

import jax
import jax.numpy as jnp
import numpy as np

from distattn_jax.attention import DotProduct, attention

CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def draw(seed, *shape):
    """Draw a float32 array from the standard normal distribution."""
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def attend(query, key, lengths, **arguments):
    """Compute dot-product attention for queries and keys of L layers, shape (L, B, T, N, H)."""

    def layer(query, key):
        return attention(
            query,
            key,
            key,
            DotProduct(),
            query_lengths=lengths,
            key_lengths=lengths,
            received=True,
            weights=True,
            **arguments,
        )

    return jax.vmap(layer, out_axes=1)(query, key)
