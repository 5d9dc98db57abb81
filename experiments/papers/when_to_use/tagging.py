"""Tagging: titles of the data sets, and scores that are averaged over languages."""

from experiments.papers.when_to_use import tables
from experiments.papers.when_to_use.settings import ENCODERS, TREEBANKS
from experiments.papers.when_to_use.tables import Contents, Scores

# Titles of columns.
PARTS_OF_SPEECH = {
    "ud_en": "UD English-EWT",
    **{name: f"UD {treebank}" for name, treebank in TREEBANKS.items()},
}
TITLES = PARTS_OF_SPEECH | {"wnut17": "WNUT-17"}


def average_languages(contents: Contents) -> Scores:
    """Return the accuracy of parts of speech by method and seed, averaged over `TREEBANKS`.

    Methods and seeds that were not run on all treebanks are left out.
    """
    found = [tables.find_scores(contents, name, "accuracy", ENCODERS) for name in TREEBANKS]
    averages = {}
    for method in ENCODERS:
        scores = [by_method.get(method, {}) for by_method in found]
        seeds = sorted(set.intersection(*map(set, scores)))
        if seeds:
            averages[method] = {
                seed: sum(values[seed] for values in scores) / len(scores) for seed in seeds
            }
    return averages
