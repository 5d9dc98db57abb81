"""Dropout whose kept set is a function of (key, b, n, i, j) alone.

Which entries survive is a hash of the dropout key and the entry's indices, so that every
implementation, tiling and mesh drops the same ones, and a backward pass can recompute them. The
hash is 32-bit integer arithmetic: it costs a kernel two multiplications per entry.

    row_i    = combine(combine(combine(a, b), n), i)
    column_j = combine(combine(combine(c, b), n), j)
    kept_ij  = mix(row_i ⊕ column_j) ≥ 2³² rate

(a, c) are two random words drawn from the key, ⊕ is the bitwise exclusive or.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from distattn_jax.hash import combine, mix


class Dropout(NamedTuple):
    """Dropout of one head: which head of which example it is decides what it drops."""

    rate: Float[Array, ""]
    words: UInt32[Array, "2"]
    example: Int[Array, ""]
    head: Int[Array, ""]

    def __call__(self, weights: Float[Array, "T S"], start: Int[Array, ""]) -> Float[Array, "T S"]:
        """Drops entries of the block that begins at query `start`, and scales up the others."""
        rate = self.rate.astype(weights.dtype)
        kept = self.kept(
            start + jnp.arange(weights.shape[0], dtype=jnp.int32),
            jnp.arange(weights.shape[1], dtype=jnp.int32),
        )
        return jnp.where(kept, weights / (1 - rate), 0)

    def kept(self, rows: Int[Array, " T"], columns: Int[Array, " S"]) -> Bool[Array, "T S"]:
        """Whether entry (i, j) survives."""
        row_word, column_word = make_head_words(self.words, self.example, self.head)
        bits = mix(combine(row_word, rows)[:, None] ^ combine(column_word, columns)[None, :])
        return bits >= drop_threshold(self.rate)


def is_off(rate: float | Array) -> bool:
    """Whether the rate is the number 0; a traced one counts as on, whatever its value."""
    return isinstance(rate, float | int) and rate == 0


def make_words(key: Array) -> UInt32[Array, "2"]:
    """Two words from a PRNG key of any kind."""
    return jax.random.bits(key, (2,), jnp.uint32)


def make_head_words(
    words: UInt32[Array, "2"], example: Int[Array, "*#n"], head: Int[Array, "*#n"]
) -> tuple[UInt32[Array, "*n"], UInt32[Array, "*n"]]:
    """The words of a head of an example, or of many: one for its queries, one for its keys."""
    row_word, column_word = (combine(combine(word, example), head) for word in words)
    return row_word, column_word


def drop_threshold(rate: Float[Array, ""]) -> UInt32[Array, ""]:
    """Entries whose bits are below it are dropped."""
    return (rate.astype(jnp.float32) * 2.0**32).astype(jnp.uint32)
