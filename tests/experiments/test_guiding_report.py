"""Tables and figures of the attention-guiding paper, from artificial results."""

import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib import image

from distattn_jax.tasks.guides import GUIDES
from experiments.papers import stored_results
from experiments.papers.attention_guiding import head_statistics, published, repeated_runs
from experiments.papers.attention_guiding.published import RANKING
from experiments.papers.attention_guiding.report import REPORT
from tests.experiments.guiding_results import DATA, content, find_row, heads, search, speed

MEMORY = "| guide | uses | MultiNLI, GB per model |"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    guides = [guide for guide in GUIDES if guide != "dependency"]
    stored_results.write_results(
        stored_results.round_numbers({**content("multinli", guides), **heads()}), folder
    )
    ranked = content("covid_fact", ("none", "ag"), RANKING, data={**DATA, "classes": 0})
    stored_results.write_results(ranked, folder)
    weights = search("multinli_search", ("none", "ag", "mdg"), alpha=(0.1, 0.01, 0.001))
    stored_results.write_results(weights, folder)
    rates = search("multinli_rates", ("none",), learning_rate=(1e-5, 3e-5))
    stored_results.write_results(rates, folder)
    layers = [{"layer": 1}, {"layer": 0}]
    stored_results.write_results(content("multinli_layers", ("mdg",), grid=layers), folder)
    stored_results.write_results(
        content("multinli_share_20", ("none", "pdg"), **{"data.share": 0.2}), folder
    )
    stored_results.write_results(content("multinli_again_1", ("none", "mdg")), folder)
    stored_results.write_results(speed(), folder)
    return folder


@pytest.fixture(scope="module")
def details(folder):
    return REPORT.detail(folder)


@pytest.fixture(scope="module")
def summary(folder):
    return REPORT.summarize(folder)


def test_guides_are_compared_with_published_numbers_and_count_their_settings(details):
    # Without a guide 70, 71 and 75 %. AG has 2 points more, and 4 on the second seed.
    assert find_row(details, "no guide", "### Table 2")[1:6] == [
        "3",
        "-",
        "1",
        "72.00 ± 2.65",
        "83.24",
    ]
    ours = find_row(details, "AG", "### Table 2")
    assert ours[1:6] == ["3", "alpha 0.1, beta 0.1", "3", "74.67 ± 2.52", r"83.89\*"]
    assert find_row(details, "[First]", "### Table 2")[2:4] == [
        "gamma 1",
        "1",
    ]  # It was not searched.
    assert find_row(details, "[Dependency]", "### Table 2")[1:6] == [*["not run"] * 4, "83.59"]
    assert find_row(details, "majority label", "### Table 2")[1:6] == ["-", "-", "-", "25.00", "-"]
    assert find_row(details, "default (AG)", "### Table 3")[2:4] == ["74.67 ± 2.52", r"86.77\*"]
    assert find_row(details, "w/o MDG (PDG)", "### Table 3")[3] == "86.52"


def test_guides_are_tested_against_no_guide_and_against_ag_without_correction(details):
    header = "| guide | minus no guide, accuracy | pairs | p | detectable | AG minus it, accuracy |"
    against = find_row(details, "AG", header)
    assert against[1:3] == ["2.67 points", "3"]  # 2, 4 and 2 points
    assert float(against[3]) == pytest.approx(0.057, abs=0.001)  # t = 4 with 2 degrees of freedom
    assert against[5:] == ["-"] * 4
    assert find_row(details, "no guide", header)[1:] == ["-"] * 8
    # Eight guides against none. The differences to AG are constant, so they are not tested.
    assert "two-sided, 8 in this table; p is not corrected." in details
    assert "below 0.0063 for a significance level of 0.05" in details


def test_tests_use_shared_seeds_and_count_them(folder):
    contents = REPORT.read_contents(folder)
    contents["multinli"]["runs"]["none"] = content("multinli", ("none",), seeds=4)["runs"]["none"]
    contents["multinli"]["runs"]["mdg"]["result"]["members"].pop()
    details = REPORT.write_details(contents, folder)
    assert [find_row(details, guide, "### Table 2")[1] for guide in ("no guide", "AG")] == [
        "4",
        "3",
    ]
    header = "| guide | minus no guide, accuracy | pairs |"
    assert find_row(details, "AG", header)[2] == "3"
    after = details[details.index("### Table 3") :]
    mdg = find_row(after, "MDG", header)
    assert (mdg[2], mdg[6]) == ("2", "2")
    assert "paired t-tests over 2 to 3 seeds, two-sided" in details[details.index("### Figure 6") :]


def test_missing_results_are_marked_not_run_in_every_cell(details):
    medical = "\n\nMedNLI:\n\n"
    assert find_row(details, "-", medical)[1:] == ["ours", *["not run"] * 4]
    assert find_row(details, "BERT", medical)[2:] == ["76.02", "76.25", "76.01", "76.11"]
    medical = "MedNLI (ours: not run; published: BERT):"
    assert find_row(details, "[PMI]", medical)[1:6] == [*["not run"] * 4, "77.07"]
    assert find_row(details, "-", "Cross-genre-IR:\n\n")[2:] == ["not run"] * 5
    assert find_row(details, "2", "### Figure 3")[4:] == ["not run"] * 6
    assert find_row(details, "60", "### Figure 6")[1:] == ["not run"] * 10
    assert "MedNLI: not searched." in details


def test_misprints_of_the_paper_are_marked_and_explained(details):
    assert find_row(details, "SciBERT+AG", "\n\nMedNLI:\n\n")[-1] == r"83.01\* (sic)"
    assert "8.3.57 (sic)" in find_row(details, "[Prev]", "### Table 2")
    assert "83.57" in details[details.index("### Errata") :]


def test_published_tables_agree_with_each_other():
    for data in published.METRICS:
        models = published.select_data_set(published.TABLE_1, data)
        guides = published.select_data_set(published.TABLE_2, data)
        assert guides["none"] == models["BERT"]
        plain = {metric: figure.rstrip("*") for metric, figure in models["BERT+AG"].items()}
        assert {metric: figure.rstrip("*") for metric, figure in guides["ag"].items()} == plain
        best = models[published.ABLATION_MODELS[data]]
        assert published.select_data_set(published.TABLE_3, data)["none"] == best


def test_layers_and_shares_are_compared_with_no_guide_by_seed(details):
    assert find_row(details, "2", "### Figure 3")[1:3] == ["72.00 ± 2.65", "0.00 points"]
    assert find_row(details, "1", "### Figure 3")[1:3] == ["71.00 ± 2.65", "-1.00 points"]
    shares = find_row(details, "20", "### Figure 6")
    assert shares[1] == "72.00 ± 2.65"
    assert shares[-3:-1] == ["74.67 ± 2.52", "2.67 points"]
    assert find_row(details, "100", "### Figure 6")[1] == "72.00 ± 2.65"


def test_repeated_runs_are_listed_with_the_mean_of_each_seed(details, summary):
    # MDG is 4 points better than none in one run, 2 in the other, and 2 more on the second seed.
    header = "### Repeated runs"
    assert "range of a single seed: no guide 0.00 points, MDG 2.00 points." in details
    assert "**MultiNLI, 2 runs of each seed**, averaged, against no guide: MDG 3.67" in summary
    assert "A single seed differs by up to 2.00 points between runs." in summary
    assert find_row(details, "multinli", header)[1:4] == [
        "72.00 ± 2.65",
        "76.67 ± 2.52",
        "4.67 points",
    ]
    assert find_row(details, "multinli_again_1", header)[3] == "2.67 points"
    together = find_row(details, "mean of each seed", header)
    assert together[1:4] == ["72.00 ± 2.65", "75.67 ± 2.52", "3.67 points"]
    assert float(together[4]) == pytest.approx(0.032, abs=0.001)  # 3, 5 and 3 points: t = 5.5


def test_repetitions_with_fewer_seeds_are_compared_on_shared_seeds(folder):
    contents = REPORT.read_contents(folder)
    for run in contents["multinli_again_1"]["runs"].values():
        run["config"]["seeds"] = 2
        del run["result"]["members"][2:]
    found = repeated_runs.repetition_table(contents, "multinli")
    assert find_row(found, "multinli", "| experiment |")[1:4] == [
        "72.00 ± 2.65",
        "76.67 ± 2.52",
        "4.67 points",
    ]
    together = find_row(found, "mean of each seed", "| experiment |")
    assert together[1:4] == ["70.50 ± 0.71", "74.50 ± 2.12", "4.00 points"]  # 70 and 71 %
    assert repeated_runs.repetition_table(contents, "covid_fact") == ""


def test_a_repetition_in_the_newer_format_is_compared_with_an_older_experiment(folder):
    contents = REPORT.read_contents(folder)
    older, newer = contents["multinli"], contents["multinli_again_1"]
    older["data"]["raw_files"] = "4567"
    newer["data"] = {
        **{name: older["data"][name] for name in ("rows", "average_length", "pretrained")},
        "messages": ["another message"],
        "digests": {"raw files of the data": "4567", "pre-trained weights": "0123"},
    }
    for guide in ("none", "mdg"):  # Neither reads gamma.
        older["runs"][guide]["config"] |= {"guiding.gamma": [0.1], "task": "multinli"}
        newer["runs"][guide]["config"] |= {"guiding.gamma": [1.0], "data.dataset": "multinli"}
        del newer["runs"][guide]["config"]["optimizer.name"]
    details = REPORT.write_details(contents, folder)
    assert find_row(details, "multinli_again_1", "### Repeated runs")[3] == "2.67 points"
    assert "`multinli_again_*`" in details[: details.index("### Table 2")]
    newer["data"]["digests"]["raw files of the data"] = "89ab"
    with pytest.raises(ValueError, match="multinli_again_1 must have the data of multinli"):
        REPORT.write_details(contents, folder)


@pytest.mark.parametrize(
    ("name", "guide", "field", "value", "error"),
    [
        ("multinli_share_20", "pdg", "data.share", 0.4, r"be of 20 %; got data.share 0\.4"),
        ("multinli", "ag", "data.share", 0.5, r"be of 100 %; got data.share 0\.5"),
        (
            "multinli_again_1",
            "mdg",
            "epochs",
            9.0,
            "have the options of multinli; those of mdg differ",
        ),
    ],
)
def test_results_that_contradict_their_name_are_rejected(folder, name, guide, field, value, error):
    contents = REPORT.read_contents(folder)
    contents[name]["runs"][guide]["config"][field] = value
    with pytest.raises(ValueError, match=f"{name} must {error}"):
        REPORT.write_details(contents, folder)


def test_memory_per_model_is_listed_for_every_guide(details, summary):
    assert find_row(details, "[First]", MEMORY)[1:4] == ["attention maps", "8.00", "4.00"]
    assert find_row(details, "AG", MEMORY)[1:4] == ["received attention", "2.00", "1.00"]
    assert find_row(details, "[Dependency]", MEMORY)[2:4] == ["not run", "-"]
    costs = find_row(summary, "with received attention (AG, MDG, PDG)", "### What does it cost")
    assert costs[1:] == ["1.050", "1.025", "1.00", "1.00"]


def test_memory_per_model_is_unknown_if_models_are_computed_in_parts(folder):
    contents = REPORT.read_contents(folder)
    contents["multinli"]["runs"]["ag"]["result"]["at_once"] = 1
    assert find_row(REPORT.write_details(contents, folder), "AG", MEMORY)[2:4] == ["not known", "-"]


def test_the_layer_sweep_needs_one_setting_for_each_layer(folder):
    for wrong in (-1, 1):
        contents = REPORT.read_contents(folder)
        contents["multinli_layers"]["runs"]["mdg"]["result"]["members"][-1]["setting"] |= {
            "layer": wrong,
            "alpha": 0.5,
        }
        with pytest.raises(ValueError, match="multinli_layers must have one setting for each"):
            REPORT.write_details(contents, folder)


def test_every_linked_figure_is_drawn(folder, summary):
    REPORT.draw_figures(folder, folder)
    names = {part.split(")")[0].split("/")[-1] for part in summary.split("](")[1:]}
    stems = ("table_2", "figure_3", "figure_4", "figure_5", "figure_6")
    assert names == {f"guiding_{stem}.png" for stem in stems}
    for name in names:
        assert image.imread(folder / "figures" / name).ndim == 3


def test_an_empty_folder_is_reported_as_not_run(tmp_path):
    details, summary = REPORT.detail(tmp_path), REPORT.summarize(tmp_path)
    assert "One training step: not run." in details
    assert "**Not run**: MultiNLI, MedNLI, Cross-genre-IR, COVID-Fact." in summary
    assert "Figures:" not in summary


def test_the_summary_tests_every_guide_against_no_guide(summary):
    header = "| guide | MultiNLI, accuracy (%) |"
    assert find_row(summary, "no model", header)[1:5] == ["25.00 (majority label)", "-", "-", "-"]
    assert find_row(summary, "AG", header)[1:4] == [
        "74.67 ± 2.52",
        "2.67 (p = 0.057)",
        "+0.65 (BERT)",
    ]
    assert find_row(summary, "PDG", header)[3] == "+0.57 (Roberta)"
    assert find_row(summary, "[Dependency]", header)[1:3] == ["not run", "not run"]
    assert "**COVID-Fact** (tiny), MRR of every guide against no guide: better in none" in summary
    assert "**Training rows**, ours / published: MultiNLI 1,234 / 433k" in summary


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
    lengths, special = jnp.asarray([2]), jnp.asarray([[1, 0]])
    for weights, expected in ((alike, (0, 1, 0.5)), (apart, (0.5, 0, 0.5))):
        found = head_statistics.compute_statistics(jnp.asarray(weights), lengths, special)
        got = [float(found[name][0]) for name in ("spread", "likeness", "special")]
        assert got == pytest.approx(expected, abs=1e-6)


def test_padding_does_not_change_head_statistics():
    random = np.random.default_rng(0)
    weights = random.dirichlet(np.ones(3), (1, 2, 2, 3))
    padded = random.random((1, 2, 2, 5, 5))
    padded[..., :3, :3] = weights
    short, long = (
        head_statistics.compute_statistics(
            jnp.asarray(w), jnp.asarray([3]), jnp.ones((1, w.shape[-1]))
        )
        for w in (weights, padded)
    )
    for name in head_statistics.STATISTICS:
        np.testing.assert_allclose(short[name], long[name], rtol=1e-6)


def test_heads_of_a_guide_are_compared_with_those_without_a_guide(details):
    after = details[details.index("### Figures 4 and 5") :]
    assert "The first 32 pairs" in after
    assert find_row(after, "MDG", "### Figures 4")[2:5] == ["0.5500 ± 0.0707", "0.0000", "-"]
    assert find_row(after, "MDG", "### Figures 4")[9] == "0.2917"  # 0.25 and 0.333
