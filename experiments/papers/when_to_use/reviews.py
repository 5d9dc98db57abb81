"""Sentiment of film reviews: does the order of methods change with the length?"""

import itertools
from collections.abc import Sequence

import numpy as np

from experiments.papers import outcomes
from experiments.papers.formatting import NOT_RUN, method_title
from experiments.papers.statistics import ALPHA, interaction_test, rank_correlation, summarize
from experiments.papers.when_to_use import tables
from experiments.papers.when_to_use.settings import CUTS, ENCODERS
from experiments.papers.when_to_use.tables import Contents, Scores

NAMES = {cut: f"imdb_{cut}" for cut in CUTS}  # experiments by number of words
TITLES = {name: f"{cut} words" for cut, name in NAMES.items()}  # titles of columns
METRIC = "accuracy"
BASES = ("no_positions", "vanilla")  # methods that are subtracted from the others


def find_accuracies(contents: Contents) -> dict[int, Scores]:
    """Return the accuracy on the test set by cut, method and seed. What was not run is left out."""
    found = {c: tables.find_scores(contents, NAMES[c], METRIC, ENCODERS) for c in CUTS}
    return {cut: scores for cut, scores in found.items() if scores}


def describe_order(contents: Contents) -> str:
    """Answer in sentences whether the order of methods changes with the length of reviews.

    The answer uses the methods that were run at every cut with two or more methods. An F test says
    whether the differences between methods change. A pair of methods changes its order if one of
    the two is better at some cut and the other one is better at another cut, both with p < ALPHA.
    """
    found = {cut: scores for cut, scores in find_accuracies(contents).items() if len(scores) > 1}
    methods = [m for m in ENCODERS if found and all(m in scores for scores in found.values())]
    if len(methods) < 2 or len(found) < 2:
        return f"{NOT_RUN} (this needs two methods at two lengths)"
    cuts = list(found)
    seeds = sorted(set.intersection(*(set(found[c][m]) for c in cuts for m in methods)))
    values = np.asarray([[[found[c][m][s] for s in seeds] for c in cuts] for m in methods])
    p = interaction_test(values) if len(seeds) > 1 else None
    opening = f"{len(methods)} methods at {_name_cuts(cuts)}"
    if p is None:
        return f"{opening}: no test is possible"
    pairs = len(methods) * (len(methods) - 1) // 2
    swaps = _list_swaps(found, methods)
    if p >= ALPHA:
        answer = (
            "no change was found. The differences between methods vary with the length no more "
            "than by chance"
        )
    elif swaps:
        answer = f"yes, for {len(swaps)} of {pairs} pairs of methods. For example, {swaps[0]}"
    else:
        answer = (
            "the sizes of the differences change. No pair of methods is shown to change its order"
        )
    test = f"F test of whether differences depend on the length: {outcomes.write_p(p)}"
    return f"{opening}: {answer} ({test}){_describe_correlation(found, methods)}"


def _name_cuts(cuts: Sequence[int]) -> str:
    """Return cuts as text, such as "64, 128 and 256 words"."""
    *others, last = map(str, cuts)
    return f"{', '.join(others)} and {last} words" if others else f"{last} words"


def _list_swaps(found: dict[int, Scores], methods: list[str]) -> list[str]:
    """Return a phrase for each pair of methods that changes its order with the length."""
    swaps = []
    for first, second in itertools.combinations(methods, 2):
        better: dict[str, list[int]] = {outcomes.BETTER: [], outcomes.WORSE: []}
        for cut, scores in found.items():
            outcome = tables.compare_scores(METRIC, scores, first, second)
            if outcome is not None and outcome.kind in better:
                better[outcome.kind].append(cut)
        if all(better.values()):
            a, b = map(_name_cuts, better.values())
            swaps.append(
                f"{method_title(first)} is better than {method_title(second)} at {a} and worse at "
                f"{b}"
            )
    return swaps


def _describe_correlation(found: dict[int, Scores], methods: list[str]) -> str:
    """Return a sentence on the rank correlation of the shortest and the longest cut.

    Return "" for two methods, which have only two possible orders.
    """
    if len(methods) < 3:
        return ""
    first, *_, last = found
    means = [
        [summarize(found[cut][method].values()).mean for method in methods] for cut in (first, last)
    ]
    correlation = rank_correlation(*means)
    return (
        f". The rank correlation of the methods at {first} and at {last} words is "
        f"{correlation:.2f} (1: same order, -1: reversed order)"
    )
