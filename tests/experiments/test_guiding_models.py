"""Which model our rows of the attention-guiding tables are of, what was tried, what it costs."""

import pytest

from experiments.papers import stored_results
from experiments.papers.attention_guiding import models
from experiments.papers.attention_guiding import report as guiding
from experiments.papers.attention_guiding.published import RANKING
from tests.experiments.guiding_results import DATA, PRETRAINED, content, row, searched, timed

OTHER = {**DATA, "classes": 0, "pretrained": {**PRETRAINED, "name": "other", "stored": ["F32"]}}
METHODS = ("none", "ag", "mdg")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """MultiNLI, its searches and a share of it on one model, COVID-Fact on another."""
    folder = tmp_path_factory.mktemp("results")
    ranked = content("covid_fact", METHODS[:2], RANKING, data=OTHER, **{"data.batch_size": 4})
    for one in (
        content("multinli", METHODS),
        content("multinli_share_20", METHODS[:1], **{"data.share": 0.2}),
        content("multinli_share_40", METHODS[:1], **{"data.share": 0.4}),
        searched("multinli_rates", METHODS[:1], learning_rate=(1e-5, 3e-5)),
        searched("multinli_search", METHODS, alpha=(0.1, 0.01, 0.001)),
        ranked,
        timed(),
    ):
        stored_results.write(one, folder)
    return folder


def text_of(folder, **changed):
    return guiding.text({**guiding.read(folder), **changed}, folder)


@pytest.fixture(scope="module")
def text(folder):
    return text_of(folder)


def test_every_table_names_the_model_that_its_runs_say(text):
    same = ["bert", "2 x 3", "12"]
    runs = "`multinli_search`, `multinli`, `multinli_share_*` (2)"
    trained = ["bfloat16", "adam", "1e-05", "2", "8", "16", "mean"]
    assert row(text, runs, "### Table 1")[1:] == ["tiny", "0123", *same, "BF16", *trained]
    assert row(text, "`multinli_rates`", "### Table 1")[9] == "1e-05, 3e-05"
    trained[4] = "4"
    assert row(text, "`covid_fact`", "### Table 1")[1:] == ["other", "0123", *same, "F32", *trained]
    assert row(text, "tiny+AG", "\n\nMultiNLI:")[2] == "74.67 ± 2.52"
    assert row(text, "other+AG", "\n\nCOVID-Fact")[2] == "74.67 ± 2.52"
    assert text.count("MultiNLI (ours: tiny; the paper's: BERT):") == 1
    assert text.count("COVID-Fact, in place of Cross-genre-IR (ours: other):") == 2
    assert "MultiNLI, tiny." in text[text.index("### Figure 6") :]
    costs = [row(text, name, "### Table 4")[2:] for name in ("tiny", "other")]
    assert [cell == "-" for cell in costs[0]] == [False, False, False, True]
    assert [cell == "-" for cell in costs[1]] == [True, False, False, False]


def test_a_setting_in_which_runs_differ_shows_all_its_values(folder):
    kept = guiding.read(folder)
    kept["multinli"]["runs"]["ag"]["config"]["epochs"] = 2.5
    assert row(text_of(folder, **kept), "`multinli`", "### Table 1")[10] == "2, 2.5"


def test_where_nothing_was_run_no_model_is_named(tmp_path):
    text = text_of(tmp_path)
    assert text.count("Ours: not run.") == 1
    assert row(text, "-", "### Table 4")[1:] == ["ours", *["not run"] * 4]
    assert "MultiNLI (ours: not run; the paper's: Roberta):" in text
    assert "tiny" not in text


def test_the_splits_of_what_was_run_are_described(text):
    about = text[text.index("### Data") : text.index("### Table 1")]
    assert "- MultiNLI: the test set is the published dev_matched" in about
    assert "validation set is a tenth of the premises of the published train" in about
    assert "- MedNLI" not in about
    ranked = row(about, "COVID-Fact, in place of Cross-genre-IR", "### Data")
    assert ranked[4] == "- / -"  # no classes


def test_what_was_searched_is_listed_and_what_a_guide_lacks_is_not(text):
    after = text[text.index("### What was searched") :]
    rates = row(after, "no guide", "MultiNLI, the learning rate:")
    assert rates[1:] == ["1e-05", "72.00 ± 2.65", "3", "yes"]
    weights = "MultiNLI, the weights of guides:"
    assert row(after, "no guide", weights)[1] == "-"
    assert row(after, "MDG", weights)[1] == "0.1"
    assert "the learning rate: 1e-05, the paper's, not searched." in after
    assert row(text, "multinli_rates/none", "### Runs")[4] == "6"  # two rates of three seeds


def test_a_rate_that_is_not_the_papers_is_not_called_so(folder):
    other = content("covid_fact", METHODS, RANKING, **{"optimizer.learning_rate": [3e-5]})
    assert "the learning rate: 3e-05, not searched." in text_of(folder, covid_fact=other)


def test_settings_of_a_search_count_where_they_were_taken(folder):
    assert models.tried(content("multinli", METHODS), folder) == {**{"none": 1, "ag": 3, "mdg": 3}}
    by_hand = content("multinli", METHODS, grid=({"alpha": 0.5},))
    assert models.tried(by_hand, folder) == dict.fromkeys(METHODS, 1)


def test_costs_stand_beside_the_papers(text):
    table = "### Table 4"
    assert row(text, "BERT", table)[2] == "2190 → 2334 (+6.6 %)"
    ours = row(text, "tiny", table)
    assert ours[2:4] == ["30.0 → 31.5 (+5.0 %; 3 models, a device)", "not run"]
    assert row(text, "AG", table)[1:] == ["1", "10.50", "1.050", "4.10", "1.025"]
    assert "a BERT of 6 layers of 12 heads, 384 wide, its parameters drawn" in text


def test_times_of_different_numbers_of_models_are_not_compared(folder):
    kept = guiding.read(folder)
    kept["multinli"]["runs"]["ag"]["result"]["members"].pop()
    (cell,) = row(guiding.text(kept, folder), "tiny", "### Table 4")[2:3]
    assert cell == "30.0 (3 models, a device) → 31.5 (2 models, a device)"
