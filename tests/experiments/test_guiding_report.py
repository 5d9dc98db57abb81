"""Tables and figures of the attention-guiding paper.

The page RESULTS.md is compared whole with the report. These tests change the stored results.
"""

import jax
import numpy as np
import pytest

from experiments.papers.attention_guiding import costs, head_statistics, report
from experiments.papers.attention_guiding.report import REPORT
from experiments.papers.page import read_published
from tests.experiments import stored
from tests.experiments.stored import find_row


@pytest.fixture
def contents():
    """Return a copy of the stored results by experiment."""
    return stored.read("multinli*", "covid_fact*", "guiding_speed")


def results(contents):
    return stored.make_results(*contents.values())


def members(contents, name, guide):
    return contents[name]["runs"][guide]["result"]["members"]


def set_scores(contents, name, metric="accuracy", **scores):
    """Set the main metric of the first seeds of guides, and remove all other seeds."""
    for guide, values in scores.items():
        del members(contents, name, guide)[len(values) :]
        for member, value in zip(members(contents, name, guide), values, strict=True):
            member["validation"][metric] = member["test"][metric] = value


def test_guides_are_tested_against_no_guide_and_against_ag_on_shared_seeds(contents):
    set_scores(contents, "multinli", none=[0.70, 0.71, 0.75], ag=[0.72, 0.75, 0.77])
    set_scores(contents, "multinli", mdg=[0.70, 0.72])
    table = report.guide_tests(results(contents), "multinli", "3")
    row = find_row(table, "AG")
    assert row[1:3] == ["2.67 points", "3"]  # 2, 4 and 2 points
    assert float(row[3]) == pytest.approx(0.057, abs=0.001)  # t = 4 with 2 degrees of freedom
    assert row[5:] == ["-"] * 4
    row = find_row(table, "MDG")
    assert [row[1], row[2], row[5], row[6]] == ["0.50 points", "2", "2.50 points", "2"]


def test_guides_count_their_settings_and_missing_ones_are_not_run(contents):
    del contents["multinli"]["runs"]["dependency"]
    table = report.guide_rows(results(contents), "multinli", "2")
    assert find_row(table, "AG")[2:4] == ["alpha 0.001, beta 0.0001", "16"]
    assert find_row(table, "[Dependency]")[1:6] == [*["not run"] * 4, "83.59"]
    assert find_row(table, "majority label")[1:6] == ["-", "-", "-", "33.02", "-"]
    assert "8.3.57 (sic)" in find_row(table, "[Prev]")
    for member in members(contents, "multinli", "ag"):
        member["setting"]["alpha"] = 0.5  # not the setting that the search chose
    assert report.count_settings(results(contents), "multinli")["ag"] == 1
    assert find_row(report.guide_rows(results(contents), "mednli", "2"), "[PMI]")[4] == "not run"


def test_repeated_runs_are_compared_on_the_mean_of_each_seed(contents):
    for name, mdg in (("covid_fact", [0.75, 0.79, 0.81]), ("covid_fact_again_1", [0.73, 0.77])):
        set_scores(contents, name, "mrr", none=[0.70, 0.71, 0.75][: len(mdg)], mdg=mdg)
        for guide in ("pdg", "first", "next"):
            del contents[name]["runs"][guide]
        for run in contents[name]["runs"].values():
            run["config"]["seeds"] = len(mdg)
    made = results({name: contents[name] for name in ("covid_fact", "covid_fact_again_1")})
    table = report.repeated_runs(made, "covid_fact")
    assert "range of a single seed: no guide 0.00 points, MDG 2.00 points." in table
    assert find_row(table, "covid_fact")[3] == "6.33 points"  # 5, 8 and 6
    together = find_row(table, "mean of each seed")
    assert together[1:4] == ["70.50 ± 0.71", "76.00 ± 2.83", "5.50 points"]  # 4 and 7
    assert report.repetitions(made, "covid_fact", "count") == "2"


def test_a_repetition_in_the_newer_format_is_compared_with_an_older_experiment(contents):
    older, newer = contents["multinli"], contents["multinli_again_1"]
    digests = {"raw files of the data": older["data"]["raw_files"]}
    kept = {name: older["data"][name] for name in ("rows", "pretrained")}
    newer["data"] = {**kept, "digests": digests}
    for guide in ("none", "mdg"):  # Neither reads gamma.
        newer["runs"][guide]["config"]["guiding.gamma"] = [0.123]
        newer["runs"][guide]["config"].pop("optimizer.name", None)
    assert "| multinli_again_1 |" in report.repeated_runs(results(contents), "multinli")
    digests["raw files of the data"] = "89ab"
    with pytest.raises(ValueError, match="multinli_again_1 must have the data of multinli"):
        report.repeated_runs(results(contents), "multinli")


@pytest.mark.parametrize(
    ("name", "guide", "field", "value", "error"),
    [
        ("multinli_share_20", "pdg", "data.share", 0.4, r"be of 20 %; got data.share 0\.4"),
        ("multinli", "ag", "data.share", 0.5, r"be of 100 %; got data.share 0\.5"),
        ("multinli_again_1", "mdg", "epochs", 9.0, "have the options of multinli; those of mdg"),
    ],
)
def test_results_that_contradict_their_name_are_rejected(
    contents, name, guide, field, value, error
):
    contents[name]["runs"][guide]["config"][field] = value
    with pytest.raises(ValueError, match=f"{name} must {error}"):
        REPORT.summarize(results(contents))


@pytest.mark.parametrize("wrong", [-1, 1])
def test_the_layer_sweep_needs_one_setting_for_each_layer(contents, wrong):
    members(contents, "multinli_layers", "mdg")[-1]["setting"] |= {"layer": wrong, "alpha": 0.5}
    with pytest.raises(ValueError, match="multinli_layers must have one setting for each"):
        report.layers(results(contents))


def test_memory_and_seconds_of_runs_that_cannot_be_compared_are_marked(contents):
    table = costs.memory(results(contents))
    assert find_row(table, "AG")[1] == "received attention"
    assert find_row(table, "[First]")[3].startswith("2.6")
    assert "(+7.0 %; 6 models, NVIDIA H200)" in costs.epochs(results(contents))
    contents["multinli"]["runs"]["ag"]["result"]["at_once"] = 1
    members(contents, "multinli", "ag").pop()
    del contents["multinli"]["runs"]["pmi"]
    table = costs.memory(results(contents))
    assert find_row(table, "AG")[2:4] == ["not known", "-"]
    assert find_row(table, "[PMI]")[2:4] == ["not run", "-"]
    cell = "7.3 (6 models, NVIDIA H200) → 7.8 (5 models, NVIDIA H200)"
    assert cell in costs.epochs(results(contents))


def test_options_that_differ_or_are_missing_are_shown(contents):
    run = contents["multinli"]["runs"]["ag"]
    run["config"]["epochs"] = 2.5
    row = find_row(costs.models(results(contents), "multinli*"), "multinli")
    assert row[1:8:2] == ["minilm", "bert", "12", "BF16"]
    assert row[11] == "4, 2.5"
    contents["multinli"]["runs"] = {"ag": run}
    run["config"] = {"epochs": 2.0, "optimizer.weight_decay": 0.1}
    row = find_row(costs.models(results(contents), "multinli*"), "multinli")
    assert row[8:] == ["-", "adamw", "-", "2", "-", "-", "-"]


def test_every_linked_figure_is_drawn(contents):
    made = results(contents)
    pictures = REPORT.list_pictures(made)
    assert stored.find_links(REPORT.summarize(made)) == {f"{name}.png" for name in pictures}
    assert [len(draw().axes) > 0 for draw in pictures.values()] == [True] * 5


def test_without_results_everything_is_not_run():
    empty = stored.make_results()
    details, summary = REPORT.detail(empty, ""), REPORT.summarize(empty)
    assert find_row(details, "-", "### Table 4")[1:] == ["ours", *["not run"] * 4]
    assert "MultiNLI (ours: not run; published: Roberta):" in details
    assert find_row(summary, "MultiNLI (not run), accuracy of every guide")[1:] == ["not run"] * 3
    assert "Figures:" not in summary


def test_published_tables_agree_with_each_other():
    published = read_published("attention_guiding")
    strip = {row: {k: v.rstrip("*") for k, v in one.items()} for row, one in published["1"].items()}
    assert published["2"]["none"] == published["1"]["BERT"]
    assert {k: v.rstrip("*") for k, v in published["2"]["ag"].items()} == strip["BERT+AG"]
    for data, model in report.ABLATION_MODELS.items():
        names = [name for name in strip[model] if name.startswith(data)]
        ablated = published["3"]["none"]
        assert {n: ablated[n] for n in names} == {n: published["1"][model][n] for n in names}


def test_principal_components_are_computed_from_all_models_together():
    random = np.random.default_rng(0)
    direction, other = np.eye(9)[:2].reshape(2, 3, 3)
    far, near = random.normal(size=(2, 2, 3))
    maps = {"a": 5 * far[..., None, None] * direction, "b": near[..., None, None] * other}
    points, explained = head_statistics.principal_components(maps)
    assert points["a"].shape == (2, 3, 2)
    assert explained.sum() == pytest.approx(1)
    # Two components keep the distances between these maps.
    for model in maps:
        away, at = maps[model][0, 0] - maps[model][1, 2], points[model][0, 0] - points[model][1, 2]
        assert np.linalg.norm(at) == pytest.approx(np.linalg.norm(away))


def test_similarity_of_equal_heads_is_one_and_of_disjoint_heads_zero():
    alike = np.full((1, 1, 2, 2, 2), 0.5)
    apart = np.stack([np.eye(2)[[0, 0]], np.eye(2)[[1, 1]]])[None, None]
    compute = jax.jit(head_statistics.compute_statistics)
    for weights, expected in ((alike, (0, 1, 0.5)), (apart, (0.5, 0, 0.5))):
        found = compute(weights, np.array([2]), np.array([[1, 0]]))
        got = [float(found[name][0]) for name in ("spread", "likeness", "special")]
        assert got == pytest.approx(expected, abs=1e-6)


def test_padding_does_not_change_head_statistics():
    random = np.random.default_rng(0)
    weights = random.dirichlet(np.ones(3), (1, 2, 2, 3))
    padded = random.random((1, 2, 2, 5, 5))
    padded[..., :3, :3] = weights
    compute = jax.jit(head_statistics.compute_statistics)
    short, long = (compute(w, np.array([3]), np.ones((1, w.shape[-1]))) for w in (weights, padded))
    for name in head_statistics.STATISTICS:
        np.testing.assert_allclose(short[name], long[name], rtol=1e-6)
