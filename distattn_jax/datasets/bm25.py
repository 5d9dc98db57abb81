"""Okapi BM25 (Robertson and Zaragoza 2009): rank texts by the words they share with a query.

    score(q, d) = Σ_w idf(w) (k + 1) f(w, d) / (f(w, d) + k (1 - b + b |d| / average |d|))
    idf(w)      = log(1 + (N - n(w) + 1/2) / (n(w) + 1/2))

The sum is over the distinct words w of the query q. f(w, d) is the number of occurrences of w in
the text d, |d| is the number of words of d, N is the number of texts, and n(w) is the number of
texts that contain w. The constants are k = 1.5 and b = 0.75. Words are lower-cased runs of letters
and digits.
"""

import collections
import re
from collections.abc import Collection, Sequence

import numpy as np
from jaxtyping import Int64

WORD = re.compile(r"\w+")
K, B = 1.5, 0.75


class Bm25:
    """Index of texts that ranks the texts by their BM25 scores for a query.

    Args:
      texts: Texts to rank. The index of a text is its position in this sequence, from 0.
    """

    def __init__(self, texts: Sequence[str]):
        self._size = len(texts)
        self._word_ids: dict[str, int] = {}
        # One entry for every distinct word of every text: the word, the text and the count.
        words, places, counts, lengths = [], [], [], []
        for i, text in enumerate(texts):
            found = collections.Counter(WORD.findall(text.lower()))
            words.append([self._word_ids.setdefault(word, len(self._word_ids)) for word in found])
            counts.append(np.fromiter(found.values(), np.int32, len(found)))
            places.append(np.full(len(found), i, np.int32))
            lengths.append(found.total())
        word_of_entry = np.concatenate([np.zeros(0, np.int32), *words]).astype(np.int32)
        order = np.argsort(word_of_entry, kind="stable")
        # The entries of word w are starts[w] to starts[w + 1].
        self._starts = np.searchsorted(word_of_entry[order], np.arange(len(self._word_ids) + 1))
        self._texts = np.concatenate([np.zeros(0, np.int32), *places])[order]
        frequency = np.concatenate([np.zeros(0, np.int32), *counts])[order]
        relative = np.asarray(lengths, np.float64) / max(sum(lengths) / max(len(lengths), 1), 1)
        saturation = K * (1 - B + B * relative)
        self._gains = (K + 1) * frequency / (frequency + saturation[self._texts])

    def scores(self, query: str) -> np.ndarray:
        """Return the BM25 score of every text for a query, shape (texts,)."""
        scores = np.zeros(self._size)
        for word in sorted(set(WORD.findall(query.lower())) & self._word_ids.keys()):
            entries = slice(*self._starts[self._word_ids[word] :][:2])
            count = entries.stop - entries.start
            idf = np.log(1 + (self._size - count + 0.5) / (count + 0.5))
            scores[self._texts[entries]] += idf * self._gains[entries]
        return scores

    def nearest(
        self, query: str, count: int, *, without: Collection[int] = ()
    ) -> Int64[np.ndarray, " count"]:
        """Return the indices of the texts with the highest scores, in descending order of scores.

        Texts with equal scores are in ascending order of their indices.

        Args:
          query: Any text.
          count: Number of texts to return. Fewer are returned if there are not enough texts.
          without: Indices of texts to exclude.
        """
        scores = self.scores(query)
        scores[list(without)] = -np.inf
        count = min(count, self._size - len(set(without)))
        if count < 1:
            return np.zeros(0, np.int64)
        lowest = np.partition(scores, self._size - count)[self._size - count]
        near = np.flatnonzero(scores >= lowest)
        return near[np.argsort(-scores[near], kind="stable")][:count]
