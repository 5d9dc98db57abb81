"""Tables and figures of the report on where distance helps, from artificial results."""

import numpy as np
import pytest
from matplotlib import image

from experiments.papers import stored_results
from experiments.papers.line_labels import spread_labels
from experiments.papers.when_to_use import (
    advice,
    figures,
    language_models,
    reviews,
    tables,
    tagging,
)
from experiments.papers.when_to_use.report import REPORT
from experiments.papers.when_to_use.settings import CUTS, EXPERIMENTS, LENGTHS, TREEBANKS
from tests.experiments import when_to_use_results


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    tagged = when_to_use_results.content("wnut17", ("vanilla", "adapted", "distance_aware"))
    tagged["heads"] = {"distance_aware": when_to_use_results.heads()}
    growths = {"vanilla": 1.5, "distance_aware": 1.0, "alibi": 0.9}
    for content in (tagged, when_to_use_results.language_models(growths)):
        stored_results.write_results(stored_results.round_numbers(content), folder)
    (folder / "notes_when_to_use.md").write_text("Notes.\n")
    return folder


@pytest.fixture(scope="module")
def summary(folder):
    return REPORT.summarize(folder)


def find_row(text, title):
    """Return the cells of the first row with this title."""
    line = next(line for line in text.splitlines() if line.startswith(f"| {title} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_tables_show_the_setting_that_is_best_on_the_validation_set(summary):
    # Seeds 0, 1 and 2 of vanilla: 50, 51 and 52. The second setting is worse on validation.
    *others, named_entities = find_row(summary, "Transformer")[1:]
    assert named_entities == "51.00 ± 1.00"
    assert set(others) == {"not run"}
    assert find_row(summary, "no model")[-1] == "25.00"
    assert set(find_row(summary, "Transformer-XL")[1:]) == {"not run"}


def test_the_best_mean_is_bold_and_differences_are_those_of_the_row(summary):
    # Seeds 0, 1 and 2 of DA-Transformer: 70, 73 and 76. Of the Transformer: 50, 51 and 52.
    assert find_row(summary, "DA-Transformer")[-1] == "**73.00 ± 3.00**"
    differences = summary[summary.index("| method | WNUT-17, minus DA-Transformer |") :]
    assert find_row(differences, "DA-Transformer")[1:] == ["-"]
    assert find_row(differences, "Transformer")[1].startswith("-22.00 (p = ")
    assert find_row(differences, "detectable difference")[1].endswith(" points")


def test_findings_name_what_was_not_run(summary):
    assert "its own claim): better, 11.00 points" in summary
    assert "on parts of speech: not run." in summary
    assert "**Transformer against no positions**: not run" in summary
    assert "**DA-Transformer on film reviews**: not run" in summary
    assert "parts of speech, UD English-EWT (all methods)" in summary
    assert "WNUT-17 (no positions; Transformer-RPR; Transformer-XL)" in summary


def test_perplexities_are_sorted_by_the_longest_texts(summary):
    lines = summary[summary.index("All lengths predict") :].splitlines()[4:7]
    assert [line.split("|")[1].strip() for line in lines] == [
        "ALiBi",
        "DA-Transformer",
        "Transformer",
    ]
    assert lines[1].split("|")[2].strip() == "101.00 ± 1.00"
    # (100 * 1.5**5 + 1.5) / 101, and (100 * 0.9**5 + 1.5) / 101
    assert "Not worse: ALiBi 0.60; DA-Transformer 1.00. Worse: Transformer 7.53" in summary
    assert lines[0].split("|")[-2].strip() == "30"  # far attention: mean of 50 and 10 %


def test_far_attention_is_split_by_the_sign_of_w(folder):
    details = REPORT.detail(folder)
    assert find_row(details, "uniform attention")[1:] == ["15", "30", "45", "60", "75"]
    assert find_row(details, "DA-Transformer, heads with w < 0")[-1] == "50"
    assert find_row(details, "DA-Transformer, heads with w > 0")[-1] == "10"


def test_remedies_are_compared_with_distance_aware_attention():
    growths = {"distance_aware": 1.1, "distance_aware_score_bias": 1.2}
    contents = dict.fromkeys(EXPERIMENTS) | {
        "imdb_language_model": when_to_use_results.language_models(growths)
    }
    table = language_models.remedies_table(contents)
    assert find_row(table, "DA-Transformer")[3:] == ["**162.55 ± 1.50**", "-", "30"]
    # 100 * (1.2**5 - 1.1**5) for every seed: no test is possible.
    assert find_row(table, "DA, score bias")[3:] == ["250.33 ± 1.50", "87.78", "30"]
    assert find_row(table, "DA, early add")[1:] == ["not run"] * 5


@pytest.fixture
def two_trainings():
    """Return language models of two trained lengths. The differences vary with the seed."""
    short = when_to_use_results.language_models({"vanilla": 1.5, "alibi": 0.9})
    long = when_to_use_results.language_models({"vanilla": 1.5, "t5_bias": 1.1}, trained=512)
    for length in LENGTHS:
        found = short["perplexity"]["vanilla"]["lengths"][str(length)]["perplexity"]
        long["perplexity"]["vanilla"]["lengths"][str(length)]["perplexity"] = [
            value - 10 - 0.1 * seed for seed, value in enumerate(found)
        ]
    return dict.fromkeys(EXPERIMENTS) | {
        "imdb_language_model": short,
        "imdb_language_model_512": long,
    }


def test_trainings_are_compared_at_the_same_length_of_the_test_set(two_trainings):
    row = find_row(language_models.longer_training_table(two_trainings), "Transformer")
    assert row[1] == "**90.90 ± 0.90**"
    assert row[-1].startswith("-10.10 (p < 0.0001")
    table = language_models.trainings_table(two_trainings)
    assert find_row(table, "T5 bias")[1:] == ["not run"] * len(LENGTHS)
    assert all(cell.startswith("-10.10 ") for cell in find_row(table, "Transformer")[1:])
    summary = REPORT.write_summary(two_trainings, "", "")
    assert "At 512 tokens: better for Transformer. At 8192 tokens: better for" in summary


def test_trainings_on_different_data_are_not_compared(two_trainings):
    two_trainings["imdb_language_model_512"]["data"]["digests"] = {"raw files": "other"}
    assert not any(language_models.compare_trainings(two_trainings, 512).values())
    summary = REPORT.write_summary(two_trainings, "", "")
    assert "**Training on 512 instead of 256 tokens**: not run on the same data." in summary


def test_a_language_model_without_perplexity_is_not_run(two_trainings):
    del two_trainings["imdb_language_model_512"]["perplexity"]["t5_bias"]
    summary = REPORT.write_summary(two_trainings, "", "")
    missing = summary.partition("trained on 512 tokens (")[2].partition(")")[0].split("; ")
    assert "T5 bias" in missing
    assert "Transformer" not in missing


def test_longer_training_has_a_line_of_advice_only_if_it_is_new(two_trainings):
    others = dict.fromkeys(("ag", "sst", "multi30k_small"))
    title = "a language model of texts of 512 tokens, as in training"
    # Texts of 256 tokens: vanilla and ALiBi are equal. Texts of 512 tokens: T5 is better.
    table = advice.advice_table(two_trainings, others)
    assert find_row(table, title)[1].startswith("**T5 bias**")
    del two_trainings["imdb_language_model_512"]["perplexity"]["t5_bias"]
    alibi = two_trainings["imdb_language_model"]["perplexity"]["alibi"]
    two_trainings["imdb_language_model_512"]["perplexity"]["alibi"] = alibi
    runs = two_trainings["imdb_language_model"]["runs"]
    two_trainings["imdb_language_model_512"]["runs"]["alibi"] = runs["alibi"]
    assert title not in advice.advice_table(two_trainings, others)


def make_reviews(gains, *, noise=0.001):
    """Return contents with film reviews.

    Args:
      gains: Dict from the method to its accuracy at each cut, above 0.8.
      noise: Size of the differences between seeds, which are other ones for every result.
    """
    rng = np.random.default_rng(0)
    contents = dict.fromkeys(EXPERIMENTS)
    for i, cut in enumerate(CUTS):
        accuracies = {
            method: 0.8 + by_cut[i] + rng.normal(0, noise, len(when_to_use_results.SEEDS))
            for method, by_cut in gains.items()
            if by_cut[i] is not None
        }
        if accuracies:
            contents[f"imdb_{cut}"] = when_to_use_results.reviews(cut, accuracies)
    return contents


def test_methods_that_swap_places_change_the_order():
    contents = make_reviews(
        {
            "no_positions": (0, 0, 0, 0),
            "vanilla": (0.02, 0.02, 0.02, 0.02),
            "distance_aware": (0.01, 0.01, 0.01, 0.05),
        }
    )
    answer = reviews.describe_order(contents)
    assert answer.startswith("3 methods at 64, 128, 256 and 512 words: yes, for 1 of 3 pairs")
    assert "Transformer is better than DA-Transformer at 64, 128 and 256 words" in answer
    assert "and worse at 512 words (F test of" in answer
    assert "is 0.50 (1: same order" in answer  # ranks 1, 3, 2 and 1, 2, 3


def test_differences_may_change_without_a_change_of_the_order():
    contents = make_reviews({"no_positions": (0,) * 4, "vanilla": (0.01, 0.02, 0.03, 0.04)})
    answer = reviews.describe_order(contents)
    assert "the sizes of the differences change. No pair" in answer
    assert "rank correlation" not in answer  # Two methods have only two orders.


def test_equal_differences_do_not_change_the_order():
    contents = make_reviews({"no_positions": (0,) * 4, "vanilla": (0.02,) * 4})
    assert "no change was found" in reviews.describe_order(contents)


def test_the_order_is_tested_on_methods_of_all_lengths_that_were_run():
    contents = make_reviews(
        {
            "no_positions": (0, None, None, 0),
            "vanilla": (0.02, None, None, 0.02),
            "adapted": (0.01, None, None, None),
        }
    )
    assert reviews.describe_order(contents).startswith("2 methods at 64 and 512 words: no change")
    contents["imdb_512"] = None
    assert reviews.describe_order(contents).startswith("not run")


def test_reviews_are_compared_with_no_positions_and_sinusoids():
    contents = make_reviews({"no_positions": (0,) * 4, "vanilla": (0.02, 0.02, 0.02, None)})
    scores = find_row(tables.scores_table(contents, reviews.TITLES), "Transformer")
    assert scores[-1] == "not run"
    assert scores[1].startswith("**82.")
    differences = tables.differences_table(contents, reviews.TITLES, reviews.BASES)
    row = find_row(differences, "Transformer")
    assert row[1].startswith(("1.", "2."))
    assert row[4:] == ["not run", "-", "-", "-", "-"]


def test_pruning_is_compared_with_a_random_order(folder):
    rows = [line for line in REPORT.detail(folder).splitlines() if "| largest absolute w |" in line]
    cells = [cell.strip() for cell in rows[0].strip("|").split("|")]
    assert cells[2:6] == ["90.00", "90.00", "63.00", "50.00"]
    assert cells[6].startswith("-17.00 (p = ")


def test_a_layer_may_have_only_negative_weights():
    content = when_to_use_results.content("wnut17", ("distance_aware",))
    heads = when_to_use_results.heads() | {"weight": [[[-0.5, -0.25]]] * 3}
    content["heads"] = {"distance_aware": heads}
    contents = dict.fromkeys(EXPERIMENTS) | {"wnut17": content}
    row = find_row(tables.layers_table(contents), EXPERIMENTS["wnut17"].title)
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
    contents = dict.fromkeys(EXPERIMENTS)
    contents["wnut17"] = when_to_use_results.content("wnut17", methods)
    others = dict.fromkeys(("ag", "sst", "multi30k_small"))
    table = advice.advice_table(contents, others)
    assert find_row(table, "to find named entities")[1:] == expected


def test_accuracies_of_parts_of_speech_are_averaged_over_languages():
    contents = dict.fromkeys(EXPERIMENTS)
    for name in TREEBANKS:
        contents[name] = when_to_use_results.content(name, ("vanilla", "adapted"))
    contents["ud_tr"] = when_to_use_results.content("ud_tr", ("adapted", "vanilla"))
    # The first method has 0.50, 0.51 and 0.52 for seeds 0, 1 and 2, the second 0.60, 0.62 and 0.64.
    averages = tagging.average_languages(contents)
    share = 1 / len(TREEBANKS)
    assert averages["vanilla"][1] == pytest.approx(0.51 * (1 - share) + 0.62 * share)
    assert averages["adapted"][2] == pytest.approx(0.64 * (1 - share) + 0.52 * share)
    contents["ud_vi"] = None
    assert tagging.average_languages(contents) == {}


def test_details_have_commands_settings_positions_and_every_seed(folder):
    details = REPORT.detail(folder)
    assert details.startswith("Notes.\n")
    assert "python -m experiments train tagging --name wnut17" in details
    # The losses of seeds 0, 1 and 2 of the third method are 0.30, 0.27 and 0.24 in both splits.
    assert find_row(details, "ALiBi")[1:] == ["0.001", *["0.2700 ± 0.0300"] * 2, "3", "yes"]
    assert "| DA-Transformer | 90.0 | 100.0 |" in details


def test_figures_are_drawn(folder, tmp_path):
    REPORT.draw_figures(folder, tmp_path)
    (path,) = (tmp_path / "figures").iterdir()
    assert image.imread(path).shape[1] > 700


def test_the_figure_has_a_panel_for_each_question_that_was_run(two_trainings):
    assert len(figures.draw_lengths(two_trainings).axes) == 3
    two_trainings |= {
        name: content
        for name, content in make_reviews({"no_positions": (0,) * 4, "adapted": (0.1,) * 4}).items()
        if content is not None
    }
    *_, last = figures.draw_lengths(two_trainings).axes
    assert [text.get_text() for text in last.texts][1:] == ["no positions", "Adapted Transformer"]


def test_the_effect_of_longer_training_is_a_change_in_percent(two_trainings):
    # Perplexity at every length: 101 by training on 256 tokens, 90.9 by training on 512 tokens.
    effects = figures.find_training_effects(two_trainings)
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
    families = [method for family in figures.FAMILIES for method in family.methods]
    for name in language_models.NAMES.values():
        assert set(EXPERIMENTS[name].methods) <= set(families)
    assert len(set(families)) == len(families)


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ([0.2, 0.5], [0.2, 0.5]),
        ([0.5, 0.5], [0.45, 0.55]),
        ([0.4, 0.45, 0.5, 0.9], [0.35, 0.45, 0.55, 0.9]),
        ([0.95, 0.96], [0.87, 0.97]),  # below the title
        ([0.0, 0.0, 0.15], [0.0, 0.1, 0.2]),
    ],
)
def test_labels_do_not_overlap(places, expected):
    assert spread_labels(places, gap=0.1) == pytest.approx(expected)


def test_a_report_without_results_says_not_run(tmp_path):
    assert not any(REPORT.read_contents(tmp_path).values())
    text = REPORT.summarize(tmp_path)
    assert all(f"{experiment.title} (all methods)" in text for experiment in EXPERIMENTS.values())
    assert text.count("\n\nNot run.") == 4  # every section after the findings
    assert REPORT.detail(tmp_path).endswith("### Data\n\nNot run.\n")
