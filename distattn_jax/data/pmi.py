"""Pointwise mutual information (PMI) of tokens: a measure of how often two tokens occur together.

    PMI(a, b) = log(N n(a, b) / (n(a) n(b)))

N is the number of examples, n(a) the number of examples that contain token a, n(a, b) the number of
examples that contain a and b, and n(a, a) the number of examples that contain a at least twice. A
token that every example contains, such as [CLS], has a PMI of 0 with all other tokens. An example
is one input of the model: a claim that is paired with 5 candidates occurs in 5 examples.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int32

from distattn_jax.data.table import Ragged


class TokenPmi(NamedTuple):
    """Pointwise mutual information (PMI) of the K most frequent tokens of a vocabulary.

    Attributes:
      row_of_token: For each token id, the index of its row in `values`, which is also the index of
        its column, shape (V,). -1 marks a token that has no row.
      values: PMI of every pair of tokens, shape (K, K). The value is 0 for a pair with negative PMI
        and for a pair that never occurs together.
    """

    row_of_token: Int32[np.ndarray, " V"]
    values: Float32[np.ndarray, "K K"]


def count_pmi(tokens: Ragged, vocabulary: int, *, size: int = 4096) -> TokenPmi:
    """Compute the pointwise mutual information (PMI) of every pair of frequent tokens.

    Args:
      tokens: Token ids of the training examples.
      vocabulary: Number of token ids.
      size: Maximum number of tokens in the table. The tokens that occur in the most examples are
        chosen. Of two tokens that occur in equally many examples, the smaller id is chosen first.
    """
    if len(tokens.values) and not 0 <= tokens.values.min() <= tokens.values.max() < vocabulary:
        raise ValueError(
            f"tokens must be ids from 0 to {vocabulary - 1}; got {tokens.values.min()} to "
            f"{tokens.values.max()}."
        )
    examples = [np.unique(ids, return_counts=True) for ids in tokens.split()]
    no_tokens = tokens.values[:0]  # There may be no examples.
    found = np.concatenate([no_tokens, *(ids for ids, _ in examples)])
    frequency = np.bincount(found, minlength=vocabulary)
    kept = np.argsort(-frequency, kind="stable")[:size]
    kept = np.sort(kept[frequency[kept] > 0])
    row_of_token = np.full(vocabulary, -1, np.int32)
    row_of_token[kept] = np.arange(len(kept))
    together = np.zeros((len(kept), len(kept)), np.int32)
    for ids, counts in examples:
        rows = row_of_token[ids]
        known = rows >= 0
        rows, once = rows[known], rows[known & (counts == 1)]
        together[rows[:, None], rows] += 1
        together[once, once] -= 1
    single = frequency[kept].astype(np.float32)
    with np.errstate(divide="ignore"):
        values = np.log(together * np.float32(len(tokens)) / single / single[:, None])
    return TokenPmi(row_of_token, np.maximum(values, 0, dtype=np.float32))
