"""Random attention, for all tests here."""

import jax
import jax.numpy as jnp
import numpy as np

from distattn_jax.attention import DotProduct, attention

CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def draw(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def attended(query, key, lengths, **arguments):
    """Attention of several layers: their queries and keys are (L B T N H)."""

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
