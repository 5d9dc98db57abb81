"""Counter-based 32-bit hash, cheap enough to run inside a kernel."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, UInt32

SHARED_BIT = 8  # Indices that differ in this bit only have the same hash in `hash_indices`.


def combine(word: UInt32[Array, "*#n"], index: Int[Array, "*#n"]) -> UInt32[Array, "*n"]:
    """Hash a 32-bit word together with an index. Different indices result in unrelated hashes."""
    return mix(word ^ mix(index.astype(jnp.uint32) + jnp.uint32(0x9E3779B9)))


def mix(word: UInt32[Array, "*n"]) -> UInt32[Array, "*n"]:
    """Hash a 32-bit word, so that every input bit affects every output bit.

    This is the bijection `lowbias32` (Wellons 2018).
    """
    return _fold(_scramble(_fold(word)))


def _fold(word: UInt32[Array, "*n"]) -> UInt32[Array, "*n"]:
    """Return word ⊕ (word >> 16). The function is its own inverse, and linear with respect to ⊕."""
    return word ^ (word >> 16)


def _scramble(word: UInt32[Array, "*n"]) -> UInt32[Array, "*n"]:
    word *= jnp.uint32(0x7FEB352D)
    return (word ^ (word >> 15)) * jnp.uint32(0x846CA68B)


def hash_indices(
    word: UInt32[Array, "*#n"], indices: Int[Array, "*#n"], *, shift: int
) -> tuple[UInt32[Array, "*n"], UInt32[Array, "*#n"]]:
    """Hash the indices of queries or of keys, to decide which attention weights dropout drops.

    Bit 3 of an index is not hashed, so indices such as 0 and 8 have the same hash. The hashes of a
    query and of a key are combined into a word of four bytes, and one of these bytes decides about
    the weight. Bit 3 of the query index and bit 3 of the key index select this byte.

    This word is mix(row ⊕ column), where row and column are results of `combine`. `mix` begins with
    `_fold`, and fold(row ⊕ column) = fold(row) ⊕ fold(column). The returned hash is therefore
    already folded, which saves a step for each weight.

    Args:
      word: Hash word of the head, for queries or for keys.
      indices: Indices of queries or keys.
      shift: Number of bits to shift by if bit 3 of an index is set: 16 for queries, 8 for keys.

    Returns:
      The hash of each index, and the shift of each index in bits: `shift` or 0.
    """
    bit = indices & SHARED_BIT
    shifts = (bit * (shift // SHARED_BIT)).astype(jnp.uint32)
    return _fold(combine(word, indices ^ bit)), shifts


def is_kept(
    hashes: UInt32[Array, "*#n"], shifts: UInt32[Array, "*#n"], threshold: UInt32[Array, "*#n"]
) -> Bool[Array, "*n"]:
    """Return a mask that is True for the attention weights that dropout keeps.

    Args:
      hashes: Hash of the query index ⊕ hash of the key index, for each weight.
      shifts: Position of the first bit of the byte that decides about each weight: 0, 8, 16 or 24.
      threshold: A weight is dropped if its byte is below this number.
    """
    return ((_fold(_scramble(hashes)) >> shifts) & jnp.uint32(255)) >= threshold


def flag_kept_bytes(
    hashes: UInt32[Array, "*#n"], threshold: UInt32[Array, "*#n"]
) -> UInt32[Array, "*n"]:
    """Decide about four attention weights at once, for which `hashes` has the same number.

    The arguments are those of `is_kept`.

    Returns:
      A word for each hash. The highest bit of byte p of the word is 1 if dropout keeps the weight
      that byte p of the hash decides about. All other bits are arbitrary.
    """
    word = _fold(_scramble(hashes))
    # A byte is its highest bit and the number `low` of its other bits. If the threshold is at most
    # 128, the byte reaches the threshold if its highest bit is 1 or if low >= threshold. Otherwise,
    # it must have both that bit and low >= threshold - 128. The addition below sets the highest bit
    # if `low` is large enough, and does not carry over into the next byte.
    is_low = threshold <= jnp.uint32(128)
    increment = jnp.where(is_low, jnp.uint32(128), jnp.uint32(256)) - threshold
    either = jnp.where(is_low, jnp.uint32(0xFFFFFFFF), jnp.uint32(0))
    low = word & jnp.uint32(0x7F7F7F7F)
    is_large = low + increment * jnp.uint32(0x01010101)
    return (word & is_large) | ((word | is_large) & either)
