"""Measures of language models that are tested on longer texts than in training.

There is one experiment for each trained length. All experiments predict the same tokens of the test
set, at every length.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from experiments.papers import tables
from experiments.papers.results import Results
from experiments.papers.statistics import compare_values
from experiments.papers.tables import Column, Outcomes
from experiments.papers.when_to_use.settings import EXPERIMENTS, LENGTHS, TRAINED_LENGTHS

SHORT, LONG = TRAINED_LENGTHS
NAMES = {SHORT: "imdb_language_model", LONG: "imdb_language_model_512"}  # by trained length
METRIC = "perplexity"
LONGEST = LENGTHS[-1]


def perplexities(results: Results, length: int, trained: int = SHORT) -> pd.DataFrame:
    """Return a DataFrame of perplexities, with one row per seed and one column per method.

    Args:
      results: Stored results of all experiments.
      length: Length of the test texts, in tokens.
      trained: Length of the training texts, in tokens.
    """
    frame = results.scores(NAMES[trained], METRIC, f"{length} tokens")
    return frame[[method for method in EXPERIMENTS[NAMES[trained]] if method in frame]]


def list_measured(results: Results, trained: int = SHORT) -> list[str]:
    """Return the methods whose perplexity on the longest texts was measured, best first.

    `trained` is the length of the training texts, in tokens.
    """
    return tables.rank(perplexities(results, LONGEST, trained), METRIC)


def position_columns(measured: Mapping[str, Mapping[str, Any]], digits: int) -> list[Column]:
    """Return columns with the perplexity in ranges of positions, such as "from 64".

    Args:
      measured: Dict from each row of the table to the stored perplexities of one length of texts.
      digits: Number of decimals.
    """
    columns = []
    for i, start in enumerate(next(iter(measured.values()))["starts"] if measured else ()):
        means = {row: np.mean(one["by_position"], axis=0)[i] for row, one in measured.items()}
        cells = {row: f"{mean:.{digits}f}" for row, mean in means.items()}
        columns.append(Column(f"from {start}", cells))
    return columns


def compare_trainings(results: Results, length: int) -> Outcomes:
    """Compare training on longer texts with training on shorter texts, by a t-test per method.

    The test compares the perplexities on texts of `length` tokens. The result of a method is None
    if one of the two runs is missing, or if the runs used different data.
    """
    short, long = (perplexities(results, length, trained) for trained in TRAINED_LENGTHS)
    data = [results.part(name, "data") for name in NAMES.values()]
    same = all(data[0].get(key) == data[1].get(key) for key in ("digests", "vocabulary"))
    return {
        method: compare_values(
            METRIC, tables.by_seed(long, method), tables.by_seed(short, method) if same else {}
        )
        for method in long
    }


def far_shares(
    results: Results, method: str, length: int, trained: int = SHORT
) -> np.ndarray | None:
    """Return the share of the attention on far tokens for each head, shape (seeds, L, N).

    Return None if it was not measured. A token is far if its distance is larger than the trained
    length. `length` is the length of the test texts, in tokens.
    """
    found = results.part(NAMES[trained], "heads", method, "far", str(length))
    return np.asarray(found["heads"]) if found else None


def uniform_share(results: Results, length: int, trained: int = SHORT) -> float:
    """Return the share of the attention on far tokens if all weights were equal.

    Return nan if no method was measured at this length.
    """
    for found in results.part(NAMES[trained], "heads").values():
        if str(length) in found.get("far", {}):
            return found["far"][str(length)]["uniform"]
    return float("nan")
