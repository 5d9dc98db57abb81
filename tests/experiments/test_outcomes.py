"""Sentences about paired tests."""

import pytest

from experiments.papers.formatting import format_p
from experiments.papers.outcomes import (
    Outcome,
    compare_results,
    describe,
    describe_outcomes,
    detectable_range,
    format_outcome,
    group_names,
)
from experiments.papers.statistics import PairedTest


def outcome(difference, p, detectable=0.01, criterion="accuracy"):
    return Outcome(criterion, PairedTest((0, 1, 2), difference, 1.0, p, detectable))


def test_a_difference_that_is_rounded_to_zero_has_no_sign():
    assert format_outcome(outcome(-1e-6, 0.9)) == "0.00 (p = 0.9)"
    assert format_outcome(outcome(-1e-6, 0.9, criterion="loss")) == "0.0000 (p = 0.9)"


def result(values, criterion="accuracy"):
    members = [
        {"seed": seed, "setting": {}, "validation": {criterion: 0.5}, "test": {criterion: value}}
        for seed, value in enumerate(values)
    ]
    return {"criterion": criterion, "members": members}


@pytest.mark.parametrize(
    ("difference", "p", "criterion", "kind"),
    [
        (0.1, 0.01, "accuracy", "better"),
        (-0.1, 0.01, "accuracy", "worse"),
        (0.1, 0.01, "rmse", "worse"),
        (0.1, 0.05, "accuracy", "not distinguishable"),
        (0.1, None, "accuracy", "not distinguishable"),
    ],
)
def test_the_kind_follows_from_p_and_from_the_better_direction(difference, p, criterion, kind):
    assert outcome(difference, p, criterion=criterion).kind == kind


def test_outcomes_are_counted_and_named():
    found = {"a": outcome(0.1, 0.01), "b": outcome(0.2, 0.3), "c": None}
    assert describe_outcomes(found) == (
        "better in 1 of 2 comparisons (a: 10.00 points, p = 0.01), worse in none, "
        "not distinguishable in 1 (b; p from 0.3)"
    )
    assert describe_outcomes(found, name_unclear=False).endswith("in 1 (p from 0.3)")
    assert describe_outcomes({"c": None}) == "not run"


def test_names_are_grouped_by_the_kind_of_the_outcome():
    found = {"a": outcome(0.1, 0.01), "b": outcome(0.2, 0.3), "c": None, "d": outcome(0.1, 0.02)}
    assert group_names(found) == {"better": ["a", "d"], "not distinguishable": ["b"]}


def test_small_p_values_and_missing_tests_are_written_out():
    assert describe(outcome(-0.1, 1e-6)) == "-10.00 points, p < 0.0001"
    assert format_outcome(outcome(-0.1, 0.5, criterion="rmse")) == "-0.1000 (p = 0.5)"
    assert format_outcome(outcome(0.1, None)) == "10.00"
    assert (describe(None), format_outcome(None)) == ("not run", "not run")


def test_the_detectable_range_spans_all_tests():
    found = [outcome(0, 0.5, 0.02), None, outcome(0, 0.5, 0.01), outcome(0, None, None)]
    assert detectable_range(found) == "1.00 to 2.00 points"
    assert detectable_range([None]) == "not run"


def test_results_are_compared_by_seed_on_the_test_set():
    found = compare_results(result([0.5, 0.7]), result([0.25, 0.25]))
    assert found.test.seeds == (0, 1)
    assert found.test.difference == pytest.approx(0.35)
    assert compare_results(None, result([0.5])) is None


def test_p_near_the_threshold_has_more_digits():
    assert [format_p(p) for p in (0.0499, 0.0502, 0.06, 0.00001)] == [
        "0.0499",
        "0.0502",
        "0.06",
        "< 0.0001",
    ]
