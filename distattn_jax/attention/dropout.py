"""Dropout of attention weights by a counter-based hash.

A hash of the dropout key and the indices of an entry (example b, head n, query i, key j) decides
whether the entry is dropped. Every implementation, tiling and mesh therefore drops the same
entries, and a backward pass recomputes the dropped set instead of storing it:

    row_i    = combine(combine(combine(a, b), n), i)
    column_j = combine(combine(combine(c, b), n), j)
    kept_ij  = mix(row_i ⊕ column_j) ≥ 2³² rate

(a, c) are two random words drawn from the key, and ⊕ is the bitwise exclusive or. `combine` and
`mix` are 32-bit integer arithmetic, two multiplications per entry of a map.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from distattn_jax.hash import combine, mix


class Dropout(NamedTuple):
    """Dropout of the attention weights of one head of one example.

    Attributes:
      rate: Probability of dropping a weight.
      words: Random words drawn from the dropout key.
      example: Index of the example in the batch.
      head: Index of the head.
    """

    rate: Float[Array, ""]
    words: UInt32[Array, "2"]
    example: Int[Array, ""]
    head: Int[Array, ""]

    def __call__(self, weights: Float[Array, "T S"], start: Int[Array, ""]) -> Float[Array, "T S"]:
        """Set dropped weights to 0 and divide kept weights by 1 - rate.

        Args:
          weights: Weights of a block of consecutive queries.
          start: Index of the first query of the block.
        """
        rows, columns = (jnp.arange(size, dtype=jnp.int32) for size in weights.shape)
        rate = self.rate.astype(weights.dtype)
        return jnp.where(self.kept(start + rows, columns), weights / (1 - rate), 0)

    def kept(self, rows: Int[Array, " T"], columns: Int[Array, " S"]) -> Bool[Array, "T S"]:
        """Return a mask that is True for the entries that dropout keeps.

        Args:
          rows: Indices of the queries.
          columns: Indices of the keys.
        """
        row_word, column_word = make_head_words(self.words, self.example, self.head)
        bits = mix(combine(row_word, rows)[:, None] ^ combine(column_word, columns)[None, :])
        return bits >= drop_threshold(self.rate)


def is_off(rate: float | Array) -> bool:
    """Return True if the dropout rate is the Python number 0.

    The result is False for a traced rate, because its value is unknown.
    """
    return isinstance(rate, float | int) and rate == 0


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
      head: Index of each head.

    Returns:
      Two arrays of words. The first has one word per head to hash with query indices. The second
      has one word per head to hash with key indices.
    """
    row_word, column_word = (combine(combine(word, example), head) for word in words)
    return row_word, column_word


def drop_threshold(rate: Float[Array, ""]) -> UInt32[Array, ""]:
    """Return the 32-bit threshold of a dropout rate. Entries with a smaller hash are dropped."""
    return (rate.astype(jnp.float32) * 2.0**32).astype(jnp.uint32)
