"""Dropout of attention weights by a counter-based hash.

A hash of the dropout key and the indices of an entry (example b, head n, query i, key j) decides
whether the entry is dropped. Every implementation, tiling and mesh therefore drops the same
entries, and a backward pass recomputes the dropped set instead of storing it:

    row_i    = combine(combine(combine(a, b), n), i with bit 3 cleared)
    column_j = combine(combine(combine(c, b), n), j with bit 3 cleared)
    byte_ij  = byte number 2 (bit 3 of i) + (bit 3 of j) of mix(row_i ⊕ column_j)
    kept_ij  = byte_ij ≥ t,    t = 256 rate, rounded

(a, c) are two random words drawn from the key, n is the query head, and ⊕ is the bitwise exclusive
or. `combine` and `mix` are 32-bit integer arithmetic. One hash serves the four entries whose
indices differ in bit 3 only. A GPU thread owns all four of them in a tile of the matrix unit.

The rate is rounded to a multiple of 1/256, and a positive rate is at least 1/256. Kept weights are
divided by the fraction (256 - t) / 256 that is really kept.
"""

from typing import NamedTuple

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
      words: Random words drawn from the dropout key.
      example: Index of the example in the batch.
      head: Index of the query head.
    """

    rate: Float[Array, ""]
    words: UInt32[Array, "2"]
    example: Int[Array, ""]
    head: Int[Array, ""]

    def __call__(self, weights: Float[Array, "T S"], start: Int[Array, ""]) -> Float[Array, "T S"]:
        """Set dropped weights to 0 and divide kept weights by the fraction that is kept.

        Args:
          weights: Weights of a block of consecutive queries.
          start: Index of the first query of the block.
        """
        rows, columns = (jnp.arange(size, dtype=jnp.int32) for size in weights.shape)
        scale = kept_scale(self.rate, weights.dtype)
        return jnp.where(self.kept(start + rows, columns), weights * scale, 0)

    def kept(self, rows: Int[Array, " T"], columns: Int[Array, " S"]) -> Bool[Array, "T S"]:
        """Return a mask that is True for the entries that dropout keeps.

        Args:
          rows: Indices of the queries.
          columns: Indices of the keys.
        """
        row_word, column_word = make_head_words(self.words, self.example, self.head)
        row_hash, row_shift = hash_indices(row_word, rows, shift=16)
        column_hash, column_shift = hash_indices(column_word, columns, shift=8)
        return is_kept(
            row_hash[:, None] ^ column_hash[None, :],
            row_shift[:, None] + column_shift[None, :],
            drop_threshold(self.rate),
        )


def is_off(rate: float | Array) -> bool:
    """Return True if the dropout rate is the number 0 of Python or NumPy.

    The result is False for a traced rate, because its value is unknown.
    """
    return isinstance(rate, float | int | np.number) and rate == 0


def make_words(key: Array) -> UInt32[Array, "2"]:
    """Draw two random 32-bit words from a PRNG key of any kind."""
    return jax.random.bits(key, (2,), jnp.uint32)


def make_head_words(
    words: UInt32[Array, "2"], example: Int[Array, "*#n"], head: Int[Array, "*#n"]
) -> tuple[UInt32[Array, "*n"], UInt32[Array, "*n"]]:
    """Derive the hash words of individual heads from the two words of the dropout key.

    Args:
      words: Random words drawn from the dropout key.
      example: Index of the example of each head.
      head: Index of each query head.

    Returns:
      Two arrays of words. The first has one word per head to hash with query indices. The second
      has one word per head to hash with key indices.
    """
    row_word, column_word = (combine(combine(word, example), head) for word in words)
    return row_word, column_word


def drop_threshold(rate: Float[Array, ""]) -> UInt32[Array, ""]:
    """Return the threshold t: an entry is dropped if its byte is below t.

    The threshold is 0 for the rate 0 and 256 for the rate 1. For every rate between 0 and 1, it is
    at least 1 and at most 255.
    """
    threshold = jnp.clip(jnp.round(256 * rate), 1, 255)
    threshold = jnp.where(rate > 0, jnp.where(rate < 1, threshold, 256), 0)
    return threshold.astype(jnp.uint32)


def kept_scale(rate: Float[Array, ""], dtype: DTypeLike = jnp.float32) -> Float[Array, ""]:
    """Return the factor of kept weights: 1 / (fraction of weights that are kept).

    The factor is 0 if no weight is kept.
    """
    kept = 256 - drop_threshold(rate).astype(dtype)
    return jnp.where(kept > 0, 256 / jnp.maximum(kept, 1), 0)
