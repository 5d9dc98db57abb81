"""Tables of made-up results, read back cell by cell."""

import pytest

from experiments.papers.comparison_tables import comparison, seeds, settings, tables, title, verdict
from experiments.papers.results import chosen


def result(method, figures, *, rates=(0.001,), first_seed=0, **more):
    """`figures`: for each rate, for each seed, (validation, test) accuracy."""
    return {
        "method": method,
        "task": "made up",
        "criterion": "accuracy",
        "steps": 100,
        "parameters": 1_234_567,
        "members": [
            {
                "seed": first_seed + i,
                "setting": {"learning_rate": rate, "dropout_rate": 0.2},
                "best_step": 100,
                "validation": {"loss": 1.5, "accuracy": validation},
                "test": {"loss": 1 / 3, "accuracy": test},
            }
            for rate, of_rate in zip(rates, figures, strict=True)
            for i, (validation, test) in enumerate(of_rate)
        ],
        **more,
    }


VANILLA = result("vanilla", [[(0.5, 0.40), (0.6, 0.50), (0.7, 0.60)]])
OURS = result("distance_aware", [[(0.8, 0.50), (0.8, 0.70), (0.8, 0.90)]])  # 0.1, 0.2, 0.3 better
FLOOR = result("no_positions", [[(0.3, 0.2), (0.3, 0.2), (0.3, 0.2)]])


def read(table):
    """Rows of a Markdown table, each a dict by the header."""
    header, rule, *rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()
    ]
    assert len(rule) == len(header)
    return [dict(zip(header, row, strict=True)) for row in rows]


def test_a_row_holds_mean_and_deviation_in_percent_and_losses_as_they_are():
    (row,) = read(comparison([OURS], paper={}))
    assert row == {
        "method": "DA-Transformer",
        "parameters": "1,234,567",
        "validation accuracy (%)": "80.00 ± 0.00",
        "validation loss": "1.5000 ± 0.0000",
        "test accuracy (%)": "70.00 ± 20.00",
        "test loss": "0.3333 ± 0.0000",
        "seeds": "3",
    }


def test_methods_stand_in_the_order_of_the_package_under_their_titles():
    text = tables([OURS, FLOOR, VANILLA])
    first = text.split("\n\n")[0]
    assert [row["method"] for row in read(first)] == [
        title(method) for method in ("no_positions", "vanilla", "distance_aware")
    ]


def test_the_papers_figure_stands_beside_ours_where_it_is_known():
    table = comparison([VANILLA, OURS], paper={"distance_aware": {"accuracy": "81.5 ± 0.2"}})
    assert [row["paper's accuracy (%)"] for row in read(table)] == ["-", "81.5 ± 0.2"]
    names = list(read(table)[0])
    assert names.index("paper's accuracy (%)") == names.index("test accuracy (%)") + 1
    assert "paper's loss" not in names


def test_the_majority_label_is_the_first_row_where_it_is_given():
    known = {"validation": {"accuracy": 0.25}, "test": {"accuracy": 0.2625}}
    first, second = read(comparison([result("vanilla", [[(0.5, 0.4)]], baseline=known)], paper={}))
    assert first["method"] == "majority label"
    assert first["validation accuracy (%)"] == "25.00"
    assert first["test accuracy (%)"] == "26.25"
    assert {first[name] for name in ("parameters", "test loss", "seeds")} == {"-"}
    assert second["method"] == "Transformer"
    assert "majority" not in comparison([VANILLA], paper={})


def test_what_ranks_without_a_model_is_named():
    of_member = {split: {"mrr": 0.5} for split in ("validation", "test")}
    ranked = {
        **result("none", [], rates=()),
        "criterion": "mrr",
        "members": [{"seed": 0, "setting": {}, **of_member}],
        "baseline": {"validation": {"mrr": 0.25}, "test": {"mrr": 0.125}},
    }
    first, _ = read(comparison([ranked], paper={}))
    assert first["method"] == "BM25"
    assert [cell for name, cell in first.items() if "MRR" in name] == ["25.00", "12.50"]


def test_the_best_two_are_compared_seed_by_seed():
    sentence = verdict([FLOOR, VANILLA, OURS])
    assert "DA-Transformer, then Transformer; difference 20.00 points" in sentence
    assert "t = 3.46, p = 0.074 (paired over 3 seeds)" in sentence  # by hand: test_statistics.py
    assert "detectable difference 32.64 points (two-sided α = 0.05, power 0.8)" in sentence
    assert "picked by these figures" in sentence
    assert "picked by these figures" not in verdict([VANILLA, OURS])  # there was nothing to pick


def test_where_there_is_no_test_dashes_and_the_reason_stand():
    one = [result("vanilla", [[(0.5, 0.4)]]), result("adapted", [[(0.5, 0.75)]])]
    assert "difference 35.00 points, t -, p -, detectable difference -" in verdict(one)
    assert "needs two seeds" in verdict(one)
    assert read(comparison(one, paper={}))[0]["test accuracy (%)"] == "40.00"
    alike = [VANILLA, result("adapted", [[(0.5, 0.45), (0.6, 0.55), (0.7, 0.65)]])]
    assert "difference 5.00 points, t -, p -, detectable difference -" in verdict(alike)
    assert "the same for all 3 seeds" in verdict(alike)
    apart = [VANILLA, result("adapted", [[(0.5, 0.45)]], first_seed=7)]
    assert "no seed is common to both" in verdict(apart)
    assert verdict([OURS]) == ""


def test_of_a_grid_the_setting_with_the_best_mean_validation_is_the_row():
    grid = result(
        "adapted",
        [[(0.9, 0.1), (0.1, 0.1)], [(0.6, 0.3), (0.6, 0.4)], [(0.2, 0.9), (0.2, 0.9)]],
        rates=(0.1, 0.01, 0.001),
    )
    assert chosen(grid) == [2, 3]  # not the best member, nor the best on the test set
    single, row = read(comparison([VANILLA, grid], paper={}))
    assert (single["settings tried"], row["settings tried"]) == ("1", "3")
    assert (row["test accuracy (%)"], row["seeds"]) == ("35.00 ± 7.07", "2")
    listed = read(settings([grid]))
    assert [row["learning rate"] for row in listed] == ["0.1", "0.01", "0.001"]
    assert [row["chosen"] for row in listed] == ["", "yes", ""]
    assert "dropout rate" not in listed[0]  # the same everywhere
    assert "All settings" in tables([VANILLA, grid])
    assert "settings" not in tables([VANILLA, OURS])


def test_the_weight_of_a_guide_that_a_method_has_not_is_a_dash():
    def guided(method, *points):
        one = result(method, [[(0.5, 0.5)]] * len(points), rates=range(len(points)))
        for member, (alpha, beta) in zip(one["members"], points, strict=True):
            member["setting"] = {"alpha": alpha, "beta": beta}
        return one

    rows = read(settings([guided("none", (1, 1)), guided("mdg", (1, 1), (2, 1))]))
    assert [(row["alpha"], "beta" in row) for row in rows] == [
        *(("-", False), ("1", False), ("2", False))
    ]
    rows = read(settings([guided("pdg", (1, 1)), guided("ag", (1, 1), (2, 3))]))
    assert [(row["alpha"], row["beta"]) for row in rows] == [("-", "1"), ("1", "1"), ("2", "3")]


def test_every_seed_is_listed_and_one_that_a_method_lacks_is_a_dash():
    rows = read(seeds([VANILLA, result("adapted", [[(0.5, 0.25)]], first_seed=2)]))
    assert rows == [
        {"seed": "0", "Transformer": "50.00 / 40.00", "Adapted Transformer": "-"},
        {"seed": "1", "Transformer": "60.00 / 50.00", "Adapted Transformer": "-"},
        {"seed": "2", "Transformer": "70.00 / 60.00", "Adapted Transformer": "50.00 / 25.00"},
    ]


def test_results_of_two_criteria_are_refused():
    with pytest.raises(ValueError, match=r"of one criterion; got \['accuracy', 'auc'\]"):
        tables([VANILLA, {**OURS, "criterion": "auc"}])
