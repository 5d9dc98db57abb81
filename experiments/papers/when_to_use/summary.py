"""Summary of the results on where distance helps: findings and tables."""

from collections.abc import Mapping
from typing import Any

from experiments.papers import outcomes
from experiments.papers.formatting import NOT_RUN, method_title
from experiments.papers.statistics import ALPHA, summarize
from experiments.papers.stored_results import AnyPath
from experiments.papers.when_to_use import tables
from experiments.papers.when_to_use.settings import (
    ENCODERS,
    EXPERIMENTS,
    LENGTHS,
    OURS,
    REMEDY,
    TRAINED_LENGTH,
)

Contents = Mapping[str, Any]  # experiment -> stored results, or None if it was not run


def list_sections(contents: Contents, folder: AnyPath) -> list[str]:
    """Return the headings, texts and tables of the summary as Markdown."""
    return [
        "### Tagging: does the order of words carry the answer?",
        tables.scores_table(contents, tables.TAGGING),
        tables.differences_table(contents, tables.TAGGING),
        "### Sentiment of film reviews: does the order of methods change with the length?",
        tables.scores_table(contents, tables.REVIEWS),
        tables.differences_table(contents, tables.REVIEWS),
        f"### Language models: trained on {TRAINED_LENGTH} tokens, tested on longer texts",
        "Perplexity of the test set (lower is better). All lengths predict the same tokens.",
        tables.lengths_table(contents),
        tables.length_differences_table(contents),
        "### Dilution: how much attention goes to far tokens?",
        tables.far_table(contents),
    ]


def list_findings(contents: Contents, folder: AnyPath) -> list[str]:
    """Return sentences that state the main results, composed from our numbers and the t-tests."""
    findings = [
        f"**TENER against the Transformer**: on named entities (its own claim): "
        f"{describe_pair(contents, 'wnut17', 'adapted', 'vanilla')}; on parts of speech: "
        f"{describe_pair(contents, 'ud_en', 'adapted', 'vanilla')}.",
        f"**Transformer against no positions**: {_describe_sinusoids(contents)}.",
        f"**DA-Transformer on tagging**: {describe_ours(contents, tables.TAGGING)}.",
        f"**DA-Transformer on film reviews**: "
        f"{describe_ours(contents, tables.REVIEWS, name_unclear=True)}.",
        f"**Texts of {LENGTHS[-1]} tokens**: {_describe_growth(contents)}.",
        f"**Score bias against DA-Transformer at {LENGTHS[-1]} tokens**: "
        f"{outcomes.describe_outcomes({'perplexity': _compare_remedy(contents)})}.",
        f"**Pruning half of the heads**: {_describe_pruning(contents)}.",
    ]
    missing = list(filter(None, (_list_missing(contents, name) for name in EXPERIMENTS)))
    if missing:
        findings.append(f"**Not run**: {'; '.join(missing)}.")
    return [*findings, f"A difference counts where p < {ALPHA:g}, uncorrected for many tests."]


def _list_missing(contents: Contents, experiment: str) -> str:
    """Return the title of an experiment with the methods that were not run, or "" if all were."""
    title, methods = EXPERIMENTS[experiment].title, EXPERIMENTS[experiment].methods
    if contents[experiment] is None:
        return f"{title} (all methods)"
    missing = [m for m in methods if tables.find_result(contents, experiment, m) is None]
    return f"{title} ({'; '.join(map(method_title, missing))})" if missing else ""


def describe_pair(contents: Contents, experiment: str, first: str, second: str) -> str:
    """Describe the t-test of two methods in one phrase, such as "better by ..."."""
    outcome = tables.compare(contents, experiment, first, second)
    if outcome is None:
        return NOT_RUN
    return f"{outcome.kind}, {outcomes.describe(outcome)}"


def describe_ours(
    contents: Contents, experiments: tuple[str, ...], *, name_unclear: bool = False
) -> str:
    """Describe the t-tests of DA-Transformer against all other methods in one phrase.

    Args:
      contents: Stored results by experiment.
      experiments: Names of the experiments.
      name_unclear: Whether to name the comparisons without a significant difference.
    """
    found = {
        f"{EXPERIMENTS[name].title}, {method_title(method)}": tables.compare(
            contents, name, OURS, method
        )
        for name in experiments
        for method in ENCODERS
        if method != OURS
    }
    return outcomes.describe_outcomes(found, name_unclear=name_unclear)


def _describe_sinusoids(contents: Contents) -> str:
    """Describe the t-tests of the Transformer against no positions, on tagging and reviews."""
    found = {
        EXPERIMENTS[name].title: tables.compare(contents, name, "vanilla", "no_positions")
        for name in (*tables.TAGGING, *tables.REVIEWS)
    }
    return outcomes.describe_outcomes(found)


def growth(contents: Contents, method: str) -> float | None:
    """Return the perplexity at the largest length divided by that at the trained length."""
    short, long = (
        tables.perplexities(contents, method, length).values()
        for length in (LENGTHS[0], LENGTHS[-1])
    )
    return summarize(long).mean / summarize(short).mean if short and long else None


def _describe_growth(contents: Contents) -> str:
    """Return by which factor the perplexity of each method grows from short to long texts."""
    found = [(method, growth(contents, method)) for method in tables.list_measured(contents)]
    cells = [f"{method_title(method)} {factor:.2f}" for method, factor in found if factor]
    if not cells:
        return NOT_RUN
    return f"perplexity, as a multiple of that at {LENGTHS[0]} tokens: {', '.join(cells)}"


def _compare_remedy(contents: Contents) -> outcomes.Outcome | None:
    """Compare the score bias with DA-Transformer on the longest texts."""
    return tables.compare_lengths(contents, REMEDY, OURS, LENGTHS[-1])


def _describe_pruning(contents: Contents) -> str:
    """Describe the t-tests of every order of pruning against the random order."""
    found = {
        f"{EXPERIMENTS[name].title}, {order} first": tables.compare_pruning(contents, name, order)
        for name in EXPERIMENTS
        for order in tables.find_pruning(contents, name).get("orders", {})
        if order != "random"
    }
    described = outcomes.describe_outcomes(found, name_unclear=False)
    return f"against a random order, {described}" if found else NOT_RUN
