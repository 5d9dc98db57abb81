"""Tables and figures of Shaw et al. 2018, from artificial results."""

import pytest
from matplotlib import image

from experiments.papers import stored_results
from experiments.papers.shaw.report import REPORT
from experiments.papers.shaw.settings import list_experiments
from tests.experiments import shaw_results
from tests.experiments.guiding_results import find_row


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    small = {**shaw_results.content("multi30k_small"), **shaw_results.learned()}
    for content in (
        stored_results.round_numbers(small),
        shaw_results.content("multi30k_medium", ("vanilla", "relative_position"), gain=2.0),
        shaw_results.content("libreoffice_small", ("vanilla",), scored=False),
        shaw_results.tiny("multi30k_tiny", {0.1: 37.0, 0.3: 12.0}),
        *shaw_results.sweep("multi30k"),
    ):
        stored_results.write_results(content, folder)
    (folder / "notes_shaw.md").write_text("Notes.\n")
    return folder


@pytest.fixture(scope="module")
def summary(folder):
    return REPORT.summarize(folder)


@pytest.fixture(scope="module")
def details(folder):
    return REPORT.detail(folder)


def find_rows(text, heading):
    """Return the cells of all rows of the first table after a heading."""
    lines = text[text.index(heading) :].splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("| ---")) + 1
    rows = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def test_table_1_shows_our_sizes_and_says_that_those_of_the_paper_were_not_run(summary):
    rows = find_rows(summary, "(Table 1)")
    # Three seeds: 36, 37 and 38, and two points more with the medium model.
    ours = ["37.00 ± 1.00", "39.00 ± 1.00", "not run", "not run"]
    published = [f"not run / {number}" for number in ("26.5", "27.9", "38.2", "41.2")]
    assert rows[0] == ["absolute", *ours, *published]
    assert rows[1][:3] == ["relative", "38.00 ± 1.00", "40.00 ± 1.00"]
    assert rows[1][5:7] == ["not run / 26.8", "not run / 29.2"]
    assert rows[2][:3] == ["relative and absolute", "37.50 ± 1.00", "not run"]
    assert rows[2][5] == "not run / -"
    assert "| Multi30k, small (3 + 3 x 256) |" in summary


def test_table_2_shows_every_clipping_distance(summary):
    rows = find_rows(summary, "(Table 2)")
    assert [row[0] for row in rows] == ["0", "1", "2", "4", "16", "64", "256"]
    assert rows[0] == ["0", "15.50 ± 0.71", "not run", "not run / 12.5"]
    assert rows[6] == ["256", "37.10 ± 0.71", "not run", "not run / 25.8"]


def test_table_3_shows_both_tables_one_of_them_and_none(summary):
    rows = find_rows(summary, "(Table 3)")
    assert rows[1] == [
        *("no", "yes", "38.00 ± 1.00"),
        *("not run", "not run", "not run", "not run / 25.8"),
    ]
    assert rows[2][:3] == ["yes", "no", "36.00 ± 1.00"]
    assert rows[3][:3] == ["no", "no", "16.00 ± 1.00"]


def test_findings_state_the_collapse_and_the_plateau(summary):
    assert "Multi30k 16.00 ± 1.00 (no positions), 15.50 ± 0.71 (k = 0), 38.00 ± 1.00" in summary
    assert "Multi30k from 36.70 (k = 2) to 37.10 (k = 256); LibreOffice help not run" in summary


def test_differences_are_tested_by_seed(folder):
    contents = REPORT.read_contents(folder)
    runs = contents["multi30k_small"]["runs"]
    for gain, member, other in zip(
        (0.9, 1.0, 1.1),
        *(runs[method]["result"]["members"] for method in ("relative_position", "vanilla")),
        strict=True,
    ):
        member["test"]["bleu"] = other["test"]["bleu"] + gain
    text = REPORT.write_summary(contents, folder, "figures")
    # Mean 1, standard deviation 0.1, three seeds: t = 17.3 and p = 0.0033.
    assert "better in 1 of 2 comparisons (Multi30k small: 1.00 points, p = 0.0033)" in text
    row = find_row(text, "relative - absolute", "| difference in BLEU")
    assert row[1:] == ["1.00 (p = 0.0033)", "1.00", "not run", "not run"]


def test_our_best_model_by_validation_loss_is_compared_with_others(summary):
    # The run of the medium model with relative positions has the lowest loss.
    assert (
        "39.00 ± 1.00 (tiny, absolute, rate 0.005, dropout 0.1 everywhere) against 41.02, lower "
        "case (Wu et al."
    ) in summary
    assert "40.00 ± 1.00 (medium, relative) against 35.41, cased (DGL" in summary
    row = find_row(summary, "ours, relative", "| system")
    assert row[1:4] == ["small (3 + 3 x 256)", "38.00 ± 1.00", "39.00 ± 1.00"]
    assert row[4] == "sacrebleu, tokens 13a; beam 4"
    name = "ours, absolute, recipe of Wu et al., rate 0.005, dropout 0.3 everywhere"
    row = find_row(summary, name, "| system")
    assert row[1:4] == ["tiny (3 + 3 x 256)", "-", "14.00 ± 1.00"]


def test_details_list_every_seed_with_signatures_and_runs(details):
    assert details.startswith("Notes.\n")
    row = find_row(details, "multi30k_small", "### Every seed")
    assert row == ["multi30k_small", "no positions", "0", "0.0667", "15.00", "16.00", "35.00"]
    assert "- BLEU, lower case: `nrefs:1|case:lc|" in details
    assert "- Decoding: beam 4, length penalty 0.6, best checkpoint" in details
    assert find_row(details, "Multi30k", "### Data")[1:] == ["1,234", "56", "78"]
    assert "multi30k_small_search: not searched." in details
    assert find_row(details, "multi30k_small_k4/relative_position", "### Runs")[4] == "2"


def test_a_run_may_lack_its_environment_and_its_times(tmp_path):
    content = shaw_results.content("multi30k_small", ("vanilla",))
    content["runs"]["vanilla"].update(environment=None, seconds=0)
    stored_results.write_results(content, tmp_path)
    row = find_row(REPORT.detail(tmp_path), "multi30k_small/vanilla", "### Runs")
    assert row[1:] == ["-", "-", "-", "3", "60", "-", "-"]


def test_every_linked_figure_is_drawn(folder, summary):
    REPORT.draw_figures(folder, folder)
    names = {part.split(")")[0].split("/")[-1] for part in summary.split("](")[1:]}
    levels = ("encoder", "decoder")
    assert names == {
        *("shaw_distances.png", "shaw_attention_multi30k.png"),
        *(f"shaw_{level}_norms_multi30k.png" for level in levels),
        *(f"shaw_{level}_similarities_multi30k.png" for level in levels),
    }
    for name in names:
        assert image.imread(folder / "figures" / name).ndim == 3


def test_kinds_of_positions_that_were_trained_side_by_side_are_separate_rows(tmp_path):
    kinds = {
        (-1, -1, 1): 30.0,
        (-1, -1, 0): 10.0,
        (16, -1, 0): 32.0,
        (-1, 16, 0): 31.0,
        (16, -2, 0): 33.0,
        (16, 16, 1): 34.0,
        (16, -1, 1): 99.0,  # in no table
    }
    stored_results.write_results(shaw_results.switched("multi30k_small", kinds), tmp_path)
    distances = {(k, -2, 0): 20.0 + k for k in (0, 4, 16)}
    stored_results.write_results(shaw_results.switched("multi30k_small_k", distances), tmp_path)
    alone = shaw_results.content("multi30k_small_k4", ("relative_position",))
    stored_results.write_results(alone, tmp_path)
    text = REPORT.summarize(tmp_path)
    cells = [row[1] for row in find_rows(text, "(Table 1)")]
    assert cells == ["30.50 ± 0.71", "33.50 ± 0.71", "34.50 ± 0.71"]
    cells = [row[1] for row in find_rows(text, "(Table 2)")]
    assert cells[0] == "20.50 ± 0.71"
    assert cells[3] == "38.00 ± 1.00"  # A run of its own is not replaced.
    assert cells[4] == "36.50 ± 0.71"
    assert cells[1] == "not run"
    cells = [row[2] for row in find_rows(text, "(Table 3)")]
    assert cells == ["33.50 ± 0.71", "32.50 ± 0.71", "31.50 ± 0.71", "10.50 ± 0.71"]
    assert "99" not in text
    runs = find_rows(REPORT.detail(tmp_path), "### Runs")
    names = ["multi30k_small", "multi30k_small_k", "multi30k_small_k4"]
    assert [row[0].split("/")[0] for row in runs] == names


def test_without_any_result_everything_is_reported_as_not_run(tmp_path):
    text = REPORT.summarize(tmp_path)
    assert "±" not in text.replace("mean ± standard deviation", "")
    assert "**Relative against absolute positions**: not run." in text
    assert REPORT.detail(tmp_path).count("Not run.") == 2
    assert set(REPORT.read_contents(tmp_path)) == set(list_experiments())
