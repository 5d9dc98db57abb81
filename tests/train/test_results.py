"""Results of runs: members by setting, and the setting that stands for the run."""

import pytest

from distattn_jax.train import results


def make_result(criterion, *rows):
    """Return a result with one member for each (setting, seed, validation value)."""
    members = [
        {
            "seed": seed,
            "setting": {"rate": rate},
            "validation": {criterion: value, "loss": 1 - value},
            "test": {criterion: value / 2},
        }
        for rate, seed, value in rows
    ]
    return {"criterion": criterion, "members": members}


# The setting 0.1 has the best member, and the setting 0.2 the best mean.
ROWS = ((0.1, 0, 0.9), (0.2, 0, 0.7), (0.1, 1, 0.3), (0.2, 1, 0.8))


def test_members_are_grouped_by_setting_in_the_order_of_the_result():
    assert results.group_by_setting(make_result("accuracy", *ROWS)) == [[0, 2], [1, 3]]


@pytest.mark.parametrize(
    ("criterion", "members", "best", "best_of_setting"),
    [("accuracy", [1, 3], 0, 3), ("rmse", [0, 2], 2, 2)],
)
def test_the_setting_with_the_best_mean_and_the_best_single_member_are_found(
    criterion, members, best, best_of_setting
):
    result = make_result(criterion, *ROWS)
    assert results.select_members(result) == members
    assert results.best_member(result) == best
    assert results.best_member(result, members) == best_of_setting


def test_the_metric_of_the_selected_setting_is_listed_by_seed():
    result = make_result("accuracy", *ROWS)
    assert results.values_by_seed(result, "test", "accuracy") == {0: 0.35, 1: 0.4}
    assert results.values_by_seed(result, "validation", "accuracy", [0]) == {0: 0.9}
    assert results.values_by_seed(result, "test", "unknown") == {}


def test_the_test_set_counts_only_if_all_results_hold_it():
    result = make_result("accuracy", *ROWS)
    search = {**result, "members": [{"validation": {"accuracy": 0.5}}]}
    assert results.measured_splits([result, result]) == ("validation", "test")
    assert results.measured_splits([result, search]) == ("validation",)


def test_the_score_is_higher_for_lower_errors_and_for_higher_accuracies():
    assert results.score("rmse", 0.5) > results.score("rmse", 0.7)
    assert results.score("accuracy", 0.7) > results.score("accuracy", 0.5)
