"""Which tokens come together more often than by chance: pointwise mutual information.

    PMI(a, b) = log(N n(a, b) / (n(a) n(b)))

of N examples, n(a) of which have token a, and n(a, b) both; n(a, a) have a at least twice. A token
that is in every example, as [CLS], has a PMI of 0 with all others. An example is what a model reads
at a time: a text that is read with several others, a claim with its candidates, counts with each.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int32

from distattn_jax.data.table import Ragged


class TokenPmi(NamedTuple):
    """The PMI of the most frequent tokens.

    Attributes:
      row_of_token: the row, and column, of every token of the vocabulary; -1: not in the table.
      values: their PMI, and 0 where it is negative or two are never together.
    """

    row_of_token: Int32[np.ndarray, " V"]
    values: Float32[np.ndarray, "K K"]


def count_pmi(tokens: Ragged, vocabulary: int, *, size: int = 4096) -> TokenPmi:
    """Counted on examples; the window is the whole example.

    Args:
      tokens: the examples, of the training set.
      vocabulary: the number of ids.
      size: at most so many tokens: those in the most examples; of equals, the smaller id.
    """
    if len(tokens.values) and not 0 <= tokens.values.min() <= tokens.values.max() < vocabulary:
        raise ValueError(
            f"tokens must be ids from 0 to {vocabulary - 1}; got {tokens.values.min()} to "
            f"{tokens.values.max()}."
        )
    examples = [
        np.unique(own, return_counts=True) for own in np.split(tokens.values, tokens.offsets[1:-1])
    ]
    having = np.bincount(np.concatenate([ids for ids, _ in examples]), minlength=vocabulary)
    kept = np.argsort(-having, kind="stable")[:size]
    kept = np.sort(kept[having[kept] > 0])
    row_of_token = np.full(vocabulary, -1, np.int32)
    row_of_token[kept] = np.arange(len(kept))
    together = np.zeros((len(kept), len(kept)), np.int32)
    for ids, counts in examples:
        rows = row_of_token[ids]
        known = rows >= 0
        rows, once = rows[known], rows[known & (counts == 1)]
        together[rows[:, None], rows] += 1
        together[once, once] -= 1
    alone = having[kept].astype(np.float32)
    with np.errstate(divide="ignore"):
        values = np.log(together * np.float32(len(tokens)) / alone / alone[:, None])
    return TokenPmi(row_of_token, np.maximum(values, 0, dtype=np.float32))
