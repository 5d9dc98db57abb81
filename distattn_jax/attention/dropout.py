"""Dropout whose kept set is a function of (key, b, n, i, j) alone.

Which entries survive is a hash of the dropout key and the entry's indices, so that every
implementation, tiling and mesh drops the same ones, and a backward pass can recompute them. The
hash is 32-bit integer arithmetic: it costs a kernel two multiplications per entry.

    row_i    = chain(chain(chain(a, b), n), i)         (a, c): two words drawn from the key
    column_j = chain(chain(chain(c, b), n), j)         chain: a new word from a word and an index
    kept_ij  = mix(row_i ⊕ column_j) ≥ 2³² rate        mix: every bit of a word over all others
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from distattn_jax.attention.variant import counted
from distattn_jax.hash import chain, mix


class Dropout(NamedTuple):
    """Dropout of one head: which head of which example it is decides what it drops."""

    rate: Float[Array, ""]
    words: UInt32[Array, "2"]
    example: Int[Array, ""]
    head: Int[Array, ""]

    def __call__(self, weights: Float[Array, "T S"], start: Int[Array, ""]) -> Float[Array, "T S"]:
        """Drops entries of the block that begins at query `start`, and scales up the others."""
        rate = self.rate.astype(weights.dtype)
        kept = self.kept(start + counted(weights.shape[0]), counted(weights.shape[1]))
        return jnp.where(kept, weights / (1 - rate), 0)

    def kept(self, rows: Int[Array, " T"], columns: Int[Array, " S"]) -> Bool[Array, "T S"]:
        """Whether entry (i, j) survives."""
        row_word, column_word = words_of_head(self.words, self.example, self.head)
        bits = mix(chain(row_word, rows)[:, None] ^ chain(column_word, columns)[None, :])
        return bits >= threshold_of(self.rate)


def is_off(rate: float | Array) -> bool:
    """Whether the rate is the number 0; a traced one counts as on, whatever its value."""
    return isinstance(rate, float | int) and rate == 0


def words_of(key: Array) -> UInt32[Array, "2"]:
    """Two words from a PRNG key of any kind."""
    return jax.random.bits(key, (2,), jnp.uint32)


def words_of_head(
    words: UInt32[Array, "2"], example: Int[Array, "*#n"], head: Int[Array, "*#n"]
) -> tuple[UInt32[Array, "*n"], UInt32[Array, "*n"]]:
    """The words of a head of an example, or of many: one for its queries, one for its keys."""
    row_word, column_word = (chain(chain(word, example), head) for word in words)
    return row_word, column_word


def threshold_of(rate: Float[Array, ""]) -> UInt32[Array, ""]:
    """Entries whose bits are below it are dropped."""
    return (rate.astype(jnp.float32) * 2.0**32).astype(jnp.uint32)
