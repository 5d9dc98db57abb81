"""Which texts share the words of another: Okapi's BM25 (Robertson and Zaragoza 2009).

    score(q, d) = Σ_w idf(w) (k + 1) f(w, d) / (f(w, d) + k (1 - b + b |d| / average |d|))
    idf(w)      = log(1 + (N - n(w) + 1/2) / (n(w) + 1/2))

over the distinct words w of q, with f(w, d) how often w is in d, |d| how many words d has, n(w) how
many of the N texts have w; k = 1.5, b = 0.75. Words are lower-cased letters and digits.
"""

import collections
import re
from collections.abc import Collection, Sequence

import numpy as np
from jaxtyping import Int64

WORD = re.compile(r"\w+")
SATURATION, LENGTH_SHARE = 1.5, 0.75  # k and b


class Bm25:
    """Texts to be found by their words; the same ones on every machine."""

    def __init__(self, texts: Sequence[str]):
        self._size = len(texts)
        self._ids: dict[str, int] = {}
        words, places, counts, lengths = [], [], [], []
        for i, text in enumerate(texts):
            found = collections.Counter(WORD.findall(text.lower()))
            words.append([self._ids.setdefault(word, len(self._ids)) for word in found])
            counts.append(np.fromiter(found.values(), np.int32, len(found)))
            places.append(np.full(len(found), i, np.int32))
            lengths.append(found.total())
        of_words = np.concatenate([np.zeros(0, np.int32), *words]).astype(np.int32)
        order = np.argsort(of_words, kind="stable")
        self._starts = np.searchsorted(of_words[order], np.arange(len(self._ids) + 1))
        self._places = np.concatenate([np.zeros(0, np.int32), *places])[order]
        frequency = np.concatenate([np.zeros(0, np.int32), *counts])[order]
        relative = np.asarray(lengths, np.float64) / max(sum(lengths) / max(len(lengths), 1), 1)
        room = SATURATION * (1 - LENGTH_SHARE + LENGTH_SHARE * relative)
        self._gains = (SATURATION + 1) * frequency / (frequency + room[self._places])

    def scores(self, query: str) -> np.ndarray:
        """Of every text."""
        scores = np.zeros(self._size)
        for word in sorted(set(WORD.findall(query.lower())) & self._ids.keys()):
            at = slice(*self._starts[self._ids[word] :][:2])
            having = at.stop - at.start
            rarity = np.log(1 + (self._size - having + 0.5) / (having + 0.5))
            scores[self._places[at]] += rarity * self._gains[at]
        return scores

    def nearest(
        self, query: str, count: int, *, without: Collection[int] = ()
    ) -> Int64[np.ndarray, " count"]:
        """The numbers of the nearest texts, nearest first; of equals, the first given.

        Args:
          query: any text.
          count: how many; fewer where there are no more.
          without: numbers of texts that are not looked at.
        """
        scores = self.scores(query)
        scores[list(without)] = -np.inf
        count = min(count, self._size - len(set(without)))
        if count < 1:
            return np.zeros(0, np.int64)
        least = np.partition(scores, self._size - count)[self._size - count]
        near = np.flatnonzero(scores >= least)
        return near[np.argsort(-scores[near], kind="stable")][:count]
