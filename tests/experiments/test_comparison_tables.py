"""Tables of artificial results, parsed cell by cell."""

import pytest

from distattn_jax.train.results import select_members
from experiments.papers.comparison_tables import (
    compare_best_two,
    comparison_table,
    experiment_tables,
    seeds_table,
    settings_table,
)
from experiments.papers.formatting import method_title


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


def test_a_row_holds_percentages_and_plain_losses():
    (row,) = read(comparison_table([OURS], published={}))
    assert row == {
        "method": "DA-Transformer",
        "parameters": "1,234,567",
        "validation accuracy (%)": "80.00 ± 0.00",
        "validation loss": "1.5000 ± 0.0000",
        "test accuracy (%)": "70.00 ± 20.00",
        "test loss": "0.3333 ± 0.0000",
        "seeds": "3",
    }


def test_methods_have_titles_and_the_order_of_the_package():
    text = experiment_tables([OURS, FLOOR, VANILLA])
    first = text.split("\n\n")[0]
    assert [row["method"] for row in read(first)] == [
        method_title(method) for method in ("no_positions", "vanilla", "distance_aware")
    ]


def test_published_numbers_follow_ours_where_they_exist():
    table = comparison_table(
        [VANILLA, OURS], published={"distance_aware": {"accuracy": "81.5 ± 0.2"}}
    )
    assert [row["published accuracy (%)"] for row in read(table)] == ["-", "81.5 ± 0.2"]
    names = list(read(table)[0])
    assert names.index("published accuracy (%)") == names.index("test accuracy (%)") + 1
    assert "published loss" not in names


def test_the_majority_label_is_the_first_row():
    known = {"validation": {"accuracy": 0.25}, "test": {"accuracy": 0.2625}}
    first, second = read(
        comparison_table([result("vanilla", [[(0.5, 0.4)]], baseline=known)], published={})
    )
    assert first["method"] == "majority label"
    assert first["validation accuracy (%)"] == "25.00"
    assert first["test accuracy (%)"] == "26.25"
    assert {first[name] for name in ("parameters", "test loss", "seeds")} == {"-"}
    assert second["method"] == "Transformer"
    assert "majority" not in comparison_table([VANILLA], published={})


def test_a_ranking_without_a_model_is_named_bm25():
    of_member = {split: {"mrr": 0.5} for split in ("validation", "test")}
    ranked = {
        **result("none", [], rates=()),
        "criterion": "mrr",
        "members": [{"seed": 0, "setting": {}, **of_member}],
        "baseline": {"validation": {"mrr": 0.25}, "test": {"mrr": 0.125}},
    }
    first, _ = read(comparison_table([ranked], published={}))
    assert first["method"] == "BM25"
    assert [cell for name, cell in first.items() if "MRR" in name] == ["25.00", "12.50"]


def test_the_best_two_methods_are_compared_by_seed():
    sentence = compare_best_two([FLOOR, VANILLA, OURS])
    assert "DA-Transformer, then Transformer; difference 20.00 points" in sentence
    assert "t = 3.46, p = 0.074 (paired over 3 seeds)" in sentence  # By hand: test_statistics.py.
    assert "detectable difference 32.64 points (two-sided α = 0.05, power 0.8)" in sentence
    assert "selected by these values" in sentence
    assert "selected by these values" not in compare_best_two(
        [VANILLA, OURS]
    )  # Two methods leave no selection.


def test_without_a_test_the_sentence_gives_the_reason():
    one = [result("vanilla", [[(0.5, 0.4)]]), result("adapted", [[(0.5, 0.75)]])]
    assert "difference 35.00 points, t -, p -, detectable difference -" in compare_best_two(one)
    assert "needs at least two seeds" in compare_best_two(one)
    assert read(comparison_table(one, published={}))[0]["test accuracy (%)"] == "40.00"
    alike = [VANILLA, result("adapted", [[(0.5, 0.45), (0.6, 0.55), (0.7, 0.65)]])]
    assert "difference 5.00 points, t -, p -, detectable difference -" in compare_best_two(alike)
    assert "the same for all 3 seeds" in compare_best_two(alike)
    apart = [VANILLA, result("adapted", [[(0.5, 0.45)]], first_seed=7)]
    assert "they share no seed" in compare_best_two(apart)
    assert compare_best_two([OURS]) == ""


def test_the_setting_with_the_best_mean_validation_represents_a_grid():
    grid = result(
        "adapted",
        [[(0.9, 0.1), (0.1, 0.1)], [(0.6, 0.3), (0.6, 0.4)], [(0.2, 0.9), (0.2, 0.9)]],
        rates=(0.1, 0.01, 0.001),
    )
    assert select_members(grid) == [2, 3]  # Neither the best member nor the best on the test set.
    single, row = read(comparison_table([VANILLA, grid], published={}))
    assert (single["settings tried"], row["settings tried"]) == ("1", "3")
    assert (row["test accuracy (%)"], row["seeds"]) == ("35.00 ± 7.07", "2")
    listed = read(settings_table([grid]))
    assert [row["learning rate"] for row in listed] == ["0.1", "0.01", "0.001"]
    assert [row["chosen"] for row in listed] == ["", "yes", ""]
    assert "dropout rate" not in listed[0]  # It is the same in all settings.
    assert "All settings" in experiment_tables([VANILLA, grid])
    assert "settings" not in experiment_tables([VANILLA, OURS])


def test_weights_that_a_guide_does_not_use_are_empty_cells():
    def guided(method, *points):
        one = result(method, [[(0.5, 0.5)]] * len(points), rates=range(len(points)))
        for member, (alpha, beta) in zip(one["members"], points, strict=True):
            member["setting"] = {"alpha": alpha, "beta": beta}
        return one

    rows = read(settings_table([guided("none", (1, 1)), guided("mdg", (1, 1), (2, 1))]))
    assert [(row["alpha"], "beta" in row) for row in rows] == [
        *(("-", False), ("1", False), ("2", False))
    ]
    rows = read(settings_table([guided("pdg", (1, 1)), guided("ag", (1, 1), (2, 3))]))
    assert [(row["alpha"], row["beta"]) for row in rows] == [("-", "1"), ("1", "1"), ("2", "3")]


def test_every_seed_is_listed_and_missing_ones_are_empty_cells():
    rows = read(seeds_table([VANILLA, result("adapted", [[(0.5, 0.25)]], first_seed=2)]))
    assert rows == [
        {"seed": "0", "Transformer": "50.00 / 40.00", "Adapted Transformer": "-"},
        {"seed": "1", "Transformer": "60.00 / 50.00", "Adapted Transformer": "-"},
        {"seed": "2", "Transformer": "70.00 / 60.00", "Adapted Transformer": "50.00 / 25.00"},
    ]


def test_all_results_need_the_same_criterion():
    with pytest.raises(ValueError, match=r"all with one criterion; got \['accuracy', 'auc'\]"):
        experiment_tables([VANILLA, {**OURS, "criterion": "auc"}])
