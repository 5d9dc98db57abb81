"""Counter-based 32-bit hash, cheap enough to run inside a kernel."""

import jax.numpy as jnp
from jaxtyping import Array, Int, UInt32


def combine(word: UInt32[Array, "*#n"], index: Int[Array, "*#n"]) -> UInt32[Array, "*n"]:
    """Hash a 32-bit word together with an index. Different indices result in unrelated hashes."""
    return mix(word ^ mix(index.astype(jnp.uint32) + jnp.uint32(0x9E3779B9)))


def mix(word: UInt32[Array, "*n"]) -> UInt32[Array, "*n"]:
    """Hash a 32-bit word, so that every input bit affects every output bit.

    This is the bijection `lowbias32` (Wellons 2018).
    """
    word = (word ^ (word >> 16)) * jnp.uint32(0x7FEB352D)
    word = (word ^ (word >> 15)) * jnp.uint32(0x846CA68B)
    return word ^ (word >> 16)
