"""Random arrays and attention of several layers for the tests of guides."""

import jax
import numpy as np

from distattn_jax.attention import DotProduct, attention

CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def draw(seed, *shape):
    """Draw a float32 array from the standard normal distribution."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def attend(query, key, lengths, **arguments):
    """Compute dot-product attention for queries and keys of L layers, shape (L, B, T, N, H)."""
    arguments |= {"query_lengths": lengths, "key_lengths": lengths}

    def layer(query, key):
        return attention(query, key, key, DotProduct(), received=True, weights=True, **arguments)

    return jax.vmap(layer, out_axes=1)(query, key)
