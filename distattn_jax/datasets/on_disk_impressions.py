"""Table of MIND impressions that stay on disk. Only the titles of the news items are in memory."""

import functools
from typing import Any

import numpy as np
from jaxtyping import Int, Int64
from tokenizers import Tokenizer

from distattn_jax.data.table import PADDING_ROW, Ragged
from distattn_jax.data.tokenizer import encode
from distattn_jax.datasets.mind import CANDIDATES, HISTORY, Impression, Mind

TITLE_LENGTH = 30  # tokens of a title
PADDING = Impression(*np.zeros((3, 0), np.int32))


class OnDiskImpressions:
    """Table of MIND impressions for `Batches` that reads each impression when it is needed.

    The length of a row is its number of candidates. Candidates are never truncated, because this
    would change the metrics. Therefore the last bucket must be as long as the longest row.

    Args:
      source: Sequence of `Impression` objects, read on demand.
      titles: Token ids of the title of every news item. Titles are truncated to 30 tokens. Title 0
        must be empty and serves as padding.
      candidates: Number of candidates of an impression, if all impressions have the same number. If
        None, the first call of `lengths` counts the candidates of every impression.

    Attributes:
      sequence_columns: Names of the columns that contain sequences.
      title_lengths: Number of tokens of every title before truncation.
    """

    sequence_columns = ("candidates",)

    def __init__(self, source: Any, titles: Ragged, *, candidates: int | None = None):
        if not len(titles) or titles.lengths[0]:
            raise ValueError("titles must begin with an empty title, which serves as padding.")
        self.source, self.candidates = source, candidates
        self.title_lengths = titles.lengths
        self._tokens, self._lengths = titles.pad(np.arange(len(titles)), TITLE_LENGTH)

    @staticmethod
    def from_builder(builder: Mind, split: str, tokenizer: Tokenizer) -> "OnDiskImpressions":
        """Make the table of one split of MIND.

        Args:
          builder: Data set to read from.
          split: `train`, `validation` or `test`.
          tokenizer: Tokenizer for the titles.
        """
        titles = encode(tokenizer, builder.titles)
        candidates = CANDIDATES if split == "train" else None
        return OnDiskImpressions(builder.source(split), titles, candidates=candidates)

    def __len__(self) -> int:
        return len(self.source)

    def lengths(self, names: tuple[str, ...]) -> Int64[np.ndarray, " rows"]:
        """Return the number of candidates of every row.

        Args:
          names: Must be ("candidates",), the only column that has a length.
        """
        if names != self.sequence_columns:
            raise ValueError(f"names must be {self.sequence_columns}; got {names}.")
        return self._candidate_counts

    @functools.cached_property
    def _candidate_counts(self) -> Int64[np.ndarray, " rows"]:
        """Number of candidates of every row, shape (rows,)."""
        if self.candidates is not None:
            return np.full(len(self), self.candidates, np.int64)
        counts = (len(self.source[i].candidates) for i in range(len(self)))
        return np.fromiter(counts, np.int64, len(self))

    def take(self, indices: Int[np.ndarray, " B"], length: int) -> dict[str, np.ndarray]:
        """Read the selected impressions, and return a dict with the following arrays.

        - `history` (B, 50, 30) and `candidates` (B, C, 30): Token ids of the titles.
        - `history_words` (B, 50) and `candidates_words` (B, C): Number of tokens of each title.
        - `history_length` (B,) and `candidates_length` (B,): Number of titles without padding.
        - `clicks` (B, C): 1 for each candidate that was clicked, otherwise 0.

        Args:
          indices: Row indices, shape (B,). The index -1 selects a row of padding only.
          length: Number C of candidates, padding included.
        """
        rows = [PADDING if i == PADDING_ROW else self.source[int(i)] for i in indices]
        for i, row in zip(indices, rows, strict=True):
            if len(row.candidates) > length:
                raise ValueError(
                    f"length must be at least {len(row.candidates)}, the candidates of row {i}; "
                    f"got {length}."
                )
        clicks = Ragged.from_rows([row.clicks for row in rows], np.float32)
        return {
            **self._take_titles("history", [row.history for row in rows], HISTORY),
            **self._take_titles("candidates", [row.candidates for row in rows], length),
            "clicks": clicks.pad(np.arange(len(rows)), length)[0],
        }

    def _take_titles(self, name: str, news: list[np.ndarray], length: int) -> dict[str, np.ndarray]:
        """Return the arrays `{name}`, `{name}_words` and `{name}_length` that `take` describes.

        Args:
          name: "history" or "candidates".
          news: Indices of the news items of each row.
          length: Number of titles of a row, padding included.
        """
        numbers, counts = Ragged.from_rows(news).pad(np.arange(len(news)), length)
        return {
            name: self._tokens[numbers],
            f"{name}_words": self._lengths[numbers],
            f"{name}_length": counts,
        }
