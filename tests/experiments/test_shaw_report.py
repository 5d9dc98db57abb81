"""Tables and figures of Shaw et al. 2018.

The page RESULTS.md is compared whole with the report. These tests change the stored results.
"""

import pytest

from experiments.papers.shaw import report
from experiments.papers.shaw.report import REPORT
from tests.experiments import stored
from tests.experiments.stored import find_row


@pytest.fixture(scope="module")
def contents():
    return stored.read("multi30k*")


def test_experiments_that_were_not_run_are_marked(contents):
    made = stored.make_results(contents["multi30k_small"], contents["multi30k_tiny"])
    text = REPORT.summarize(made)
    ours = ["36.86 ± 0.33", "not run", "not run", "not run"]
    assert find_row(text, "absolute", "(Table 1)")[1:5] == ours
    row = find_row(text, "relative - absolute", "| difference in BLEU")
    assert row[1:] == ["0.99 (p = 0.0014)", "not run", "not run", "not run"]
    assert report.plateau(made, "multi30k") == "not run"
    links = stored.find_links(text)
    assert links == {f"{name}.png" for name in REPORT.list_pictures(made)}
    assert "shaw_distances.png" not in links


def test_our_best_model_has_the_lowest_validation_loss(contents):
    made = stored.make_results(*contents.values())
    assert report.best_model(made) == "38.19 ± 0.43 (small, relative and absolute)"
    for member in made.runs("multi30k_medium")["vanilla"]["result"]["members"]:
        member["validation"]["loss"] = 0.5
    changed = stored.make_results(*contents.values())
    assert report.best_model(changed) == "36.10 ± 0.73 (medium, absolute)"
    tiny = report.best_tiny(changed)
    assert tiny.startswith("39.71 (tiny, absolute, rate 0.002, dropout 0.3 of embeddings")


def test_details_list_every_seed_with_signatures_and_runs(contents):
    details = REPORT.detail(stored.make_results(*contents.values()), "")
    row = find_row(details, "multi30k_small_k0", "### Every seed")
    assert row == ["multi30k_small_k0", "Transformer-RPR", "0", "3.1101", "28.56", "29.08", "54.78"]
    assert "- BLEU, lower case: `nrefs:1|case:lc|" in details
    assert "- Decoding: beam 4, length penalty 0.6, best checkpoint" in details
    assert find_row(details, "Multi30k", "### Data")[1] == "29,000"
    assert "libreoffice_small_search:\n\nNot run." in details
    assert find_row(details, "multi30k_tiny/switched_positions", "### Runs")[4] == "6"


def test_figures_of_distances_and_of_learned_positions_are_drawn(contents):
    found = REPORT.list_pictures(stored.make_results(*contents.values()))
    distances, published = found["shaw_distances"]().axes
    assert len(distances.lines[0].get_ydata()) == len(published.lines[0].get_ydata()) == 7
    assert found["shaw_attention_multi30k"]().axes
    assert found["shaw_decoder_norms_multi30k"]().axes


def test_without_any_result_everything_is_reported_as_not_run():
    empty = stored.make_results()
    text = REPORT.summarize(empty)
    assert "±" not in text.replace("mean ± standard deviation", "")
    assert find_row(text, "Relative against absolute positions")[1:] == ["not run"] * 3
    assert "Figures:" not in text
    assert REPORT.detail(empty, "").endswith("shared the device.\n\nNot run.\n")
