"""Tables and figures of the report on where distance helps, from artificial results."""

import numpy as np
import pytest

from experiments.papers.formatting import experiment_title
from experiments.papers.when_to_use import (
    c_files,
    figures,
    learned_sides,
    quality_cost,
    report,
    two_sided,
)
from experiments.papers.when_to_use.language_models import NAMES, compare_trainings
from experiments.papers.when_to_use.report import REPORT
from experiments.papers.when_to_use.settings import (
    CUTS,
    EXPERIMENTS,
    LARGER,
    LARGER_LENGTHS,
    LENGTHS,
    LONG_TEXTS,
    LONG_TEXTS_LENGTH,
    TAGGING,
    TREEBANKS,
)
from tests.experiments import stored
from tests.experiments.stored import find_row

SEEDS = range(3)
LONG = "imdb_language_model_512"


@pytest.fixture
def models():
    """Return a copy of the stored results of language models."""
    return stored.read("imdb_language_model*")


def test_what_was_not_run_is_marked_and_named():
    content = stored.read("wnut17")["wnut17"]
    for method in ("rotary", "two_sided"):
        del content["runs"][method]
    made = stored.make_results(content)
    summary = REPORT.summarize(made)
    scores = find_row(summary, "Transformer", "| method | UD English-EWT |")
    assert scores[1:] == [*["not run"] * 5, "15.72 ± 1.93", "not run", "not run"]
    details = REPORT.detail(made)
    heading = "| method | WNUT-17, minus DA-Transformer |"
    assert find_row(details, "Transformer", heading)[1:] == ["-0.58 (p = 0.62)"]
    assert find_row(details, "DA-Transformer", heading)[1:] == ["-"]
    speech = find_row(summary, "TENER against the Transformer, parts of speech")
    assert speech[1:] == ["not run"] * 3
    not_run = summary.partition("**Not run**")[2]
    assert not_run.startswith(": all methods (in UD English-EWT; ")
    assert "; RoPE; Two-sided (in WNUT-17)." in not_run


def test_the_best_forms_alone_are_shown_beside_the_rivals(models):
    made = stored.make_results(*models.values())
    table, kept = report.lengths(made), report.growth(made, "kept")
    assert "Two-sided, buckets" in table
    assert "Two-sided, buckets" in kept
    assert "tied sides" not in table + kept


def test_two_methods_are_compared_by_the_mean_of_several_data_sets():
    scores = {"rotary": [0.9, 0.8, 0.85], "vanilla": [0.8, 0.72, 0.74]}
    made = stored.make_results(
        stored.content("ud_en", scores), stored.content("ud_fr", {**scores, "vanilla": [0.9] * 3})
    )
    assert report.outcome(made, "ud_en", "rotary", "vanilla").startswith("better, 9.67 points")
    both = report.outcome(made, "ud_en+ud_fr", "rotary", "vanilla")
    assert ", 2.33 points, p = " in both  # (9.67 - 5) / 2
    assert report.outcome(made, "ud_en+ud_fr", "rotary", "adapted") == "not run"


def test_trainings_are_compared_on_the_same_data_alone(models):
    found = compare_trainings(stored.make_results(*models.values()), 512)
    assert found["vanilla"].kind == "better"
    assert "kerple_power" not in found
    models[LONG]["data"]["vocabulary"] = 7
    made = stored.make_results(*models.values())
    assert not any(compare_trainings(made, 512).values())
    assert not figures.find_training_effects(made)
    row = find_row(report.more_outcomes(made), "Training on 512 instead of 256 tokens, at 512")
    assert row[1:] == ["not run"] * 3


def test_a_language_model_without_perplexity_is_not_run(models):
    del models[LONG]["perplexity"]["t5_bias"]
    text = report.missing(stored.make_results(*models.values()))
    assert "; T5 bias (in language model of IMDB, trained on 512 tokens)" in text


def test_perplexities_are_compared_with_those_of_distance_aware_attention(models):
    lengths = models["imdb_language_model"]["perplexity"]
    for method, growth in (("distance_aware", 1.1), ("distance_aware_score_bias", 1.2)):
        for i, length in enumerate(LENGTHS):
            values = [100 * growth**i + seed * (1 + 0.1 * i) for seed in range(5)]
            lengths[method]["lengths"][str(length)]["perplexity"] = values
    made = stored.make_results(*models.values())
    # 100 * (1.2**5 - 1.1**5) for every seed: no test is possible.
    row = find_row(report.remedies(made), "DA, score bias")
    assert row[3:5] == ["251.83 ± 2.37", "87.78"]
    assert "DA, score bias 2.47" in report.growth(made, "worse")  # 251.83 / 102
    assert find_row(report.lengths(made), "DA-Transformer")[1] == "102.00 ± 1.58"


def test_heads_are_split_by_the_sign_of_w(models):
    heads = models["imdb_language_model"]["heads"]["distance_aware"]
    heads["weight"], heads["shape"] = [[[-0.5, 0.25]]] * 5, [[[0.5, 1.5]]] * 5
    for i, length in enumerate(LENGTHS):
        heads["far"][str(length)] = {"heads": [[[0.1 * i, 0.02 * i]]] * 5, "uniform": 0.15 * i}
    made = stored.make_results(*models.values())
    table = report.far(made, "256")
    assert find_row(table, "DA-Transformer")[-1] == "30"
    assert find_row(table, "DA-Transformer, heads with w < 0")[-1] == "50"
    assert find_row(table, "DA-Transformer, heads with w > 0")[-1] == "10"
    row = find_row(report.layers(made), "language model of IMDB")
    assert row[1:] == ["1", "50", "-0.500", "0.250", "1.00"]
    heads["weight"] = [[[-0.5, -0.25]]] * 5
    row = find_row(report.layers(made), "language model of IMDB")
    assert row[1:5] == ["1", "0", "-0.375", "-"]


def test_pruning_is_compared_with_a_random_order(models):
    orders = {
        "random": [[0.9, 0.8, 0.5]] * 5,
        "largest absolute w": [[0.9, 0.65 - 0.02 * seed, 0.5] for seed in range(5)],
    }
    pruning = models["imdb_language_model"]["heads"]["distance_aware"]["pruning"]
    pruning |= {"criterion": "accuracy", "orders": orders, "whole": [0.9] * 5}
    table = report.pruning(stored.make_results(*models.values()))
    (row,) = [line for line in table.splitlines() if "| largest absolute w |" in line][:1]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[2:6] == ["90.00", "90.00", "61.00", "50.00"]
    assert cells[6].startswith("-19.00 (p = ")


def make_reviews(gains, *, noise=0.001):
    """Return film reviews: method -> accuracy at each cut, above 0.8, with noise of each seed."""
    rng = np.random.default_rng(0)
    contents = []
    for i, cut in enumerate(CUTS):
        scores = {
            method: 0.8 + by_cut[i] + rng.normal(0, noise, len(SEEDS))
            for method, by_cut in gains.items()
            if by_cut[i] is not None
        }
        if scores:
            contents.append(stored.content(f"imdb_{cut}", scores))
    return contents


def order(gains, *names):
    made = stored.make_results(*make_reviews(gains))
    return [report.order(made, name) for name in names]


def test_methods_that_swap_places_change_the_order():
    gains = {"no_positions": (0,) * 4, "vanilla": (0.02,) * 4}
    gains["distance_aware"] = (0.01, 0.01, 0.01, 0.05)
    assert order(gains, "methods", "swaps", "correlation") == [
        "3 methods at 64, 128, 256, 512 words",
        "Transformer is better than DA-Transformer at 64, 128, 256 words and worse at 512",
        "0.50",  # ranks 1, 3, 2 and 1, 2, 3
    ]


def test_differences_may_change_without_a_change_of_the_order():
    gains = {"no_positions": (0,) * 4, "vanilla": (0.01, 0.02, 0.03, 0.04)}
    p, swaps = order(gains, "p", "swaps")
    assert p.startswith("p < ")
    assert swaps == "none"


def test_the_order_is_tested_on_methods_of_all_lengths_that_were_run():
    gains = {"no_positions": (0, None, None, 0), "vanilla": (0.02, None, None, 0.02)}
    gains["adapted"] = (0.01, None, None, None)
    methods, p, swaps = order(gains, "methods", "p", "swaps")
    assert (methods, swaps) == ("2 methods at 64, 512 words", "none")
    assert float(p.removeprefix("p = ")) > 0.05  # Equal differences: no change.
    assert order({"vanilla": (0, None, None, 0)}, "p") == ["not run"]


def test_advice_needs_two_methods():
    scores = {"vanilla": [0.50, 0.51, 0.52], "adapted": [0.60, 0.62, 0.64]}
    made = stored.make_results(stored.content("wnut17", scores, ("f1",)))
    assert report.recommend(made, "wnut17") == "**Adapted Transformer**"
    assert report.reason(made, "wnut17") == (
        "F1 (%), 2 methods, 3 seeds: Adapted Transformer 62.00 ± 2.00; Transformer 51.00 ± 1.00"
    )
    del scores["adapted"]
    made = stored.make_results(stored.content("wnut17", scores, ("f1",)))
    assert {report.recommend(made, "wnut17"), report.reason(made, "wnut17")} == {"not run"}


def test_accuracies_of_parts_of_speech_are_averaged_over_languages():
    low, high = [0.50, 0.51, 0.52], [0.60, 0.62, 0.64]
    usual, turkish = {"vanilla": low, "adapted": high}, {"vanilla": high, "adapted": low}
    scores = dict.fromkeys(TREEBANKS, usual) | {"ud_tr": turkish}
    contents = [stored.content(name, of_name) for name, of_name in scores.items()]
    _, averages = report.task_scores(stored.make_results(*contents), "+".join(TREEBANKS))
    share = 1 / len(TREEBANKS)
    assert averages.vanilla[1] == pytest.approx(0.51 * (1 - share) + 0.62 * share)
    assert averages.adapted[2] == pytest.approx(0.64 * (1 - share) + 0.52 * share)
    _, averages = report.task_scores(stored.make_results(*contents[:-1]), "+".join(TREEBANKS))
    assert averages.empty


def test_the_figure_has_a_panel_for_each_question_that_was_run(models):
    def draw(*contents):
        return figures.draw_lengths(stored.make_results(*contents)).axes

    assert len(draw(models["imdb_language_model"])) == 2
    reviews = make_reviews({"no_positions": (0,) * 4, "adapted": (0.1,) * 4})
    *panels, last = draw(*models.values(), *reviews)
    assert len(panels) == 3
    assert [text.get_text() for text in last.texts][1:] == ["no positions", "Adapted Transformer"]


def test_the_effect_of_longer_training_is_a_change_in_percent(models):
    short, long = (one["perplexity"]["vanilla"]["lengths"] for one in models.values())
    for length in LENGTHS:
        long[str(length)]["perplexity"] = [0.9 * x for x in short[str(length)]["perplexity"]]
    effects = figures.find_training_effects(stored.make_results(*models.values()))
    assert effects["vanilla"] == pytest.approx([-10] * len(LENGTHS))
    assert "kerple_power" not in effects  # It was trained on one length only.


def test_the_figure_shows_the_best_of_each_family():
    ranked = ["kerple_log", "alibi", "distance_aware_clip", "distance_aware", "vanilla", "adapted"]
    chosen = figures.choose_methods(ranked)
    assert [*chosen] == ["vanilla", "adapted", *ranked[3:1:-1], "kerple_log"]
    assert len({(line.colour, line.style) for line in chosen.values()}) == len(chosen)


def test_every_language_model_has_a_family():
    families = [method for methods, _ in figures.FAMILIES for method in methods]
    for name in NAMES.values():
        assert set(EXPERIMENTS[name]) <= set(families)
    assert len(set(families)) == len(families)


def make_perplexities(name, losses, lengths):
    """Return language models: method -> perplexity of each seed, plus 1 at each longer length."""
    made = stored.content(name, losses, ("perplexity",))
    made["perplexity"] = {
        method: {
            "lengths": {
                str(length): {"perplexity": [value + i for value in values]}
                for i, length in enumerate(lengths)
            }
        }
        for method, values in losses.items()
    }
    return made


def test_forms_of_two_sided_attention_are_ranked_on_the_validation_sets():
    tagging = {"two_sided": [0.9, 0.91], "two_sided_tied": [0.8, 0.81], "rotary": [0.95, 0.96]}
    tagging["two_sided_no_relu"] = [0.85, 0.86]
    losses = {"two_sided": [90.0, 91.0], "two_sided_tied": [89.0, 90.5], "kerple_power": [1.0, 2.0]}
    models = make_perplexities("imdb_language_model", losses, LENGTHS)
    made = stored.make_results(stored.content("ud_el", tagging), models)
    ranks = two_sided.rank_forms(made)
    assert dict(ranks) == {"two_sided": 1.5, "two_sided_tied": 2.0}  # (1 + 2) / 2, (3 + 1) / 2
    row = find_row(two_sided.ablation(made), "Two-sided, tied sides")
    assert row[1:3] == ["2.0", "80.50 ± 0.71"]
    assert row[3] == "-10.00"  # equal for both seeds: no test is possible
    assert row[4:6] == ["**89.75 ± 1.06**", "-0.75 (p = 0.2)"]
    assert find_row(two_sided.ablation(made), "Two-sided, no ReLU")[1] == "not run"


def test_the_larger_language_model_has_perplexities_and_times():
    models = make_perplexities(
        LARGER, {"rotary": [3.0], "two_sided_buckets": [2.5]}, LARGER_LENGTHS
    )
    row = find_row(c_files.larger(stored.make_results(models)), "Two-sided, buckets")
    assert row[1:] == [*(f"**{2.5 + i:.2f}**" for i in range(5)), "500"]


def test_language_models_of_long_texts_have_one_row_for_each_method_and_window():
    contents = []
    for name, losses in (
        (LONG_TEXTS, {"rotary": [3.0]}),
        (f"{LONG_TEXTS}_window", {"rotary": [4]}),
    ):
        made = make_perplexities(name, losses, [LONG_TEXTS_LENGTH])
        made["runs"]["rotary"]["config"] = {"model.window": 1024 * name.endswith("_window")}
        (found,) = made["perplexity"]["rotary"]["lengths"].values()
        found |= {"starts": [0, 1024], "by_position": [[6.0, losses["rotary"][0] / 2]]}
        contents.append(made)
    table = c_files.long_texts(stored.make_results(*contents))
    assert find_row(table, "RoPE")[1:] == ["500", "3.00", "6.00", "1.50"]
    assert find_row(table, "RoPE, window of 1024")[1:] == ["500", "4.00", "6.00", "2.00"]


def test_the_learned_functions_of_both_sides_are_those_of_the_stored_parameters():
    """Layer 2 has w = -3 before the query, and a constant of 0.5 after it."""
    numbers = {"weight": -3.0, "shape": 0.0, "bias.0": 0.5, "bias.1.0": 0.1, "bias.1.1": 1.0}
    leaves = {
        f"parameters.{side}.{name}": np.full((2, 2, 4), number)  # seeds, layers, heads
        for side in ("before", "after")
        for name, number in numbers.items()
    }
    leaves["parameters.before.weight"][:, 0] = 0.0
    leaves["parameters.before.bias.0"][:] = 0.0
    made = stored.content("ud_el", {"two_sided": [0.9, 0.8]})
    made["heads"] = {"two_sided": {"two_sided": leaves}}
    (learned,) = learned_sides.list_learned(stored.make_results(made))
    (factor, bias), (second_factor, _) = learned.layers
    assert factor.y.shape == (8, 2 * learned_sides.REACH + 1)
    before, after = (factor.x == -20), (factor.x == 20)
    np.testing.assert_allclose(factor.y[:, before], 1)  # (1 + e⁰) σ(0)
    np.testing.assert_allclose(second_factor.y[:, before], 0, atol=1e-6)
    np.testing.assert_allclose(bias.y[:, after] - bias.y[:, before], 0.5, atol=1e-6)
    axes = learned_sides.draw_learned([learned]).axes
    assert [one.get_ylabel() for one in axes] == ["factor f(w|i − j|)", "bias g(|i − j|)"]


def test_quality_and_cost_have_points_for_methods_with_scores_and_times(monkeypatch):
    times = {"vanilla": 1.0, "adapted": 1.5, "alibi": 1.2, "transformer_xl": None}
    lines = [
        {"shape": shape, "case": case, "both_ratio": time and time * factor}
        for shape, factor in (("long", 1), ("bert", 7))
        for case, time in times.items()
    ]
    monkeypatch.setattr(quality_cost, "read_results", lambda name: {"lines": lines})
    scores = {"vanilla": [0.8], "adapted": [0.9], "rotary": [0.85], "transformer_xl": [0.7]}
    contents = [stored.content(name, scores) for name in TAGGING]
    del contents[0]["runs"]["rotary"]
    losses = {"rotary": [90.0], "alibi": [95.0], "distance_aware": [99.0]}
    models = make_perplexities("imdb_language_model", losses, LENGTHS)
    panels = quality_cost.list_panels(stored.make_results(*contents, models))
    tagging, short, _ = panels
    assert tagging.scores == pytest.approx({"vanilla": 0.8, "adapted": 0.9})
    assert tagging.costs == {"vanilla": 1.0, "adapted": 1.5}
    assert short.scores == {"rotary": 90.0, "alibi": 95.0}
    assert short.costs == {"rotary": 1.0, "alibi": 1.2}
    axes = quality_cost.draw_quality_and_cost(panels).axes
    assert [text.get_text() for text in axes[1].texts] == ["ALiBi", "RoPE"]
    assert [one.yaxis_inverted() for one in axes] == [False, True, True]


def test_a_report_without_results_says_not_run():
    empty = stored.make_results()
    text = REPORT.summarize(empty)
    assert f": all methods (in {'; '.join(map(experiment_title, EXPERIMENTS))}).\n" in text
    assert text.count("\n\nNot run.") == 5  # every table after the findings
    assert "### Data\n\nNot run.\n" in REPORT.detail(empty, "")
