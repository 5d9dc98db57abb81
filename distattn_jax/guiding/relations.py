"""Attention targets from relations between words: syntax, co-occurrence or similar meaning.

Wang et al. (2022) give no equations for these targets and refer to Qi et al. (2020) and Xia et al.
(2021). This file defines the target weight P_ij of query i and key j as follows. A word may consist
of several tokens. PMI is pointwise mutual information.

    dependency       P_ij = 1/p   if j is one of the p tokens of the syntactic head of i's word
    pmi              P_ij ∝ max(0, PMI(token_i, token_j))     if j is not i
    word_similarity  P_ij ∝ max(0, cos(vector_i, vector_j))   if i and j are in different words

Each row i sums to 1, or is all zeros if token i has no target. Targets are computed on the device
from integer arrays of shape (B, T), so that the host sends no (T, T) matrix.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from distattn_jax.attention import promote
from distattn_jax.guiding.arguments import check_shape, look_up
from distattn_jax.guiding.target import Target, make_target


class PmiTable(NamedTuple):
    """Pointwise mutual information (PMI) of pairs of the K most frequent tokens.

    Attributes:
      row_of_token: For each of the V token ids, its row in `values`, which is also its column. -1
        means that the token is not in the table.
      values: PMI of each pair of tokens a and b, log(p(a, b) / (p(a) p(b))).
    """

    row_of_token: Int[Array, " V"]
    values: Float[Array, "K K"]


def dependency(
    words: Int[Array, "B T"], heads: Int[Array, "B T"], lengths: Int[Array, " B"]
) -> Target:
    """Return the attention target in which each token attends to the syntactic head of its word.

    If the head consists of several tokens, they share the attention equally.

    Args:
      words: Word number of each token. The first word of a text has number 1. 0 means that the
        token belongs to no word.
      heads: Word number of the syntactic head of each token's word. 0 means that the word has no
        head.
      lengths: Number of valid tokens of each text. The rest is padding.
    """
    sizes: dict[str, int] = {}
    check_shape("words", words, "B T", sizes)
    check_shape("heads", heads, "B T", sizes)
    is_head = (heads[:, :, None] == words[:, None, :]) & (heads > 0)[:, :, None]
    return make_target(is_head.astype(jnp.float32), lengths)


def pmi(tokens: Int[Array, "B T"], lengths: Int[Array, " B"], table: PmiTable) -> Target:
    """Return the attention target in which each token attends to other tokens, weighted by PMI.

    Negative PMI counts as 0.

    Args:
      tokens: Token ids.
      lengths: Number of valid tokens of each text. The rest is padding.
      table: Pointwise mutual information (PMI) of pairs of tokens.
    """
    check_shape("tokens", tokens, "B T", {})
    rows = look_up(table.row_of_token, tokens)
    values = look_up(table.values, rows[:, :, None], rows[:, None, :])
    in_table = (rows >= 0)[:, :, None] & (rows >= 0)[:, None, :]
    is_other = ~jnp.eye(tokens.shape[1], dtype=bool)[None]
    positive = jnp.maximum(values.astype(promote(values.dtype)), 0)
    return make_target(jnp.where(in_table & is_other, positive, 0), lengths)


def word_similarity(
    vectors: Int[Array, "B T"], lengths: Int[Array, " B"], table: Float[Array, "W E"]
) -> Target:
    """Return the attention target in which each token attends to words of similar meaning.

    The target weight of two words is proportional to the cosine of their word vectors. A negative
    cosine counts as 0. Adjacent tokens with the same vector count as one word. A token does not
    attend to its own word, but may attend to another occurrence of this word in the text.

    Args:
      vectors: For each token, the row in `table` of the vector of its word. Row 0 means that the
        word has no vector.
      lengths: Number of valid tokens of each text. The rest is padding.
      table: Word vectors of any norm, one per row. The cosine with a vector of zeros counts as 0.
    """
    check_shape("vectors", vectors, "B T", {})
    embedded = look_up(table, vectors)
    embedded = embedded.astype(promote(embedded.dtype))
    squares = jnp.square(embedded).sum(axis=-1, keepdims=True)
    inverse_norm = jax.lax.rsqrt(jnp.where(squares > 0, squares, 1))
    embedded = jnp.where(squares > 0, embedded * inverse_norm, 0)
    cosine = jnp.einsum("bte,bse->bts", embedded, embedded, precision="highest")
    starts_word = jnp.concatenate(
        [jnp.ones_like(vectors[:, :1], bool), vectors[:, 1:] != vectors[:, :-1]], axis=1
    )
    word = jnp.cumsum(starts_word, axis=1, dtype=jnp.int32)
    is_other = word[:, :, None] != word[:, None, :]
    has_vector = (vectors > 0)[:, :, None] & (vectors > 0)[:, None, :]
    return make_target(jnp.where(has_vector & is_other, jnp.maximum(cosine, 0), 0), lengths)
