"""The tables and figures of the attention-guiding paper, made of results that the tests make up."""

import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib import image

from distattn_jax.train.guides import GUIDES
from experiments.papers import report_sections, stored_results
from experiments.papers.attention_guiding import figures as guiding_figures
from experiments.papers.attention_guiding import heads as guiding_heads
from experiments.papers.attention_guiding import published, repeated_runs
from experiments.papers.attention_guiding import report as guiding
from experiments.papers.attention_guiding.published import RANKING
from tests.experiments.guiding_results import DATA, content, learned, row, searched, timed


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    guides = [guide for guide in GUIDES if guide != "dependency"]
    stored_results.write(
        stored_results.rounded({**content("multinli", guides), **learned()}), folder
    )
    ranked = content("covid_fact", ("none", "ag"), RANKING, data={**DATA, "classes": 0})
    stored_results.write(ranked, folder)
    search = searched("multinli_search", ("none", "ag", "mdg"), alpha=(0.1, 0.01, 0.001))
    stored_results.write(search, folder)
    rates = searched("multinli_rates", ("none",), learning_rate=(1e-5, 3e-5))
    stored_results.write(rates, folder)
    layers = [{"layer": 1}, {"layer": 0}]
    stored_results.write(content("multinli_layers", ("mdg",), grid=layers), folder)
    stored_results.write(
        content("multinli_share_20", ("none", "pdg"), **{"data.share": 0.2}), folder
    )
    stored_results.write(content("multinli_again_1", ("none", "mdg")), folder)
    stored_results.write(timed(), folder)
    return folder


@pytest.fixture(scope="module")
def text(folder):
    return guiding.text(guiding.read(folder), folder)


def test_every_guide_stands_beside_the_papers_with_how_many_settings_it_had(text):
    # Without a guide 70, 71 and 75 %; with AG 2 points more, and 4 on the second seed.
    assert row(text, "no guide", "### Table 2")[1:6] == ["3", "-", "1", "72.00 ± 2.65", "83.24"]
    ours = row(text, "AG", "### Table 2")
    assert ours[1:6] == ["3", "alpha 0.1, beta 0.1", "3", "74.67 ± 2.52", r"83.89\*"]
    assert row(text, "[First]", "### Table 2")[2:4] == ["gamma 1", "1"]  # not searched
    assert row(text, "[Dependency]", "### Table 2")[1:6] == [*["not run"] * 4, "83.59"]
    assert row(text, "majority label", "### Table 2")[1:6] == ["-", "-", "-", "25.00", "-"]
    assert row(text, "default (AG)", "### Table 3")[2:4] == ["74.67 ± 2.52", r"86.77\*"]
    assert row(text, "w/o MDG (PDG)", "### Table 3")[3] == "86.52"


def test_guides_are_tested_against_none_and_against_ag_without_a_hidden_correction(text):
    header = "| guide | minus no guide, accuracy | pairs | p | detectable | AG minus it, accuracy |"
    against = row(text, "AG", header)
    assert against[1:3] == ["2.67 points", "3"]  # 2, 4 and 2
    assert float(against[3]) == pytest.approx(0.057, abs=0.001)  # t = 4 of 2 degrees
    assert against[5:] == ["-"] * 4
    assert row(text, "no guide", header)[1:] == ["-"] * 8
    # Eight guides against none; AG differs from seven by the same on all seeds, which is no test.
    assert "two-sided, 8 in this table; p is not corrected." in text
    assert "below 0.0063 where 0.05 is asked for" in text


def test_tests_are_of_the_seeds_that_both_have_and_say_how_many(folder):
    kept = guiding.read(folder)
    kept["multinli"]["runs"]["none"] = content("multinli", ("none",), seeds=4)["runs"]["none"]
    kept["multinli"]["runs"]["mdg"]["result"]["members"].pop()
    text = guiding.text(kept, folder)
    assert [row(text, guide, "### Table 2")[1] for guide in ("no guide", "AG")] == ["4", "3"]
    header = "| guide | minus no guide, accuracy | pairs |"
    assert row(text, "AG", header)[2] == "3"
    after = text[text.index("### Table 3") :]
    mdg = row(after, "MDG", header)
    assert (mdg[2], mdg[6]) == ("2", "2")
    assert "paired t-tests, of 2 to 3 seeds, two-sided" in text[text.index("### Figure 6") :]


def test_what_was_not_run_says_so_in_every_cell(text):
    medical = "\n\nMedNLI:\n\n"
    assert row(text, "-", medical)[1:] == ["ours", *["not run"] * 4]
    assert row(text, "BERT", medical)[2:] == ["76.02", "76.25", "76.01", "76.11"]
    medical = "MedNLI (ours: not run; the paper's: BERT):"
    assert row(text, "[PMI]", medical)[1:6] == [*["not run"] * 4, "77.07"]
    assert row(text, "-", "Cross-genre-IR:\n\n")[2:] == ["not run"] * 5
    assert row(text, "2", "### Figure 3")[4:] == ["not run"] * 6
    assert row(text, "60", "### Figure 6")[1:] == ["not run"] * 10
    assert "MedNLI: not searched." in text


def test_misprints_of_the_paper_are_marked_and_explained(text):
    assert row(text, "SciBERT+AG", "\n\nMedNLI:\n\n")[-1] == r"83.01\* (sic)"
    assert "8.3.57 (sic)" in row(text, "[Prev]", "### Table 2")
    assert "83.57" in text[text.index("### Errata") :]


def test_the_papers_tables_agree_with_each_other():
    for data in published.METRICS:
        models = published.table(published.TABLE_1, data)
        guides = published.table(published.TABLE_2, data)
        assert guides["none"] == models["BERT"]
        plain = {metric: figure.rstrip("*") for metric, figure in models["BERT+AG"].items()}
        assert {metric: figure.rstrip("*") for metric, figure in guides["ag"].items()} == plain
        best = models[guiding.PAPERS_MODELS[data]]
        assert published.table(published.TABLE_3, data)["none"] == best


def test_a_layer_and_a_share_are_compared_with_no_guide_on_the_same_seeds(text):
    assert row(text, "2", "### Figure 3")[1:3] == ["72.00 ± 2.65", "0.00 points"]
    assert row(text, "1", "### Figure 3")[1:3] == ["71.00 ± 2.65", "-1.00 points"]
    shares = row(text, "20", "### Figure 6")
    assert shares[1] == "72.00 ± 2.65"
    assert shares[-3:-1] == ["74.67 ± 2.52", "2.67 points"]
    assert row(text, "100", "### Figure 6")[1] == "72.00 ± 2.65"


def test_runs_of_the_same_seeds_stand_together_and_a_mean_of_each_seed_below(text):
    # MDG is 4 points better than none in one run and 2 in the other, and 2 more on the second seed.
    header = "### The same seeds again"
    assert "up to: no guide 0.00 points, MDG 2.00 points." in text
    assert row(text, "multinli", header)[1:4] == ["72.00 ± 2.65", "76.67 ± 2.52", "4.67 points"]
    assert row(text, "multinli_again_1", header)[3] == "2.67 points"
    together = row(text, "mean of each seed", header)
    assert together[1:4] == ["72.00 ± 2.65", "75.67 ± 2.52", "3.67 points"]
    assert float(together[4]) == pytest.approx(0.032, abs=0.001)  # 3, 5 and 3: t = 5.5, 2 degrees


def test_runs_of_fewer_seeds_are_compared_on_those(folder):
    kept = guiding.read(folder)
    for run in kept["multinli_again_1"]["runs"].values():
        run["config"]["seeds"] = 2
        del run["result"]["members"][2:]
    found = repeated_runs.table(kept, "multinli")
    assert row(found, "multinli", "| run |")[1:4] == ["72.00 ± 2.65", "76.67 ± 2.52", "4.67 points"]
    together = row(found, "mean of each seed", "| run |")
    assert together[1:4] == ["70.50 ± 0.71", "74.50 ± 2.12", "4.00 points"]  # of 70 and 71 %
    assert repeated_runs.table(kept, "covid_fact") == ""


@pytest.mark.parametrize(
    ("name", "guide", "field", "value", "error"),
    [
        ("multinli_share_20", "pdg", "data.share", 0.4, r"of 20 %; got data.share 0\.4"),
        ("multinli", "ag", "data.share", 0.5, r"of 100 %; got data.share 0\.5"),
        ("multinli_again_1", "mdg", "epochs", 9.0, "configured as multinli is; mdg is not"),
    ],
)
def test_a_file_of_something_else_than_its_name_says_is_refused(
    folder, name, guide, field, value, error
):
    kept = guiding.read(folder)
    kept[name]["runs"][guide]["config"][field] = value
    with pytest.raises(ValueError, match=f"{name} must be {error}"):
        guiding.text(kept, folder)


def test_the_memory_of_a_model_is_told_for_every_guide(text):
    header = "| guide | looks at | MultiNLI, GB a model |"
    assert row(text, "[First]", header)[1:4] == ["maps", "8.00", "4.00"]
    assert row(text, "AG", header)[1:4] == ["received", "2.00", "1.00"]
    assert row(text, "[Dependency]", header)[2:4] == ["not run", "-"]


def test_the_memory_of_one_of_several_models_is_not_known_if_not_all_are_computed_at_a_time(folder):
    kept = guiding.read(folder)
    kept["multinli"]["runs"]["ag"]["result"]["at_once"] = 1
    header = "| guide | looks at | MultiNLI, GB a model |"
    assert row(guiding.text(kept, folder), "AG", header)[2:4] == ["not known", "-"]


def test_a_sweep_over_layers_has_one_setting_for_each(folder):
    for wrong in (-1, 1):
        kept = guiding.read(folder)
        kept["multinli_layers"]["runs"]["mdg"]["result"]["members"][-1]["setting"] |= {
            "layer": wrong,
            "alpha": 0.5,
        }
        with pytest.raises(ValueError, match="multinli_layers must have one setting for each"):
            guiding.text(kept, folder)


def test_every_figure_that_is_named_is_there(folder):
    text = guiding.report(folder)
    named = {line.split("/")[-1].rstrip(")") for line in text.splitlines() if line[:2] == "!["}
    stems = ("table_2", "figure_3", "figure_4", "figure_5", "figure_6")
    assert named == {f"guiding_{stem}.png" for stem in stems}
    for name in named:
        assert image.imread(folder / "figures" / name).ndim == 3


def test_nothing_was_run_in_an_empty_folder(tmp_path):
    text = guiding.text(guiding.read(tmp_path), tmp_path)
    assert "One training step: not run." in text
    assert text[text.index("### Figures\n") :] == "### Figures\n\nNot run.\n"


def test_the_tables_in_results_md_are_those_of_the_results_that_are_kept():
    kept = guiding.read()
    written = stored_results.RESULTS.read_text()
    text = guiding.text(kept, stored_results.FOLDER)
    assert f"<!-- begin of report guiding -->\n\n{text}\n<!-- end of report guiding -->" in written
    figures = (stored_results.FOLDER / "figures").glob("guiding*")
    named = report_sections.named(guiding_figures.pictures(kept), stored_results.FOLDER).values()
    assert {f"results/figures/{path.name}" for path in figures} == set(named)


def test_components_are_those_of_all_models_together():
    draw = np.random.default_rng(0)
    direction, other = np.eye(9)[:2].reshape(2, 3, 3)
    far, near = draw.normal(size=(2, 2, 3))
    maps = {"a": 5 * far[..., None, None] * direction, "b": near[..., None, None] * other}
    points, explained = guiding_heads.components(maps)
    assert points["a"].shape == (2, 3, 2)
    assert explained.sum() == pytest.approx(1)
    # Rotated, but as far from each other as the maps are.
    for model in maps:
        away, at = maps[model][0, 0] - maps[model][1, 2], points[model][0, 0] - points[model][1, 2]
        assert np.linalg.norm(at) == pytest.approx(np.linalg.norm(away))


def test_heads_are_alike_or_not():
    alike = np.full((1, 1, 2, 2, 2), 0.5)
    apart = np.stack([np.eye(2)[[0, 0]], np.eye(2)[[1, 1]]])[None, None]
    lengths, special = jnp.asarray([2]), jnp.asarray([[1, 0]])
    for weights, expected in ((alike, (0, 1, 0.5)), (apart, (0.5, 0, 0.5))):
        found = guiding_heads.measures(jnp.asarray(weights), lengths, special)
        got = [float(found[name][0]) for name in ("spread", "likeness", "special")]
        assert got == pytest.approx(expected, abs=1e-6)


def test_padding_has_no_part_in_how_alike_heads_are():
    draw = np.random.default_rng(0)
    weights = draw.dirichlet(np.ones(3), (1, 2, 2, 3))
    padded = draw.random((1, 2, 2, 5, 5))
    padded[..., :3, :3] = weights
    short, long = (
        guiding_heads.measures(jnp.asarray(w), jnp.asarray([3]), jnp.ones((1, w.shape[-1])))
        for w in (weights, padded)
    )
    for name in guiding_heads.MEASURES:
        np.testing.assert_allclose(short[name], long[name], rtol=1e-6)


def test_heads_of_a_guide_are_compared_with_those_without_one(text):
    after = text[text.index("### Figures 4 and 5") :]
    assert "The first 32 pairs" in after
    assert row(after, "MDG", "### Figures 4")[2:5] == ["0.5500 ± 0.0707", "0.0000", "-"]
    assert row(after, "MDG", "### Figures 4")[9] == "0.2917"  # 0.25 and a third
