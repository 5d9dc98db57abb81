"""Cells and tables of artificial results, parsed cell by cell."""

import pytest

from experiments.papers import tables
from experiments.papers.formatting import format_p
from experiments.papers.statistics import Outcome, PairedTest
from tests.experiments import stored

NAME = "made_up"
VANILLA, OURS = [0.4, 0.5, 0.6], [0.5, 0.7, 0.9]  # The second is 0.1, 0.2 and 0.3 better.
FLOOR = [0.2, 0.2, 0.2]


def outcome(difference, p, detectable=0.01, metric="accuracy"):
    return Outcome(metric, PairedTest((0, 1, 2), difference, 1.0, p, detectable))


def read(table):
    """Rows of a Markdown table, each a dict by the header."""
    header, rule, *rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()
    ]
    assert len(rule) == len(header)
    return [dict(zip(header, row, strict=True)) for row in rows]


def results(scores, metrics=("accuracy", "loss"), **more):
    return stored.make_results(stored.content(NAME, scores, metrics, **more))


def compare_methods(scores, published=None, **more):
    return read(tables.comparison_table(results(scores, **more), NAME, published or {}))


@pytest.mark.parametrize(
    ("difference", "p", "metric", "kind"),
    [
        (0.1, 0.01, "accuracy", "better"),
        (-0.1, 0.01, "accuracy", "worse"),
        (0.1, 0.01, "rmse", "worse"),
        (0.1, 0.05, "accuracy", "not distinguishable"),
        (0.1, None, "accuracy", "not distinguishable"),
    ],
)
def test_the_kind_follows_from_p_and_from_the_better_direction(difference, p, metric, kind):
    assert outcome(difference, p, metric=metric).kind == kind


def test_tests_are_written_with_difference_and_p():
    assert tables.describe(outcome(-0.1, 1e-6)) == "-10.00 points, p < 0.0001"
    assert tables.format_outcome(outcome(-0.1, 0.5, metric="rmse")) == "-0.1000 (p = 0.5)"
    assert tables.format_outcome(outcome(0.1, None)) == "10.00"
    assert tables.format_outcome(outcome(-1e-6, 0.9)) == "0.00 (p = 0.9)"  # no sign
    assert (tables.describe(None), tables.format_outcome(None)) == ("not run", "not run")
    # Close to the threshold, p has more digits.
    written = [format_p(p) for p in (0.0499, 0.0502, 0.06, 0.00001)]
    assert written == ["0.0499", "0.0502", "0.06", "< 0.0001"]


def test_comparisons_are_counted_and_named_by_their_kind():
    found = {"a": outcome(0.1, 0.01), "b": outcome(0.2, 0.3), "c": None, "d": outcome(0.1, 0.02)}
    expected = "2: a (10.00 points, p = 0.01); d (10.00 points, p = 0.02) | 0 | 1: b; p from 0.3"
    assert tables.outcome_cells(found) == expected
    assert tables.outcome_cells(found, figures=False) == "2: a; d | 0 | 1: b"
    assert tables.outcome_cells({"c": None}) == "not run | not run | not run"
    many = {str(i): outcome(0.1, 0.5) for i in range(18)}
    assert tables.outcome_cells(many).endswith("| 18; p from 0.5")


def test_the_detectable_range_spans_all_tests():
    found = [outcome(0, 0.5, 0.02), None, outcome(0, 0.5, 0.01), outcome(0, None, None)]
    assert tables.detectable_range(found) == "1.00 to 2.00 points"
    assert tables.detectable_range([None]) == "not run"


def test_methods_are_compared_by_the_seeds_that_both_have():
    found = results({"vanilla": VANILLA, "distance_aware": OURS[:2]})
    test = tables.compare(found.main_scores(NAME), "accuracy", "distance_aware", "vanilla").test
    assert test.seeds == (0, 1)
    assert test.difference == pytest.approx(0.15)
    assert tables.compare(found.main_scores(NAME), "accuracy", "adapted", "vanilla") is None
    assert tables.compared(found, "distance_aware,adapted", "vanilla", NAME) == (
        "0 | 0 | 1: DA-Transformer; p from 0.2"
    )


def test_a_diverged_model_is_counted_as_the_worst_one():
    nan = float("nan")
    made = results({"vanilla": [2.0, nan, 2.0], "adapted": [5.0, 5.0, 5.0]}, ("loss",))
    frame = made.scores(NAME, "loss")
    assert tables.mean_cells(frame, "loss")["vanilla"] == "inf ± nan"
    assert tables.rank(frame, "loss") == ["adapted", "vanilla"]
    made = results({"vanilla": [0.5, nan], "adapted": [0.1, 0.1]}, ("accuracy",))
    assert tables.rank(made.scores(NAME, "accuracy"), "accuracy") == ["adapted", "vanilla"]


def test_a_row_holds_percentages_and_plain_losses():
    (row,) = compare_methods({"distance_aware": OURS})
    means = {"accuracy (%)": "70.00 ± 20.00", "loss": "0.7000 ± 0.2000"}
    metrics = {f"{x} {name}": mean for x in ("validation", "test") for name, mean in means.items()}
    assert row == {"method": "DA-Transformer", "parameters": "7", **metrics, "seeds": "3"}


def test_published_numbers_follow_ours_where_they_exist():
    published = {"distance_aware": {"accuracy": "81.5 ± 0.2"}}
    rows = compare_methods({"vanilla": VANILLA, "distance_aware": OURS}, published)
    assert [row["published"] for row in rows] == ["-", "81.5 ± 0.2"]
    names = list(rows[0])
    assert names.index("published") == names.index("test accuracy (%)") + 1
    assert names.count("published") == 1


@pytest.mark.parametrize(
    ("metric", "task", "title"),
    [
        ("accuracy", "", "majority label"),
        ("mrr", "", "BM25"),
        ("f1", "tagging", "majority tag of each word"),
    ],
)
def test_a_prediction_without_a_model_is_the_first_row(metric, task, title):
    known = {"validation": {metric: 0.25}, "test": {metric: 0.2625}}
    made = results({"vanilla": [0.5]}, (metric, "loss"), baseline=known, task=task)
    first, second = read(tables.comparison_table(made, NAME, {}))
    assert first["method"] == title
    cells = [cell for name, cell in first.items() if "(%)" in name]
    assert cells == ["25.00", "26.25"]
    assert {first[name] for name in ("parameters", "test loss", "seeds")} == {"-"}
    assert second["method"] == "Transformer"


def test_the_best_two_methods_are_compared_by_seed():
    scores = {"no_positions": FLOOR, "vanilla": VANILLA, "distance_aware": OURS}
    (row,) = read(tables.best_two(results(scores), NAME))
    # By hand: test_statistics.py.
    assert list(row.values()) == [
        "DA-Transformer, then Transformer",
        *("20.00 points", "3", "3.46", "0.074", "32.64 points"),
    ]
    (row,) = read(tables.best_two(results({"vanilla": [0.4], "adapted": [0.75]}), NAME))
    assert list(row.values())[1:] == ["35.00 points", "1", "-", "-", "-"]
    scores["distance_aware"] = [0.45, 0.55, 0.65]
    (row,) = read(tables.best_two(results(scores), NAME))
    assert list(row.values())[1:] == ["5.00 points", "3", "-", "-", "-"]  # no variation
    assert tables.best_two(results({"vanilla": VANILLA}), NAME) == ""
    assert tables.best_two(results(scores, splits=("validation",)), NAME) == ""


def test_settings_are_listed_with_the_options_that_vary():
    settings = [{"rate": rate, "dropout_rate": 0.2} for rate in (0.1, 0.01)]
    made = results({"adapted": [0.5, 0.6]}, settings=settings)
    rows = read(tables.settings_table(made, NAME))
    assert [row["rate"] for row in rows] == ["0.1", "0.01"]
    assert [row["chosen"] for row in rows] == ["yes", ""]
    assert rows[1]["test accuracy (%)"] == "54.00 ± 7.07"
    assert "dropout rate" not in rows[0]  # It is the same in all settings.
    text = tables.experiment_tables(made, NAME, {})
    assert "All settings, by accuracy (%):" in text
    assert "| settings tried |" in text
    assert "settings" not in tables.experiment_tables(results({"adapted": [0.5]}), NAME, {})


def test_weights_that_a_guide_does_not_use_are_empty_cells():
    settings = [{"alpha": 1, "beta": 1}, {"alpha": 2, "beta": 3}]
    scores = {guide: [0.5] for guide in ("none", "ag", "mdg", "pdg")}
    rows = read(tables.settings_table(results(scores, settings=settings), NAME))
    assert " ".join(row["alpha"] + row["beta"] for row in rows) == "-- -- 11 23 1- 2- -1 -3"


def test_every_seed_is_listed_and_missing_ones_are_empty_cells():
    table = tables.seeds_table(results({"vanilla": [0.5, 0.6], "adapted": [0.25]}), NAME)
    title, rows = table.split("\n\n")
    assert title == "made_up, accuracy (%), validation / test:"
    assert read(rows) == [
        {"seed": "0", "Transformer": "50.00 / 50.00", "Adapted Transformer": "25.00 / 25.00"},
        {"seed": "1", "Transformer": "60.00 / 60.00", "Adapted Transformer": "-"},
    ]


def test_every_run_lists_device_versions_commit_and_speed():
    made = results({"vanilla": VANILLA})
    expected = ["a device", "jax 1.2, flax 3.4", "0123456789-dirty", "3", "120", "2", "1.0"]
    assert stored.find_row(tables.runs(made, "made_*"), "made_up/vanilla")[1:] == expected
    made.stored[NAME]["runs"]["vanilla"].update(environment=None, seconds=0)
    row = stored.find_row(tables.runs(made, "made_*"), "made_up/vanilla")
    assert row[1:] == ["-", "-", "-", "3", "120", "-", "-"]


def test_all_results_need_the_same_criterion():
    content = stored.content(NAME, {"vanilla": [0.5], "adapted": [0.5]})
    content["runs"]["adapted"]["result"] |= {"criterion": "auc"}
    for split in ("validation", "test"):
        content["runs"]["adapted"]["result"]["members"][0][split]["auc"] = 0.5
    with pytest.raises(ValueError, match=r"all with one criterion; got \['accuracy', 'auc'\]"):
        tables.experiment_tables(stored.make_results(content), NAME, {})
