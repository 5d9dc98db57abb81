"""Describe the outcomes of paired t-tests in words: better, worse or not distinguishable."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from distattn_jax.train.results import Result, score, values_by_seed
from experiments.papers.formatting import (
    NOT_RUN,
    format_difference,
    format_p,
    format_value,
)
from experiments.papers.statistics import ALPHA, PairedTest, paired_t_test

BETTER, WORSE, UNCLEAR = "better", "worse", "not distinguishable"


class Outcome(NamedTuple):
    """The result of a paired t-test, and the name of the metric that was compared."""

    criterion: str
    test: PairedTest

    @property
    def kind(self) -> str:
        """BETTER or WORSE than the second method if p < ALPHA, otherwise UNCLEAR."""
        if self.test.p is None or self.test.p >= ALPHA:
            return UNCLEAR
        return BETTER if score(self.criterion, self.test.difference) > 0 else WORSE


def compare_results(
    first: Result | None, second: Result | None, metric: str | None = None
) -> Outcome | None:
    """Compare a metric of two methods on the test set by a paired t-test over seeds.

    Return None if one of the results is missing, or if the methods have no seed in common.

    Args:
      first: Result of the first method.
      second: Result of the second method.
      metric: Name of the metric. None compares the main metric.
    """
    if first is None or second is None:
        return None
    criterion = metric or first["criterion"]
    test = paired_t_test(
        values_by_seed(first, "test", criterion), values_by_seed(second, "test", criterion)
    )
    return None if test is None else Outcome(criterion, test)


def describe_outcomes(outcomes: Mapping[str, Outcome | None], *, name_unclear: bool = True) -> str:
    """Describe tests in one phrase, such as "better in 1 of 3 comparisons (A: 0.66 points), ...".

    Args:
      outcomes: Outcomes by name of the comparison. Comparisons with the outcome None are ignored.
      name_unclear: Whether to list the names of the comparisons without a significant difference.
    """
    tested = {name: outcome for name, outcome in outcomes.items() if outcome is not None}
    if not tested:
        return NOT_RUN
    phrases: list[str] = []
    for kind in (BETTER, WORSE, UNCLEAR):
        found = {name: outcome for name, outcome in tested.items() if outcome.kind == kind}
        phrase = f"{kind} in {len(found) or 'none'}"
        phrase += "" if phrases else f" of {len(tested)} comparisons"
        if found and kind == UNCLEAR:
            names = f"{', '.join(found)}; " if name_unclear else ""
            phrase += f" ({names}{_least_p(list(found.values()))})"
        elif found:
            phrase += f" ({', '.join(f'{name}: {describe(one)}' for name, one in found.items())})"
        phrases.append(phrase)
    return ", ".join(phrases)


def group_names(outcomes: Mapping[str, Outcome | None]) -> dict[str, list[str]]:
    """Return the names of comparisons by their kind: BETTER, WORSE and UNCLEAR.

    Comparisons with the outcome None are ignored, and kinds without a comparison are left out.
    """
    names = {
        kind: [name for name, one in outcomes.items() if one is not None and one.kind == kind]
        for kind in (BETTER, WORSE, UNCLEAR)
    }
    return {kind: found for kind, found in names.items() if found}


def describe(outcome: Outcome | None) -> str:
    """Format a test as difference and p value, such as "-0.25 points, p = 0.00027".

    Return "not run" if `outcome` is None.
    """
    if outcome is None:
        return NOT_RUN
    difference = format_difference(outcome.criterion, outcome.test.difference)
    return difference if outcome.test.p is None else f"{difference}, {write_p(outcome.test.p)}"


def format_outcome(outcome: Outcome | None) -> str:
    """Format a test as one table cell without a unit, such as "-0.25 (p = 0.00027)"."""
    if outcome is None:
        return NOT_RUN
    difference = format_value(outcome.criterion, outcome.test.difference)
    return difference if outcome.test.p is None else f"{difference} ({write_p(outcome.test.p)})"


def detectable_range(outcomes: Sequence[Outcome | None]) -> str:
    """Format the range of detectable differences of several tests, such as "0.21 to 0.35"."""
    found = [
        (outcome.test.detectable, outcome.criterion)
        for outcome in outcomes
        if outcome is not None and outcome.test.detectable is not None
    ]
    if not found:
        return NOT_RUN
    (lowest, criterion), (highest, _) = min(found), max(found)
    return f"{format_value(criterion, lowest)} to {format_difference(criterion, highest)}"


def _least_p(outcomes: Sequence[Outcome]) -> str:
    """Format the smallest p value of several tests. Return "no test" if no test has a p value."""
    values = [outcome.test.p for outcome in outcomes if outcome.test.p is not None]
    return f"p from {format_p(min(values))}" if values else "no test"


def write_p(p: float) -> str:
    """Format a p value as "p = 0.04" or "p < 0.0001"."""
    formatted = format_p(p)
    return f"p {formatted}" if formatted.startswith("<") else f"p = {formatted}"
