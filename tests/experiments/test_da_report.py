"""Tables and figures of the DA-Transformer paper, from artificial results."""

import numpy as np
import pytest
from matplotlib import image

from experiments.papers import stored_results
from experiments.papers.da_transformer.published import METRICS
from experiments.papers.da_transformer.report import REPORT
from experiments.papers.da_transformer.settings import ADJUSTMENTS, MAPPINGS, ROWS
from tests.experiments.guiding_results import find_row

ENVIRONMENT = {
    "device": "a device",
    "commit": "0123456789abcdef-dirty",
    "packages": {"jax": "1.2", "flax": "3.4"},
}


def run(method, seeds, metrics, *, best=0.5, split=("validation", "test"), weights=(0.1,)):
    """Return a run in which seed i has best + i / 100 of every metric, in every setting."""
    members = [
        {
            "seed": seed,
            "setting": {"dropout_rate": 0.2, "initial_weight": weight},
            **{name: dict.fromkeys(metrics, best + seed / 100) for name in split},
        }
        for weight in weights
        for seed in range(seeds)
    ]
    result = {"method": method, "criterion": metrics[0], "steps": 120, "parameters": 7}
    return {
        "result": {**result, "baseline": {"test": {metrics[0]: 0.25}}, "members": members},
        "environment": ENVIRONMENT,
        "seconds": 60.0,
    }


def content(experiment, methods, **arguments):
    """Return the results of an experiment. Each method is 0.02 better than the one before."""
    about = {
        "rows": {"train": 1234, "validation": 56, "test": 78},
        "classes": 4,
        "average_length": 9.87,
        "sequence_lengths": {"text": 9.87},
        "said": ["a message"],
    }
    runs = {
        method: run(method, 3, METRICS[experiment], best=0.5 + i / 50, **arguments)
        for i, method in enumerate(methods)
    }
    return {"experiment": experiment, "data": about, "runs": runs}


def heads(heads=4, tokens=3, max_distance=15):
    """Return what `collect` keeps of the heads."""
    random = np.random.default_rng(0)
    weight = np.asarray([-0.5, -0.1, 0.2, 0.4])
    maps = random.dirichlet(np.ones(tokens), (heads, tokens))
    profile = np.full((heads, max_distance + 1), 1 / (max_distance + 1))
    both = {"tokens": list("abc"), "heads": [0, 1, 2, 3], "maps": maps}
    distances = {"heads": profile, "uniform": profile[0]}
    return {
        "heads": {"text": {"weight": np.tile(weight, (3, 1, 1)), "shape": np.zeros((3, 1, heads))}},
        "attention": {"vanilla": both, "distance_aware": {**both, "weight": weight}},
        "distances": {"vanilla": distances, "distance_aware": {**distances, "weight": weight}},
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    ag = content("ag", (*ROWS, *MAPPINGS, *ADJUSTMENTS[:1]))
    stored_results.write_results(stored_results.round_numbers({**ag, **heads()}), folder)
    stored_results.write_results(content("amazon_rating", ROWS), folder)
    search = content("ag", ROWS, split=("validation",), weights=(0.1, 0.5))
    stored_results.write_results({**search, "experiment": "ag_search"}, folder)
    (folder / "notes_da.md").write_text("Notes.\n")
    return folder


@pytest.fixture(scope="module")
def details(folder):
    return REPORT.detail(folder)


@pytest.fixture(scope="module")
def summary(folder):
    return REPORT.summarize(folder)


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
    assert "- AG's News: a message." in details
    assert details.startswith("Notes.\n")


def test_experiments_without_results_are_reported_as_not_run(details, summary):
    for heading in ("### Table 3: Amazon", "### Table 4: SST", "### Section 3.4"):
        assert details[details.index(heading) :].split("\n\n")[1] == "Not run."
    assert "MIND: not run." in details
    assert find_row(details, "impressions", "### Table 2: MIND\n\nOurs: not run.")[1] == "500,000"
    assert "SNLI: not searched." in details
    assert find_row(summary, "Transformer", "Test set, ours")[2] == "not run / 89.67 ± 0.22"
    assert find_row(summary, "DA, early add", "### Are its mapping")[2:] == ["not run"] * 5
    assert "**MIND** (Table 5): not run." in summary


def test_lower_errors_are_better(details):
    assert "Best on test RMSE: no positions, then Transformer" in details
    assert find_row(details, "mean rating", "### Figure 3")[2] == "0.2500"


@pytest.mark.parametrize(("sign", "kind"), [(1, "better"), (-1, "worse")])
def test_the_summary_counts_better_and_worse_comparisons(folder, sign, kind):
    contents = REPORT.read_contents(folder)
    ours, vanilla = (
        contents["ag"]["runs"][method]["result"]["members"]
        for method in ("distance_aware", "vanilla")
    )
    for gain, member, other in zip((0.28, 0.29, 0.30), ours, vanilla, strict=True):
        member["test"]["accuracy"] = other["test"]["accuracy"] + sign * gain
    text = REPORT.write_summary(contents, folder, "figures")
    # Mean 29, standard deviation 1, three seeds: t = 50 and p = 0.0004.
    difference = f"{29 * sign}.00"
    assert f"{kind} in 1" in text.splitlines()[2]
    assert f"(AG's News: {difference} points, p = 0.0004)" in text.splitlines()[2]
    assert (
        find_row(text, "Transformer", "| DA-Transformer minus")[1] == f"{difference} (p = 0.0004)"
    )
    assert "gains of 0.71 (AG's News), 0.82 (SST), 2.73 (SNLI), 1.23 (Amazon" in text


def test_heads_are_counted_by_the_sign_of_w(details, summary):
    expected = ["9.9", "50.00 ± 0.00", "-0.300", "0.300", "0.00"]
    assert find_row(details, "AG's News, text", "### Footnote 7")[1:] == expected
    assert find_row(summary, "AG's News, text", "### What do heads learn")[1:] == expected
    for text, heading in ((details, "### Attention by"), (summary, "| attention (%) on words")):
        assert find_row(text, "AG's News", heading)[1] == f"{100 * 5 / 16:.1f}"


def test_every_run_lists_device_versions_commit_and_speed(details):
    assert find_row(details, "ag_search/vanilla", "### Runs")[4] == "6"  # two settings, three seeds
    expected = ["a device", "jax 1.2, flax 3.4", "0123456789-dirty", "3", "120", "2", "1.0"]
    assert find_row(details, "ag/vanilla", "### Runs")[1:] == expected


def test_every_linked_figure_is_drawn(folder, summary):
    REPORT.draw_figures(folder, folder)
    links = [part.split(")")[0] for part in summary.split("](")[1:]]
    names = {link.split("/")[-1] for link in links}
    assert names == {f"figure_{i}.png" for i in (1, 2, 3, 4, 5, 6, 8)} | {"distances_ag.png"}
    for name in names:
        assert image.imread(folder / "figures" / name).ndim == 3


def test_settings_and_options_may_lack_keys(folder):
    contents = REPORT.read_contents(folder)
    for one in contents["ag"]["runs"].values():
        for member in one["result"]["members"]:
            member["setting"] = {}
        one["config"] = {}
    assert REPORT.write_details(contents, folder)
    assert REPORT.write_summary(contents, folder, "figures")
