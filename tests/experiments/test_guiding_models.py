"""Tables of models, options, searches and costs of the attention-guiding paper."""

import pytest

from experiments.papers import stored_results
from experiments.papers.attention_guiding import models
from experiments.papers.attention_guiding.published import RANKING
from experiments.papers.attention_guiding.report import REPORT
from tests.experiments.guiding_results import DATA, PRETRAINED, content, find_row, search, speed

OTHER = {**DATA, "classes": 0, "pretrained": {**PRETRAINED, "name": "other", "stored": ["F32"]}}
METHODS = ("none", "ag", "mdg")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """MultiNLI, its searches and two shares with one model, COVID-Fact with another model."""
    folder = tmp_path_factory.mktemp("results")
    ranked = content("covid_fact", METHODS[:2], RANKING, data=OTHER, **{"data.batch_size": 4})
    for one in (
        content("multinli", METHODS),
        content("multinli_share_20", METHODS[:1], **{"data.share": 0.2}),
        content("multinli_share_40", METHODS[:1], **{"data.share": 0.4}),
        search("multinli_rates", METHODS[:1], learning_rate=(1e-5, 3e-5)),
        search("multinli_search", METHODS, alpha=(0.1, 0.01, 0.001)),
        ranked,
        speed(),
    ):
        stored_results.write_results(one, folder)
    return folder


def write_details(folder, **changed):
    return REPORT.write_details({**REPORT.read_contents(folder), **changed}, folder)


@pytest.fixture(scope="module")
def details(folder):
    return write_details(folder)


def test_every_table_names_its_stored_model(details):
    same = ["bert", "2 x 3", "12"]
    runs = "`multinli_search`, `multinli`, `multinli_share_*` (2)"
    trained = ["bfloat16", "adam", "1e-05", "2", "8", "16", "mean"]
    assert find_row(details, runs, "### Table 1")[1:] == ["tiny", "0123", *same, "BF16", *trained]
    assert find_row(details, "`multinli_rates`", "### Table 1")[9] == "1e-05, 3e-05"
    trained[4] = "4"
    assert find_row(details, "`covid_fact`", "### Table 1")[1:] == [
        "other",
        "0123",
        *same,
        "F32",
        *trained,
    ]
    assert find_row(details, "tiny+AG", "\n\nMultiNLI:")[2] == "74.67 ± 2.52"
    assert find_row(details, "other+AG", "\n\nCOVID-Fact")[2] == "74.67 ± 2.52"
    assert details.count("MultiNLI (ours: tiny; published: BERT):") == 1
    assert details.count("COVID-Fact, instead of Cross-genre-IR (ours: other):") == 2
    assert "MultiNLI, tiny." in details[details.index("### Figure 6") :]
    costs = [find_row(details, name, "### Table 4")[2:] for name in ("tiny", "other")]
    assert [cell == "-" for cell in costs[0]] == [False, False, False, True]
    assert [cell == "-" for cell in costs[1]] == [True, False, False, False]


def test_an_option_that_differs_between_runs_shows_all_values(folder):
    contents = REPORT.read_contents(folder)
    contents["multinli"]["runs"]["ag"]["config"]["epochs"] = 2.5
    assert find_row(write_details(folder, **contents), "`multinli`", "### Table 1")[10] == "2, 2.5"


def test_options_that_a_run_does_not_store_are_empty_cells(folder):
    contents = REPORT.read_contents(folder)
    for run in contents["multinli"]["runs"].values():
        run["config"] = {"epochs": 2.0, "optimizer.weight_decay": 0.1}
    row = find_row(write_details(folder, **contents), "`multinli`", "### Table 1")
    assert row[7:] == ["-", "adamw", "-", "2", "-", "-", "-"]


def test_no_model_is_named_where_nothing_was_run(tmp_path):
    details = write_details(tmp_path)
    assert details.count("Ours: not run.") == 1
    assert find_row(details, "-", "### Table 4")[1:] == ["ours", *["not run"] * 4]
    assert "MultiNLI (ours: not run; published: Roberta):" in details
    assert "tiny" not in details


def test_splits_are_described_for_data_sets_that_were_run(details):
    about = details[details.index("### Data") : details.index("### Table 1")]
    assert "- MultiNLI: the test set is the available part of the published dev_matched" in about
    assert "a random tenth of the premises of the available part of the published train" in about
    assert "- MedNLI" not in about
    ranked = find_row(about, "COVID-Fact, instead of Cross-genre-IR", "### Data")
    assert ranked[4] == "- / -"  # A ranking has no classes.


def test_searches_are_listed_without_weights_that_a_guide_does_not_use(details):
    after = details[details.index("### Hyperparameter search") :]
    rates = find_row(after, "no guide", "MultiNLI, learning rate:")
    assert rates[1:] == ["1e-05", "72.00 ± 2.65", "3", "yes"]
    weights = "MultiNLI, weights of guides:"
    assert find_row(after, "no guide", weights)[1] == "-"
    assert find_row(after, "MDG", weights)[1] == "0.1"
    assert "learning rate: 1e-05, as published, not searched." in after
    assert find_row(details, "multinli_rates/none", "### Runs")[4] == "6"  # two rates, three seeds


def test_only_the_published_learning_rate_is_called_published(folder):
    other = content("covid_fact", METHODS, RANKING, **{"optimizer.learning_rate": [3e-5]})
    assert "learning rate: 3e-05, not searched." in write_details(folder, covid_fact=other)


def test_searched_settings_count_only_if_the_best_one_was_used(folder):
    assert models.count_settings(content("multinli", METHODS), folder) == {
        **{"none": 1, "ag": 3, "mdg": 3}
    }
    by_hand = content("multinli", METHODS, grid=({"alpha": 0.5},))
    assert models.count_settings(by_hand, folder) == dict.fromkeys(METHODS, 1)


def test_costs_are_listed_with_published_ones(details):
    table = "### Table 4"
    assert find_row(details, "BERT", table)[2] == "2190 → 2334 (+6.6 %)"
    ours = find_row(details, "tiny", table)
    assert ours[2:4] == ["30.0 → 31.5 (+5.0 %; 3 models, a device)", "not run"]
    assert find_row(details, "AG", table)[1:] == ["1", "10.50", "1.050", "4.10", "1.025"]
    assert "a BERT with 6 layers of 12 heads, 384 wide, random parameters" in details


def test_times_of_different_numbers_of_models_are_not_compared(folder):
    contents = REPORT.read_contents(folder)
    contents["multinli"]["runs"]["ag"]["result"]["members"].pop()
    (cell,) = find_row(REPORT.write_details(contents, folder), "tiny", "### Table 4")[2:3]
    assert cell == "30.0 (3 models, a device) → 31.5 (2 models, a device)"
