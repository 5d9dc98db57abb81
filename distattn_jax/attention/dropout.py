"""Dropout of attention weights by a counter-based hash.

A hash of the dropout key and of the indices of a weight (example b, query head n, query i, key j)
decides whether the weight is dropped. Every implementation, tiling and mesh therefore drops the
same weights, and a backward pass computes the hash again instead of storing a mask:

    row_i    = combine(combine(combine(a, b), n), i with bit 3 cleared)
    column_j = combine(combine(combine(c, b), n), j with bit 3 cleared)
    byte_ij  = byte p of mix(row_i ⊕ column_j),    p = 2 * (bit 3 of i) + (bit 3 of j)
    kept_ij  = byte_ij ≥ t,    t = 256 * rate, rounded

(a, c) are two random 32-bit integers drawn from the key, and ⊕ is the bitwise exclusive or.
`combine` and `mix` are 32-bit integer functions. One hash has four bytes, one for each of the four
weights whose indices i and j differ only in bit 3. On a GPU, the matrix unit gives all four weights
to the same thread.

The rate is rounded to a multiple of 1/256, but a positive rate is never rounded to 0. Kept weights
are divided by the probability (256 - t) / 256 of keeping a weight.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, UInt32

from distattn_jax.hash import combine, hash_indices, is_kept


class Dropout(NamedTuple):
    """Dropout of the attention weights of one head of one example.

    Attributes:
      rate: Probability of dropping a weight.
      words: Two random 32-bit integers drawn from the dropout key.
      example: Index of the example in the batch.
      head: Index of the query head.
      first_query: Index of query 0 of the head in the whole sequence.
      first_key: Index of key 0 of the head in the whole sequence.
    """

    rate: Float[Array, ""]
    words: UInt32[Array, "2"]
    example: Int[Array, ""]
    head: Int[Array, ""]
    first_query: Int[Array, ""] | int = 0
    first_key: Int[Array, ""] | int = 0

    def __call__(self, weights: Float[Array, "T S"], start: Int[Array, ""]) -> Float[Array, "T S"]:
        """Set dropped weights to 0, and divide kept weights by the probability of keeping one.

        Args:
          weights: Weights of a block of consecutive queries.
          start: Index of the first query of the block.
        """
        rows, columns = (jnp.arange(size, dtype=jnp.int32) for size in weights.shape)
        scale = kept_scale(self.rate, weights.dtype)
        return jnp.where(self.kept(start + rows, columns), weights * scale, 0)

    def kept(self, rows: Int[Array, " T"], columns: Int[Array, " S"]) -> Bool[Array, "T S"]:
        """Return a mask that is True for the weights that dropout keeps.

        Args:
          rows: Indices of the queries of the head.
          columns: Indices of the keys of the head.
        """
        rows, columns = self.first_query + rows, self.first_key + columns
        row_word, column_word = make_head_words(self.words, self.example, self.head)
        row_hash, row_shift = hash_indices(row_word, rows, shift=16)
        column_hash, column_shift = hash_indices(column_word, columns, shift=8)
        return is_kept(
            row_hash[:, None] ^ column_hash[None, :],
            row_shift[:, None] + column_shift[None, :],
            drop_threshold(self.rate),
        )


def is_off(rate: float | Array) -> bool:
    """Return True if the dropout rate is known to be 0. The value of a traced rate is unknown."""
    is_known = is_real(rate) and not isinstance(rate, jax.core.Tracer)
    # NumPy compares also inside of `jax.jit`, where JAX would trace the comparison.
    return is_known and np.ndim(rate) == 0 and bool(np.asarray(rate) == 0)


def is_real(rate: Any) -> bool:
    """Return True for a real number of Python, and for an array of real numbers."""
    if not hasattr(rate, "dtype"):
        return isinstance(rate, float | int)
    return any(jnp.issubdtype(rate.dtype, kind) for kind in (jnp.floating, jnp.integer))


def make_words(key: Array) -> UInt32[Array, "2"]:
    """Draw two random 32-bit integers from a PRNG key of any PRNG implementation."""
    return jax.random.bits(key, (2,), jnp.uint32)


def make_head_words(
    words: UInt32[Array, "2"], example: Int[Array, "*#n"], head: Int[Array, "*#n"]
) -> tuple[UInt32[Array, "*n"], UInt32[Array, "*n"]]:
    """Derive two 32-bit hash seeds for each head of each example.

    Args:
      words: Two random 32-bit integers drawn from the dropout key.
      example: Index of the example.
      head: Index of the query head.

    Returns:
      Seeds to hash with query indices, and seeds to hash with key indices. Both arrays have the
      shape to which `example` and `head` broadcast.
    """
    row_word, column_word = (combine(combine(word, example), head) for word in words)
    return row_word, column_word


def drop_threshold(rate: Float[Array, ""]) -> UInt32[Array, ""]:
    """Return the threshold t = 256 * rate, rounded to an integer.

    Each weight has a random byte from 0 to 255, and is dropped if the byte is below t. t is 0 only
    for the rate 0, and 256 only for the rate 1.
    """
    threshold = jnp.clip(jnp.round(256 * rate), 1, 255)
    threshold = jnp.where(rate > 0, jnp.where(rate < 1, threshold, 256), 0)
    return threshold.astype(jnp.uint32)


def kept_scale(rate: Float[Array, ""], dtype: DTypeLike = jnp.float32) -> Float[Array, ""]:
    """Return the factor that multiplies kept weights: 1 / (probability of keeping a weight).

    The factor is 0 if this probability is 0.
    """
    kept = 256 - drop_threshold(rate).astype(dtype)
    return jnp.where(kept > 0, 256 / jnp.maximum(kept, 1), 0)
