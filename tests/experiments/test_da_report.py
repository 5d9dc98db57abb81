"""Tables and figures of the DA-Transformer paper, from artificial results."""

import numpy as np
import pytest
from matplotlib import image

from experiments.papers.da_transformer.report import REPORT
from experiments.papers.da_transformer.settings import ADJUSTMENTS, MAPPINGS, METRICS, ROWS
from tests.experiments import stored
from tests.experiments.stored import find_row


def content(experiment, methods, **more):
    """Return three seeds of each method, each 0.02 better than the method before."""
    scores = {
        method: [0.5 + i / 50 + seed / 100 for seed in range(3)] for i, method in enumerate(methods)
    }
    baseline = {"test": {METRICS[experiment][0]: 0.25}}
    return stored.content(experiment, scores, METRICS[experiment], baseline=baseline, **more)


def heads(heads=4, tokens=3, max_distance=15):
    """Return what `collect` keeps of the heads."""
    weight = np.asarray([-0.5, -0.1, 0.2, 0.4])
    maps = np.random.default_rng(0).dirichlet(np.ones(tokens), (heads, tokens))
    profile = np.full((heads, max_distance + 1), 1 / (max_distance + 1))
    both = {"tokens": list("abc"), "heads": [0, 1, 2, 3], "maps": maps}
    distances = {"heads": profile, "uniform": profile[0]}
    return {
        "heads": {"text": {"weight": np.tile(weight, (3, 1, 1)), "shape": np.zeros((3, 1, heads))}},
        "attention": {"vanilla": both, "distance_aware": {**both, "weight": weight}},
        "distances": {"vanilla": distances, "distance_aware": {**distances, "weight": weight}},
    }


def make_contents():
    """Return AG's News with its search, and ratings. Everything else was not run."""
    ag = content("ag", (*ROWS, *MAPPINGS, *ADJUSTMENTS[:1]))
    settings = [{"initial_weight": weight} for weight in (0.1, 0.5)]
    search = content("ag", ROWS, splits=("validation",), settings=settings)
    return [
        {**ag, **heads()},
        content("amazon_rating", ROWS),
        {**search, "experiment": "ag_search"},
    ]


@pytest.fixture(scope="module")
def results():
    return stored.make_results(*make_contents())


@pytest.fixture(scope="module")
def details(results, tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    (folder / "notes_da.md").write_text("Notes.\n")
    return REPORT.detail(results, folder)


@pytest.fixture(scope="module")
def summary(results):
    return REPORT.summarize(results)


def test_details_compare_ours_with_published_numbers_and_test_the_differences(details):
    heading = "### Table 3: AG"
    row = find_row(details, "Transformer", heading)
    # Three seeds: 52, 53 and 54 %. DA-Transformer is 8 points above on every seed.
    assert row[:3] == ["Transformer", "3", "2"]  # seeds, settings tried
    assert row[3:6] == ["53.00 ± 1.00", "93.01 ± 0.13", "53.00 ± 1.00"]
    assert row[7] == "8.00 points"
    assert find_row(details, "DA-Transformer", heading)[3:5] == ["61.00 ± 1.00", "93.72 ± 0.11"]
    assert find_row(details, "majority label", heading)[3] == "25.00"
    sizes = find_row(details, "AG's News", "### Table 1")
    assert sizes[1:4] == ["1,234 / 108k", "56 / 12k", "78 / 7.6k"]
    assert "- ag: a message." in details
    assert details.startswith("Notes.\n")
    assert find_row(details, "ag_search/vanilla", "### Runs")[4] == "6"  # two settings, three seeds


def test_experiments_without_results_are_reported_as_not_run(details, summary):
    for heading in ("### Table 3: Amazon", "### Table 4: SST"):
        assert details[details.index(heading) :].split("\n\n")[1] == "Not run."
    assert "snli_search:\n\nNot run." in details
    assert find_row(summary, "Transformer", "Test set, ours")[2] == "not run / 89.67 ± 0.22"
    form = find_row(summary, "DA, early add", "### Are its mapping")
    assert form[1:4] == ["adjustment", "not run", "not run"]
    assert "MIND not run." in summary
    assert "A training step takes not run times" in summary


def test_lower_errors_are_better(details):
    assert "| no positions, then Transformer |" in details[details.index("### Figure 3") :]
    assert find_row(details, "mean rating", "### Figure 3")[2] == "0.2500"


@pytest.mark.parametrize(("sign", "cell"), [(1, 1), (-1, 2)])
def test_the_summary_sorts_comparisons_into_better_and_worse(sign, cell):
    contents = make_contents()
    runs = contents[0]["runs"]
    pairs = zip(*(runs[m]["result"]["members"] for m in ("distance_aware", "vanilla")), strict=True)
    for gain, (member, other) in zip((0.28, 0.29, 0.30), pairs, strict=True):
        member["test"]["accuracy"] = other["test"]["accuracy"] + sign * gain
    text = REPORT.summarize(stored.make_results(*contents))
    # Mean 29, standard deviation 1, three seeds: t = 50 and p = 0.0004.
    difference = f"{29 * sign}.00"
    row = find_row(text, "DA-Transformer against the Transformer")
    assert row[cell] == f"1: AG's News ({difference} points, p = 0.0004)"
    row = find_row(text, "Transformer", "| DA-Transformer minus")
    assert row[1] == f"{difference} (p = 0.0004)"


def test_heads_are_counted_by_the_sign_of_w(details, summary):
    expected = ["9.9", "50.00 ± 0.00", "-0.300", "0.300", "0.00"]
    assert find_row(details, "AG's News, text", "### Footnote 7")[1:] == expected
    assert find_row(summary, "AG's News, text", "### What do heads learn")[1:] == expected
    for text, heading in ((details, "### Attention by"), (summary, "| attention (%) on words")):
        assert find_row(text, "AG's News", heading)[1] == f"{100 * 5 / 16:.1f}"


def test_every_linked_figure_is_drawn(results, summary, tmp_path):
    REPORT.draw_figures(results, tmp_path)
    names = {part.split(")")[0].split("/")[-1] for part in summary.split("](")[1:]}
    assert names == {f"figure_{i}.png" for i in (1, 2, 3, 4, 5, 6, 8)} | {"distances_ag.png"}
    for name in names:
        assert image.imread(tmp_path / "figures" / name).ndim == 3


def test_settings_may_be_empty():
    contents = make_contents()
    for one in contents[0]["runs"].values():
        for member in one["result"]["members"]:
            member["setting"] = {}
    made = stored.make_results(*contents)
    assert find_row(REPORT.detail(made, ""), "Transformer", "### Table 3: AG")[1] == "3"
