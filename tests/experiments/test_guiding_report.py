"""Tables and figures of the attention-guiding paper, from artificial results."""

import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib import image

from distattn_jax.tasks.guides import GUIDES
from experiments.papers.attention_guiding import head_statistics, report
from experiments.papers.attention_guiding.report import CLASSIFICATION, RANKING, REPORT
from experiments.papers.page import read_published
from tests.experiments import stored
from tests.experiments.stored import find_row

NOISE = (0.0, 0.01, 0.05, 0.02)  # by seed
PRETRAINED = {
    **{"name": "tiny", "digest": "0123", "stored": ["BF16"]},
    "config": {"family": "bert", "layers": 2, "heads": 3, "features": 12},
}
DATA = {**stored.DATA, "classes": 3, "pretrained": PRETRAINED}
OTHER = {**DATA, "classes": 0, "pretrained": {**PRETRAINED, "name": "other", "stored": ["F32"]}}
CONFIG = {
    **{"epochs": 2.0, "guiding.scaling": "mean", "data.share": 1.0, "data.batch_size": 8},
    **{"data.longest": 16, "model.dtype": "bfloat16", "optimizer.name": "adam"},
    "optimizer.learning_rate": [1e-5],
}
SETTING = {"learning_rate": 1e-5, "alpha": 0.1, "beta": 0.1, "gamma": 1.0}
MEMORY = "| guide | uses | MultiNLI, GB per model |"
TESTS = "| guide | minus no guide, accuracy | pairs | p | detectable | AG minus it, accuracy |"


def content(name, guides, metrics=CLASSIFICATION, *, seeds=3, grid=({},), data=DATA, **more):
    """Return the results of an experiment. Each guide is 0.02 better than the one before.

    A guide gains 0.02 more on every second seed. Each entry of `grid` replaces options of the
    setting; each setting is 0.01 worse than the one before.
    """
    scores = {
        guide: [0.7 + i / 50 + NOISE[s] + 0.02 * (s % 2) * (i > 0) for s in range(seeds)]
        for i, guide in enumerate(guides)
    }
    config = {**CONFIG, **more.pop("config", {})}
    settings = [{**SETTING, **point} for point in grid]
    if metrics == CLASSIFICATION and "splits" not in more:
        more["baseline"] = {"test": {"accuracy": 0.25}}
    made = stored.content(
        name, scores, metrics, data=data, config=config, settings=settings, **more
    )
    for guide, run in made["runs"].items():
        count = len(run["result"]["members"])
        run["result"]["step_bytes"] = (8e9 if GUIDES[guide].maps else 2e9) * count
        run["step_seconds"] = 0.5 if guide == "none" else 0.525
        run["config"] = dict(config)
    return made


def heads(layers=2, heads=3, tokens=4):
    """Return head statistics of all guides."""
    random = np.random.default_rng(0)
    shape = (layers, heads, tokens)
    maps = {guide: random.dirichlet(np.ones(tokens), shape) for guide in head_statistics.GUIDES}
    points, explained = head_statistics.principal_components(maps)
    statistics = {
        guide: {
            **{"seeds": [0, 1], "pairs": 32, "spread": [0.5, 0.6], "likeness": [0.9, 0.9]},
            "special": [0.25 + i / 4, 0.27 + i / 3],
        }
        for i, guide in enumerate(maps)
    }
    return {
        **{"tokens": ["[CLS]", "a", "##b", "[SEP]"], "points": points, "explained": explained},
        "maps": {guide: weights.mean((0, 1)) for guide, weights in maps.items()},
        "heads": statistics,
    }


def make_contents():
    """Return results by experiment."""
    guides = [guide for guide in GUIDES if guide != "dependency"]
    searched = {"splits": ("validation",)}
    search = content("multinli_search", ("none",), **searched)
    for guide in ("ag", "mdg"):
        grid = [{"alpha": alpha} for alpha in (0.1, 0.01, 0.001)]
        search["runs"] |= content("multinli_search", (guide,), grid=grid, **searched)["runs"]
    rates = {"optimizer.learning_rate": [1e-5, 3e-5]}
    lines = [
        {"method": "none", "seeds": 1, "bare": 10.0, "peak_bytes": 4e9},
        {"method": "ag", "seeds": 1, "bare": 10.5, "peak_bytes": 4.1e9},
    ]
    sizes = {"model.layers": 6, "model.heads": 12, "model.features": 384, "length": 256}
    speed = {"experiment": "guiding_speed", "environment": stored.ENVIRONMENT, "config": sizes}
    contents = [
        {**content("multinli", guides), "guided": heads()},
        content("covid_fact", ("none", "ag"), RANKING, data=OTHER, config={"data.batch_size": 4}),
        search,
        content(
            *("multinli_rates", ("none",)),
            grid=[{"learning_rate": rate} for rate in (1e-5, 3e-5)],
            config=rates,
            **searched,
        ),
        content("multinli_layers", ("mdg",), grid=[{"layer": 1}, {"layer": 0}]),
        content("multinli_share_20", ("none", "pdg"), config={"data.share": 0.2}),
        content("multinli_again_1", ("none", "mdg")),
        {**speed, "lines": lines},
    ]
    return {one["experiment"]: one for one in contents}


def detail(contents):
    return REPORT.detail(stored.make_results(*contents.values()), "")


@pytest.fixture(scope="module")
def results():
    return stored.make_results(*make_contents().values())


@pytest.fixture(scope="module")
def details(results):
    return REPORT.detail(results, "")


@pytest.fixture(scope="module")
def summary(results):
    return REPORT.summarize(results)


def test_guides_are_compared_with_published_numbers_and_count_their_settings(details):
    table = "### Table 2"
    # Without a guide 70, 71 and 75 %. AG has 2 points more, and 4 on the second seed.
    assert find_row(details, "no guide", table)[1:6] == ["3", "-", "1", "72.00 ± 2.65", "83.24"]
    ours = find_row(details, "AG", table)
    assert ours[1:6] == ["3", "alpha 0.1, beta 0.1", "3", "74.67 ± 2.52", r"83.89\*"]
    assert find_row(details, "[First]", table)[2:4] == ["gamma 1", "1"]  # It was not searched.
    assert find_row(details, "[Dependency]", table)[1:6] == [*["not run"] * 4, "83.59"]
    assert find_row(details, "majority label", table)[1:6] == ["-", "-", "-", "25.00", "-"]
    assert find_row(details, "default (AG)", "### Table 3")[2:4] == ["74.67 ± 2.52", r"86.77\*"]
    assert find_row(details, "w/o MDG (PDG)", "### Table 3")[3] == "86.52"


def test_searched_settings_count_only_if_the_best_one_was_used():
    contents = make_contents()
    contents["multinli"] = content("multinli", ("none", "ag", "mdg"), grid=({"alpha": 0.5},))
    made = stored.make_results(*contents.values())
    assert report.count_settings(made, "multinli") == {"none": 1, "ag": 1, "mdg": 1}


def test_guides_are_tested_against_no_guide_and_against_ag(details):
    against = find_row(details, "AG", TESTS)
    assert against[1:3] == ["2.67 points", "3"]  # 2, 4 and 2 points
    assert float(against[3]) == pytest.approx(0.057, abs=0.001)  # t = 4 with 2 degrees of freedom
    assert against[5:] == ["-"] * 4
    assert find_row(details, "no guide", TESTS)[1:] == ["-"] * 8


def test_tests_use_shared_seeds_and_count_them():
    contents = make_contents()
    runs = contents["multinli"]["runs"]
    runs["none"] = content("multinli", ("none",), seeds=4)["runs"]["none"]
    runs["mdg"]["result"]["members"].pop()
    details = detail(contents)
    assert [find_row(details, g, "### Table 2")[1] for g in ("no guide", "AG")] == ["4", "3"]
    assert find_row(details, "AG", TESTS)[2] == "3"
    mdg = find_row(details[details.index("### Table 3") :], "MDG", TESTS)
    assert (mdg[2], mdg[6]) == ("2", "2")


def test_missing_results_are_marked_not_run(details):
    medical = "\n\nMedNLI:\n\n"
    assert find_row(details, "-", medical)[1:] == ["ours", *["not run"] * 4]
    assert find_row(details, "BERT", medical)[2:] == ["76.02", "76.25", "76.01", "76.11"]
    medical = "MedNLI (ours: not run; published: BERT):"
    assert find_row(details, "[PMI]", medical)[1:6] == [*["not run"] * 4, "77.07"]
    assert find_row(details, "2", "### Figure 3")[4:] == ["not run", "-", "-"] * 2
    assert find_row(details, "60", "### Figure 6")[1:3] == ["not run", "not run"]
    assert "mednli_search:\n\nNot run." in details


def test_misprints_of_the_paper_are_marked_and_explained(details):
    assert find_row(details, "SciBERT+AG", "\n\nMedNLI:\n\n")[-1] == r"83.01\* (sic)"
    assert "8.3.57 (sic)" in find_row(details, "[Prev]", "### Table 2")
    assert "83.57" in details[details.index("### Errata") :]


def test_published_tables_agree_with_each_other():
    published = read_published("attention_guiding")
    strip = {row: {k: v.rstrip("*") for k, v in one.items()} for row, one in published["1"].items()}
    assert published["2"]["none"] == published["1"]["BERT"]
    assert {k: v.rstrip("*") for k, v in published["2"]["ag"].items()} == strip["BERT+AG"]
    for data, model in report.ABLATION_MODELS.items():
        names = [name for name in strip[model] if name.startswith(data)]
        ablated = published["3"]["none"]
        assert {n: ablated[n] for n in names} == {n: published["1"][model][n] for n in names}


def test_layers_and_shares_are_compared_with_no_guide_by_seed(details):
    assert find_row(details, "2", "### Figure 3")[1:3] == ["72.00 ± 2.65", "0.00 points"]
    assert find_row(details, "1", "### Figure 3")[1:3] == ["71.00 ± 2.65", "-1.00 points"]
    shares = find_row(details, "20", "### Figure 6")
    assert [shares[1], *shares[-3:-1]] == ["72.00 ± 2.65", "74.67 ± 2.52", "2.67 points"]
    assert find_row(details, "100", "### Figure 6")[1] == "72.00 ± 2.65"


def test_repeated_runs_are_listed_with_the_mean_of_each_seed(details, summary):
    # MDG is 4 points better than none in one run, 2 in the other, and 2 more on the second seed.
    header = "### Repeated runs"
    assert "range of a single seed: no guide 0.00 points, MDG 2.00 points." in details
    assert "**MultiNLI, 2 runs of each seed**, averaged, against no guide: MDG 3.67" in summary
    assert "A single seed differs by up to 2.00 points between runs." in summary
    first = ["72.00 ± 2.65", "76.67 ± 2.52", "4.67 points"]
    assert find_row(details, "multinli", header)[1:4] == first
    assert find_row(details, "multinli_again_1", header)[3] == "2.67 points"
    together = find_row(details, "mean of each seed", header)
    assert together[1:4] == ["72.00 ± 2.65", "75.67 ± 2.52", "3.67 points"]
    assert float(together[4]) == pytest.approx(0.032, abs=0.001)  # 3, 5 and 3 points: t = 5.5


def test_repetitions_with_fewer_seeds_are_compared_on_shared_seeds():
    contents = make_contents()
    for run in contents["multinli_again_1"]["runs"].values():
        run["config"]["seeds"] = 2
        del run["result"]["members"][2:]
    made = stored.make_results(*contents.values())
    found = report.repeated_runs(made, "multinli")
    assert find_row(found, "multinli")[1] == "72.00 ± 2.65"
    together = find_row(found, "mean of each seed")
    assert together[1:4] == ["70.50 ± 0.71", "74.50 ± 2.12", "4.00 points"]  # 70 and 71 %
    assert report.repeated_runs(made, "covid_fact") == "Not run."


def test_a_repetition_in_the_newer_format_is_compared_with_an_older_experiment():
    contents = make_contents()
    older, newer = contents["multinli"], contents["multinli_again_1"]
    older["data"] = {**DATA, "raw_files": "4567"}
    digests = {"raw files of the data": "4567"}
    newer["data"] = {"rows": DATA["rows"], "pretrained": PRETRAINED, "digests": digests}
    for guide in ("none", "mdg"):  # Neither reads gamma.
        older["runs"][guide]["config"] |= {"guiding.gamma": [0.1], "task": "multinli"}
        newer["runs"][guide]["config"] |= {"guiding.gamma": [1.0], "data.dataset": "multinli"}
        del newer["runs"][guide]["config"]["optimizer.name"]
    row = find_row(detail(contents), "multinli_again_1", "### Repeated runs")
    assert row[3] == "2.67 points"
    digests["raw files of the data"] = "89ab"
    with pytest.raises(ValueError, match="multinli_again_1 must have the data of multinli"):
        detail(contents)


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
def test_results_that_contradict_their_name_are_rejected(name, guide, field, value, error):
    contents = make_contents()
    contents[name]["runs"][guide]["config"][field] = value
    with pytest.raises(ValueError, match=f"{name} must {error}"):
        detail(contents)


@pytest.mark.parametrize("wrong", [-1, 1])
def test_the_layer_sweep_needs_one_setting_for_each_layer(wrong):
    contents = make_contents()
    models = contents["multinli_layers"]["runs"]["mdg"]["result"]["members"]
    models[-1]["setting"] |= {"layer": wrong, "alpha": 0.5}
    with pytest.raises(ValueError, match="multinli_layers must have one setting for each"):
        detail(contents)


def test_memory_per_model_is_listed_for_every_guide(details, summary):
    assert find_row(details, "[First]", MEMORY)[1:4] == ["attention maps", "8.00", "4.00"]
    assert find_row(details, "AG", MEMORY)[1:4] == ["received attention", "2.00", "1.00"]
    assert find_row(details, "[Dependency]", MEMORY)[2:4] == ["not run", "-"]
    costs = find_row(summary, "with received attention (AG, MDG, PDG)", "### What does it cost")
    assert costs[1:] == ["1.050", "1.025", "1.00", "1.00"]
    contents = make_contents()
    contents["multinli"]["runs"]["ag"]["result"]["at_once"] = 1
    assert find_row(detail(contents), "AG", MEMORY)[2:4] == ["not known", "-"]


def test_every_linked_figure_is_drawn(results, summary, tmp_path):
    REPORT.draw_figures(results, tmp_path)
    names = {part.split(")")[0].split("/")[-1] for part in summary.split("](")[1:]}
    stems = ("table_2", "figure_3", "figure_4", "figure_5", "figure_6")
    assert names == {f"guiding_{stem}.png" for stem in stems}
    for name in names:
        assert image.imread(tmp_path / "figures" / name).ndim == 3


def test_without_results_everything_is_not_run():
    details, summary = detail({}), REPORT.summarize(stored.make_results())
    assert find_row(details, "-", "### Table 4")[1:] == ["ours", *["not run"] * 4]
    assert "MultiNLI (ours: not run; published: Roberta):" in details
    assert find_row(summary, "MultiNLI (not run), accuracy of every guide")[1:] == ["not run"] * 3
    assert "Figures:" not in summary


def test_the_summary_tests_every_guide_against_no_guide(summary):
    header = "| guide | MultiNLI, accuracy (%) |"
    assert find_row(summary, "no model", header)[1:5] == ["25.00 (majority label)", "-", "-", "-"]
    tested = ["74.67 ± 2.52", "2.67 (p = 0.057)", "+0.65 (BERT)"]
    assert find_row(summary, "AG", header)[1:4] == tested
    assert find_row(summary, "PDG", header)[3] == "+0.57 (Roberta)"
    assert find_row(summary, "[Dependency]", header)[1:3] == ["not run", "not run"]
    ranked = find_row(summary, "COVID-Fact (other), MRR of every guide")
    assert ranked[1:] == ["0", "0", "1: AG; p from 0.057"]
    assert "**Training rows**, ours / published: MultiNLI 1,234 / 433k" in summary


def test_tables_name_the_model_and_the_options_of_each_experiment(details):
    trained = ["bfloat16", "adam", "1e-05", "2", "8", "16", "mean"]
    row = find_row(details, "multinli", "### Table 1")
    assert row[1:] == ["tiny", "0123", "bert", "2", "3", "12", "BF16", *trained]
    assert find_row(details, "multinli_rates", "### Table 1")[10] == "1e-05, 3e-05"
    assert find_row(details, "covid_fact", "### Table 1")[7] == "F32"
    assert find_row(details, "tiny+AG", "\n\nMultiNLI:")[2] == "74.67 ± 2.52"
    assert find_row(details, "other+AG", "\n\nCOVID-Fact")[2] == "74.67 ± 2.52"
    assert find_row(details, "COVID-Fact", "### Data")[4] == "- / -"  # A ranking has no classes.
    contents = make_contents()
    contents["multinli"]["runs"]["ag"]["config"]["epochs"] = 2.5
    assert find_row(detail(contents), "multinli", "### Table 1")[11] == "2, 2.5"
    for run in contents["multinli"]["runs"].values():
        run["config"] = {"epochs": 2.0, "optimizer.weight_decay": 0.1}
    row = find_row(detail(contents), "multinli", "### Table 1")
    assert row[8:] == ["-", "adamw", "-", "2", "-", "-", "-"]


def test_searches_are_listed_without_weights_that_a_guide_does_not_use(details):
    after = details[details.index("### Hyperparameter search") :]
    rates = find_row(after, "no guide", "multinli_rates:")
    assert rates[1:] == ["1e-05", "72.00 ± 2.65", "3", "yes"]
    assert find_row(after, "no guide", "multinli_search:")[1] == "-"
    assert find_row(after, "MDG", "multinli_search:")[1] == "0.1"
    assert find_row(details, "multinli_rates/none", "### Runs")[4] == "6"  # two rates, three seeds


def test_costs_are_listed_with_published_ones(details):
    table = "### Table 4"
    assert find_row(details, "BERT", table)[2] == "2190 → 2334 (+6.6 %)"
    same = ["30.0 → 31.5 (+5.0 %; 3 models, a device)", "not run", "not run"]
    assert find_row(details, "tiny", table)[2:] == [*same, "-"]
    assert find_row(details, "other", table)[2] == "-"
    speed = find_row(details, "AG", "| method | models |")
    assert speed[1:] == ["1", "-", "-", "10.50", "1.050", "4.10", "1.025"]
    assert "a BERT with 6 layers of 12 heads, 384 wide, random parameters" in details
    contents = make_contents()
    contents["multinli"]["runs"]["ag"]["result"]["members"].pop()
    cell = find_row(detail(contents), "tiny", table)[2]
    assert cell == "30.0 (3 models, a device) → 31.5 (2 models, a device)"


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
    heading = "### Figures 4 and 5"
    assert "The first 32 pairs" in details[details.index(heading) :]
    row = find_row(details, "MDG", heading)
    assert row[2:5] == ["0.5500 ± 0.0707", "0.0000", "-"]
    assert row[9] == "0.2917"  # 0.25 and 0.333
