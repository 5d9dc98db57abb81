"""Targets that are relations of words: co-occurrence, syntax, likeness of meaning.

The paper takes them from Qi et al. (2020) and Xia et al. (2021) and gives no equations. Here:

    dependency       P_ij = 1/p         for the p pieces j of the word that is the head of i's word
    pmi              P_ij ∝ max(0, PMI(token_i, token_j))     for j other than i
    word_similarity  P_ij ∝ max(0, cos(vector_i, vector_j))   for j in other words than i

each row normalised to sum 1; a row in which all are 0 has no target. The relation of two positions
is looked up where the tokens are: what comes from the host is one number for each of them.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from distattn_jax.attention import promote
from distattn_jax.guiding.examples import check_shape, looked_up
from distattn_jax.guiding.target import Target, shared


class Pmi(NamedTuple):
    """Pointwise mutual information of the most frequent tokens.

    Attributes:
      row_of_token: the row, and column, of every token of the vocabulary; -1: not in the table.
      values: log p(a, b) / (p(a) p(b)) of every two tokens in the table.
    """

    row_of_token: Int[Array, " V"]
    values: Float[Array, "K K"]


def dependency(
    words: Int[Array, "B T"], heads: Int[Array, "B T"], lengths: Int[Array, " B"]
) -> Target:
    """Every piece attends to the pieces of its word's syntactic head, equally.

    Args:
      words: the number of the word each piece belongs to, from 1; 0: none.
      heads: the number of the word that is that word's head; 0: none, as for a root.
      lengths: right padding.
    """
    sizes: dict[str, int] = {}
    check_shape("words", words, "B T", sizes)
    check_shape("heads", heads, "B T", sizes)
    is_head = (heads[:, :, None] == words[:, None, :]) & (heads > 0)[:, :, None]
    return shared(is_head.astype(jnp.float32), lengths)


def pmi(tokens: Int[Array, "B T"], lengths: Int[Array, " B"], table: Pmi) -> Target:
    """Every token attends to those it is found with more often than by chance.

    Args:
      tokens: the texts.
      lengths: right padding.
      table: the PMI of every two tokens; what is not above 0 does not count.
    """
    check_shape("tokens", tokens, "B T", {})
    rows = looked_up(table.row_of_token, tokens)
    values = looked_up(table.values, rows[:, :, None], rows[:, None, :])
    known = (rows >= 0)[:, :, None] & (rows >= 0)[:, None, :]
    other = ~jnp.eye(tokens.shape[1], dtype=bool)[None]
    positive = jnp.maximum(values.astype(promote(values.dtype)), 0)
    return shared(jnp.where(known & other, positive, 0), lengths)


def word_similarity(
    vectors: Int[Array, "B T"], lengths: Int[Array, " B"], table: Float[Array, "W E"]
) -> Target:
    """Every piece attends to the words that mean something alike.

    Neighbouring pieces with the same vector are one word, which does not attend to itself; the same
    word elsewhere in the text it may attend to.

    Args:
      vectors: the row of each piece's word in the table; 0: it has no vector.
      lengths: right padding.
      table: word vectors of any norm; a vector of zeros is like no other.
    """
    check_shape("vectors", vectors, "B T", {})
    found = looked_up(table, vectors)
    found = found.astype(promote(found.dtype))
    squares = jnp.square(found).sum(axis=-1, keepdims=True)
    found = jnp.where(squares > 0, found * jax.lax.rsqrt(jnp.where(squares > 0, squares, 1)), 0)
    cosine = jnp.einsum("bte,bse->bts", found, found, precision="highest")
    is_new = jnp.concatenate(
        [jnp.ones_like(vectors[:, :1], bool), vectors[:, 1:] != vectors[:, :-1]], axis=1
    )
    word = jnp.cumsum(is_new, axis=1, dtype=jnp.int32)
    other = word[:, :, None] != word[:, None, :]
    known = (vectors > 0)[:, :, None] & (vectors > 0)[:, None, :]
    return shared(jnp.where(known & other, jnp.maximum(cosine, 0), 0), lengths)
