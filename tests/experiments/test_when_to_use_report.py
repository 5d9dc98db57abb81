"""Tables and figures of the report on where distance helps, from artificial results."""

import numpy as np
import pytest
from matplotlib import image

from experiments.papers.formatting import experiment_title
from experiments.papers.when_to_use import figures, report
from experiments.papers.when_to_use.language_models import NAMES, compare_trainings
from experiments.papers.when_to_use.report import REPORT
from experiments.papers.when_to_use.settings import CUTS, EXPERIMENTS, LENGTHS, OURS, TREEBANKS
from tests.experiments import stored
from tests.experiments.stored import find_row

SEEDS = range(3)
SETTINGS = [{"learning_rate": rate} for rate in (1e-3, 2e-3)]


def content(name, methods, *, start=0.5, gain=0.1):
    """Return the results of one experiment. Each method is better than the one before it.

    Differences between methods vary with the seed, so that t-tests are possible.
    """
    metric = "f1" if name == "wnut17" else "accuracy"
    scores = {
        method: [start + rank * gain * (1 + 0.1 * seed) + 0.01 * seed for seed in SEEDS]
        for rank, method in enumerate(methods)
    }
    more = {"task": "tagging", "baseline": {"test": {metric: 0.25}}}
    return stored.content(name, scores, (metric,), settings=SETTINGS, **more)


def heads():
    """Return measures of DA-Transformer with 1 layer of 2 heads, one of which has w < 0."""
    pruned = {"smallest absolute w": 0.0, "largest absolute w": 0.2, "most even attention": 0.01}
    orders = {
        name: [[0.9, 0.85 - cost * (1 + 0.1 * seed), 0.5] for seed in SEEDS]
        for name, cost in pruned.items()
    }
    return {
        "weight": [[[-0.5, 0.25]]] * len(SEEDS),
        "shape": [[[0.5, 1.5]]] * len(SEEDS),
        "pruning": {
            **{"criterion": "accuracy", "counts": [0, 1, 2], "heads": 2},
            "whole": [0.9] * len(SEEDS),
            "orders": {"random": [[0.9, 0.8, 0.5]] * len(SEEDS), **orders},
        },
    }


def language_models(growths, *, trained=256, start=100.0):
    """Return language models: method -> factor of the perplexity when the length doubles."""
    scores = {
        method: [0.5 - 0.1 * rank * (1 + 0.1 * seed) - 0.01 * seed for seed in SEEDS]
        for rank, method in enumerate(growths)
    }
    found = stored.content(NAMES[trained], scores, ("loss",))
    found["perplexity"] = {
        method: {
            "lengths": {
                str(length): {
                    # The differences between lengths vary with the seed, as t-tests need it.
                    "perplexity": [start * growth**i + seed * (1 + 0.1 * i) for seed in SEEDS],
                    "starts": [0, 64],
                    "by_position": [[90.0, start * growth**i]] * len(SEEDS),
                }
                for i, length in enumerate(LENGTHS)
            }
        }
        for method, growth in growths.items()
    }
    far = {
        str(length): {"heads": [[[0.1 * i, 0.02 * i]]] * len(SEEDS), "uniform": 0.15 * i}
        for i, length in enumerate(LENGTHS)
    }
    found["heads"] = {method: {"far": far} for method in growths}
    if OURS in growths:
        found["heads"][OURS] |= heads()
    return found


@pytest.fixture(scope="module")
def results():
    tagged = content("wnut17", ("vanilla", "adapted", "distance_aware"))
    tagged["heads"] = {"distance_aware": heads()}
    growths = {"vanilla": 1.5, "distance_aware": 1.0, "alibi": 0.9}
    return stored.make_results(tagged, language_models(growths))


@pytest.fixture(scope="module")
def summary(results):
    return REPORT.summarize(results)


@pytest.fixture(scope="module")
def details(results):
    return REPORT.detail(results, "")


def test_tables_show_the_setting_that_is_best_on_the_validation_set(summary):
    heading = "| method | UD English-EWT |"
    # Seeds 0, 1 and 2 of vanilla: 50, 51 and 52. The second setting is worse on validation.
    *others, named_entities = find_row(summary, "Transformer", heading)[1:]
    assert named_entities == "51.00 ± 1.00"
    assert set(others) == {"not run"}
    assert find_row(summary, "no model", heading)[-1] == "25.00"
    assert set(find_row(summary, "Transformer-XL", heading)[1:]) == {"not run"}


def test_the_best_mean_is_bold_and_differences_are_those_of_the_row(summary):
    # Seeds 0, 1 and 2 of DA-Transformer: 70, 73 and 76. Of the Transformer: 50, 51 and 52.
    assert find_row(summary, "DA-Transformer", "| method | UD")[-1] == "**73.00 ± 3.00**"
    heading = "| method | WNUT-17, minus DA-Transformer |"
    assert find_row(summary, "DA-Transformer", heading)[1:] == ["-"]
    assert find_row(summary, "Transformer", heading)[1].startswith("-22.00 (p = ")
    assert find_row(summary, "detectable difference", heading)[1].endswith(" points")


def test_findings_name_what_was_not_run(summary):
    tener = find_row(summary, "TENER against the Transformer, named entities (its own claim)")
    assert tener[1].startswith("1: Transformer (11.00 points")
    speech = find_row(summary, "TENER against the Transformer, parts of speech")
    assert speech[1:] == ["not run"] * 3
    assert find_row(summary, "DA-Transformer against the Transformer")[1] == "1: WNUT-17"
    assert "UD English-EWT (all methods)" in summary
    assert "WNUT-17 (no positions; Transformer-RPR; Transformer-XL)" in summary


def test_perplexities_are_sorted_by_the_longest_texts(summary):
    lines = summary[summary.index("All lengths predict") :].splitlines()[4:7]
    titles = [line.split("|")[1].strip() for line in lines]
    assert titles == ["ALiBi", "DA-Transformer", "Transformer"]
    assert lines[1].split("|")[2].strip() == "101.00 ± 1.00"
    # (100 * 1.5**5 + 1.5) / 101, and (100 * 0.9**5 + 1.5) / 101
    assert "Not worse: ALiBi 0.60; DA-Transformer 1.00. Worse: Transformer 7.53" in summary
    assert lines[0].split("|")[-2].strip() == "30"  # far attention: mean of 50 and 10 %


def test_far_attention_is_split_by_the_sign_of_w(details):
    assert find_row(details, "uniform attention")[1:] == ["15", "30", "45", "60", "75"]
    assert find_row(details, "DA-Transformer, heads with w < 0")[-1] == "50"
    assert find_row(details, "DA-Transformer, heads with w > 0")[-1] == "10"


def test_remedies_are_compared_with_distance_aware_attention():
    growths = {"distance_aware": 1.1, "distance_aware_score_bias": 1.2}
    table = report.remedies(stored.make_results(language_models(growths)))
    assert find_row(table, "DA-Transformer")[3:] == ["**162.55 ± 1.50**", "-", "30"]
    # 100 * (1.2**5 - 1.1**5) for every seed: no test is possible.
    assert find_row(table, "DA, score bias")[3:] == ["250.33 ± 1.50", "87.78", "30"]
    assert find_row(table, "DA, early add")[1:] == ["not run"] * 5


@pytest.fixture
def two_trainings():
    """Return language models of two trained lengths. The differences vary with the seed."""
    short = language_models({"vanilla": 1.5, "alibi": 0.9})
    long = language_models({"vanilla": 1.5, "t5_bias": 1.1}, trained=512)
    for length in LENGTHS:
        found = short["perplexity"]["vanilla"]["lengths"][str(length)]["perplexity"]
        long["perplexity"]["vanilla"]["lengths"][str(length)]["perplexity"] = [
            value - 10 - 0.1 * seed for seed, value in enumerate(found)
        ]
    return short, long


def test_trainings_are_compared_at_the_same_length_of_the_test_set(two_trainings):
    made = stored.make_results(*two_trainings)
    row = find_row(report.longer_training(made), "Transformer")
    assert row[1] == "**90.90 ± 0.90**"
    assert row[-1].startswith("-10.10 (p < 0.0001")
    table = report.trainings(made)
    assert find_row(table, "T5 bias")[1:] == ["not run"] * len(LENGTHS)
    assert all(cell.startswith("-10.10 ") for cell in find_row(table, "Transformer")[1:])
    for length in (512, 8192):
        row = find_row(
            report.more_outcomes(made), f"Training on 512 instead of 256 tokens, at {length}"
        )
        assert row[1:] == ["1: Transformer", "0", "0"]


def test_trainings_on_different_data_are_not_compared(two_trainings):
    short, long = two_trainings
    long["data"] = {**long["data"], "digests": {"raw files": "other"}}
    made = stored.make_results(short, long)
    assert not any(compare_trainings(made, 512).values())
    row = find_row(report.more_outcomes(made), "Training on 512 instead of 256 tokens, at 512")
    assert row[1:] == ["not run"] * 3


def test_a_language_model_without_perplexity_is_not_run(two_trainings):
    del two_trainings[1]["perplexity"]["t5_bias"]
    text = report.missing(stored.make_results(*two_trainings))
    missing = text.partition("trained on 512 tokens (")[2].partition(")")[0].split("; ")
    assert "T5 bias" in missing
    assert "Transformer" not in missing


def test_longer_training_has_a_line_of_advice_only_if_it_is_new(two_trainings):
    title = "a language model of texts of 512 tokens, as in training"
    # Texts of 256 tokens: vanilla and ALiBi are equal. Texts of 512 tokens: T5 is better.
    table = report.advice(stored.make_results(*two_trainings))
    assert find_row(table, title)[1].startswith("**T5 bias**")
    short, long = two_trainings
    del long["perplexity"]["t5_bias"]
    long["perplexity"]["alibi"] = short["perplexity"]["alibi"]
    long["runs"]["alibi"] = short["runs"]["alibi"]
    assert title not in report.advice(stored.make_results(*two_trainings))


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
    gains = {
        "no_positions": (0, 0, 0, 0),
        "vanilla": (0.02, 0.02, 0.02, 0.02),
        "distance_aware": (0.01, 0.01, 0.01, 0.05),
    }
    methods, swaps, correlation = order(gains, "methods", "swaps", "correlation")
    assert methods == "3 methods at 64, 128, 256, 512 words"
    expected = "Transformer is better than DA-Transformer at 64, 128, 256 words and worse at 512"
    assert swaps == expected
    assert correlation == "0.50"  # ranks 1, 3, 2 and 1, 2, 3


def test_differences_may_change_without_a_change_of_the_order():
    gains = {"no_positions": (0,) * 4, "vanilla": (0.01, 0.02, 0.03, 0.04)}
    p, swaps = order(gains, "p", "swaps")
    assert p.startswith("p < ")
    assert swaps == "none"


def test_the_order_is_tested_on_methods_of_all_lengths_that_were_run():
    gains = {
        "no_positions": (0, None, None, 0),
        "vanilla": (0.02, None, None, 0.02),
        "adapted": (0.01, None, None, None),
    }
    methods, p, swaps = order(gains, "methods", "p", "swaps")
    assert methods == "2 methods at 64, 512 words"
    assert float(p.removeprefix("p = ")) > 0.05  # Equal differences: no change.
    assert swaps == "none"
    assert order({"vanilla": (0, None, None, 0)}, "p") == ["not run"]


def test_reviews_are_compared_with_no_positions_and_sinusoids():
    gains = {"no_positions": (0,) * 4, "vanilla": (0.02, 0.02, 0.02, None)}
    made = stored.make_results(*make_reviews(gains))
    scores = find_row(report.scores(made, "reviews"), "Transformer")
    assert scores[-1] == "not run"
    assert scores[1].startswith("**82.")
    row = find_row(report.differences(made, "reviews", "no_positions", "vanilla"), "Transformer")
    assert row[1].startswith(("1.", "2."))
    assert row[4:] == ["not run", "-", "-", "-", "-"]


def test_pruning_is_compared_with_a_random_order(details):
    rows = [line for line in details.splitlines() if "| largest absolute w |" in line]
    cells = [cell.strip() for cell in rows[0].strip("|").split("|")]
    assert cells[2:6] == ["90.00", "90.00", "63.00", "50.00"]
    assert cells[6].startswith("-17.00 (p = ")


def test_a_layer_may_have_only_negative_weights():
    tagged = content("wnut17", ("distance_aware",))
    tagged["heads"] = {"distance_aware": heads() | {"weight": [[[-0.5, -0.25]]] * 3}}
    row = find_row(report.layers(stored.make_results(tagged)), "WNUT-17")
    assert row[1:] == ["1", "0", "-0.375", "-", "1.00"]


@pytest.mark.parametrize(
    ("methods", "expected"),
    [
        (("vanilla",), ["not run", "not run"]),
        (
            ("vanilla", "adapted"),
            [
                "**Adapted Transformer**",
                "WNUT-17, F1 (%), 2 methods, 3 seeds: Adapted Transformer 62.00 ± 2.00; "
                "Transformer 51.00 ± 1.00",
            ],
        ),
    ],
)
def test_advice_needs_two_methods(methods, expected):
    table = report.advice(stored.make_results(content("wnut17", methods)))
    assert find_row(table, "to find named entities")[1:] == expected


def test_accuracies_of_parts_of_speech_are_averaged_over_languages():
    orders = dict.fromkeys(TREEBANKS, ("vanilla", "adapted")) | {"ud_tr": ("adapted", "vanilla")}
    contents = [content(name, methods) for name, methods in orders.items()]
    # The first method has 0.50, 0.51 and 0.52 for seeds 0, 1 and 2, the second 0.60, 0.62 and 0.64.
    averages = report.average_languages(stored.make_results(*contents))
    share = 1 / len(TREEBANKS)
    assert averages.vanilla[1] == pytest.approx(0.51 * (1 - share) + 0.62 * share)
    assert averages.adapted[2] == pytest.approx(0.64 * (1 - share) + 0.52 * share)
    assert report.average_languages(stored.make_results(*contents[:-1])).empty


def test_details_have_commands_settings_positions_and_every_seed(details):
    assert "python -m experiments train tagging --name wnut17" in details
    # F1 of seeds 0, 1 and 2 of the third method is 0.70, 0.73 and 0.76 in both splits.
    row = find_row(details, "DA-Transformer", "wnut17:")
    assert row[1:] == ["0.001", *["73.00 ± 3.00"] * 2, "3", "yes"]
    assert "| DA-Transformer | 90.0 | 100.0 |" in details


def test_the_figure_has_a_panel_for_each_question_that_was_run(two_trainings, results, tmp_path):
    REPORT.draw_figures(results, tmp_path)
    (path,) = (tmp_path / "figures").iterdir()
    assert image.imread(path).shape[1] > 700
    assert len(figures.draw_lengths(stored.make_results(*two_trainings)).axes) == 3
    reviews = make_reviews({"no_positions": (0,) * 4, "adapted": (0.1,) * 4})
    *_, last = figures.draw_lengths(stored.make_results(*two_trainings, *reviews)).axes
    assert [text.get_text() for text in last.texts][1:] == ["no positions", "Adapted Transformer"]


def test_the_effect_of_longer_training_is_a_change_in_percent(two_trainings):
    # Perplexity at every length: 101 by training on 256 tokens, 90.9 by training on 512 tokens.
    effects = figures.find_training_effects(stored.make_results(*two_trainings))
    assert list(effects) == ["vanilla"]  # the other methods were trained on one length only
    assert effects["vanilla"][0] == pytest.approx(-10)
    assert len(effects["vanilla"]) == len(LENGTHS)


def test_the_figure_shows_the_best_of_each_family():
    ranked = ["kerple_log", "alibi", "distance_aware_clip", "distance_aware", "vanilla", "adapted"]
    chosen = figures.choose_methods(ranked)
    assert list(chosen) == [
        *("vanilla", "adapted", "distance_aware", "distance_aware_clip", "kerple_log")
    ]
    assert len({(line.colour, line.style) for line in chosen.values()}) == len(chosen)


def test_every_language_model_has_a_family():
    families = [method for methods, _ in figures.FAMILIES for method in methods]
    for name in NAMES.values():
        assert set(EXPERIMENTS[name]) <= set(families)
    assert len(set(families)) == len(families)


def test_a_report_without_results_says_not_run():
    empty = stored.make_results()
    text = REPORT.summarize(empty)
    assert all(f"{experiment_title(name)} (all methods)" in text for name in EXPERIMENTS)
    assert text.count("\n\nNot run.") == 6  # every table after the findings
    assert "### Data\n\nNot run.\n" in REPORT.detail(empty, "")
