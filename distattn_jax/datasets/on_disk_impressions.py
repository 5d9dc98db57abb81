"""Impressions on disk, as `Batches` wants a table: only the titles of the news are in memory."""

import functools
from typing import Any

import numpy as np
from jaxtyping import Int, Int64
from tokenizers import Tokenizer

from distattn_jax.data.table import PADDING_ROW, Ragged
from distattn_jax.data.tokenizer import encode
from distattn_jax.datasets.mind import CANDIDATES, HISTORY, Mind

WORDS = 30  # tokens of a title


class OnDiskImpressions:
    """Impressions, read when they are asked for.

    Their length is the number of candidates. None is ever cut, which would change the metrics: the
    last bucket must hold all, and a length that does not is an error.

    Args:
      source: an `Impression` for every number from 0 on.
      titles: of the news, by their numbers; cut to 30 tokens. The first is empty, and pads.
      candidates: of every impression, where all have as many; `None`: they are counted, in one pass
        over the source.

    Attributes:
      sequence_columns: the columns that have lengths.
      title_lengths: tokens of every title, before it is cut.
    """

    sequence_columns = ("candidates",)

    def __init__(self, source: Any, titles: Ragged, *, candidates: int | None = None):
        if not len(titles) or titles.lengths[0]:
            raise ValueError("titles must begin with an empty one, which stands for no news.")
        self.source, self.candidates = source, candidates
        self.title_lengths = titles.lengths
        self._titles, self._words = titles.pad(np.arange(len(titles)), WORDS)

    @staticmethod
    def from_builder(builder: Mind, split: str, tokenizer: Tokenizer) -> "OnDiskImpressions":
        """The impressions of train, validation or test."""
        titles = encode(tokenizer, builder.titles)
        candidates = CANDIDATES if split == "train" else None
        return OnDiskImpressions(builder.source(split), titles, candidates=candidates)

    def __len__(self) -> int:
        return len(self.source)

    def lengths(self, names: tuple[str, ...]) -> Int64[np.ndarray, " rows"]:
        """The number of candidates, row by row."""
        if names != self.sequence_columns:
            raise ValueError(f"names must be {self.sequence_columns}; got {names}.")
        return self._counts

    @functools.cached_property
    def _counts(self) -> Int64[np.ndarray, " rows"]:
        if self.candidates is not None:
            return np.full(len(self), self.candidates, np.int64)
        counts = (len(self.source[i].candidates) for i in range(len(self)))
        return np.fromiter(counts, np.int64, len(self))

    def take(self, indices: Int[np.ndarray, " B"], length: int) -> dict[str, np.ndarray]:
        """The impressions of these indices, with places for so many candidates, C.

        `history` (B, 50, 30) and `candidates` (B, C, 30) are tokens of titles, `_words` (B, 50 or
        C) says how many a title has, `_length` (B,) how many titles there are. `clicks` (B, C) is 1
        for candidates that were clicked.
        """
        history = np.zeros((len(indices), HISTORY), np.int32)
        candidates = np.zeros((len(indices), length), np.int32)
        clicks = np.zeros((len(indices), length), np.float32)
        history_length, candidates_length = np.zeros((2, len(indices)), np.int32)
        for i in np.flatnonzero(indices != PADDING_ROW):
            row = self.source[int(indices[i])]
            past, shown = len(row.history), len(row.candidates)
            if shown > length:
                raise ValueError(
                    f"length must hold all {shown} candidates of row {indices[i]}; got {length}."
                )
            history_length[i], candidates_length[i] = past, shown
            history[i, :past] = row.history
            candidates[i, :shown] = row.candidates
            clicks[i, :shown] = row.clicks
        return {
            "history": self._titles[history],
            "history_words": self._words[history],
            "history_length": history_length,
            "candidates": self._titles[candidates],
            "candidates_words": self._words[candidates],
            "candidates_length": candidates_length,
            "clicks": clicks,
        }
