"""Tables and figures of the DA-Transformer paper.

The page RESULTS.md is compared whole with the report. These tests change the stored results.
"""

import pytest

from experiments.papers.da_transformer.report import REPORT
from tests.experiments import stored
from tests.experiments.stored import find_row


@pytest.fixture
def contents():
    """Return AG's News with its search, and ratings. Everything else was not run."""
    found = stored.read("ag", "ag_search", "amazon_rating")
    del found["ag"]["runs"]["distance_aware_early_add"]
    return found


def test_details_compare_ours_with_published_numbers_and_count_settings(contents, tmp_path):
    (tmp_path / "notes_da.md").write_text("Notes.\n")
    details = REPORT.detail(stored.make_results(*contents.values()), tmp_path)
    row = find_row(details, "DA-Transformer", "### Table 3: AG")
    assert row[1:5] == ["20", "12", "91.92 ± 0.22", "93.72 ± 0.11"]  # seeds, settings tried
    assert find_row(details, "majority label", "### Table 3: AG")[3] == "25.00"
    assert "| DA-Transformer, then no positions |" in details  # Lower errors are better.
    sizes = find_row(details, "AG's News", "### Table 1")
    assert sizes[1:4] == ["42,937 / 108k", "4,771 / 12k", "7,600 / 7.6k"]
    assert "- ag: ag_news: 42937 train" in details
    assert details.startswith("Notes.\n")
    assert find_row(details, "ag_search/vanilla", "### Runs")[4] == "9"  # 3 settings, 3 seeds
    for heading in ("### Table 3: Amazon", "### Table 4: SST"):
        assert details[details.index(heading) :].split("\n\n")[1] == "Not run."
    assert "snli_search:\n\nNot run." in details


@pytest.mark.parametrize(("sign", "cell"), [(1, 1), (-1, 2)])
def test_the_summary_sorts_comparisons_into_better_and_worse(contents, sign, cell):
    methods = ("distance_aware", "vanilla")
    models = [contents["ag"]["runs"][method]["result"]["members"] for method in methods]
    for gain, ours, vanilla in zip((0.28, 0.29, 0.30), *models, strict=False):
        ours["test"]["accuracy"] = vanilla["test"]["accuracy"] + sign * gain
    for of_method in models:
        del of_method[3:]
    text = REPORT.summarize(stored.make_results(*contents.values()))
    # Mean 29, standard deviation 1, three seeds: t = 50 and p = 0.0004.
    row = find_row(text, "DA-Transformer against the Transformer")
    assert row[cell] == f"1: AG's News ({29 * sign}.00 points, p = 0.0004)"
    row = find_row(text, "Transformer", "| DA-Transformer minus")
    assert row[1] == f"{29 * sign}.00 (p = 0.0004)"


def test_experiments_without_results_are_reported_as_not_run(contents):
    summary = REPORT.summarize(stored.make_results(*contents.values()))
    assert find_row(summary, "Transformer", "Test set, ours")[2] == "not run / 89.67 ± 0.22"
    form = find_row(summary, "DA, early add", "### Are its mapping")
    assert form[1:4] == ["adjustment", "not run", "not run"]
    assert "MIND not run." in summary
    assert "A training step takes not run times" in summary


def test_every_linked_figure_is_drawn(contents):
    made = stored.make_results(*contents.values())
    pictures = REPORT.list_pictures(made)
    assert stored.find_links(REPORT.summarize(made)) == {f"{name}.png" for name in pictures}
    assert set(pictures) == {"distances_ag", *(f"figure_{i}" for i in (1, 2, 3, 4, 5, 6, 8))}
    assert all(draw().axes for draw in pictures.values())


def test_figures_are_saved_by_their_name(tmp_path):
    REPORT.draw_figures(stored.make_results(), tmp_path)
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    assert names == {"figure_1.png", "figure_2.png"}  # They need no results.
