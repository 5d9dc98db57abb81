"""Words made of words and numbers, by 32-bit integer arithmetic that any kernel can do."""

import jax.numpy as jnp
from jaxtyping import Array, Int, UInt32


def combine(word: UInt32[Array, "*#n"], index: Int[Array, "*#n"]) -> UInt32[Array, "*n"]:
    """A new word for every index."""
    return mix(word ^ mix(index.astype(jnp.uint32) + jnp.uint32(0x9E3779B9)))


def mix(word: UInt32[Array, "*n"]) -> UInt32[Array, "*n"]:
    """Spreads every bit of a word over all others: the finaliser `lowbias32` (Wellons 2018)."""
    word = (word ^ (word >> 16)) * jnp.uint32(0x7FEB352D)
    word = (word ^ (word >> 15)) * jnp.uint32(0x846CA68B)
    return word ^ (word >> 16)
