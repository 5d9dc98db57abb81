"""Tables and figures of Shaw et al. 2018, from artificial results."""

import numpy as np
import pytest
from matplotlib import image

from experiments.papers.shaw.report import REPORT
from experiments.papers.shaw.settings import DISTANCES
from tests.experiments import stored
from tests.experiments.stored import find_row

SIGNATURES = {
    "bleu": "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0",
    "bleu_lowercase": "nrefs:1|case:lc|eff:no|tok:13a|smooth:exp|version:2.6.0",
}
BLEU = {  # seed 0; each further seed has one point more
    "no_positions": 15.0,
    "vanilla": 36.0,
    "relative_position": 37.0,
    "relative_position_keys": 37.0,
    "relative_position_values": 35.0,
    "relative_and_absolute": 36.5,
}


def translator(method, bleu, *, seeds=3, scored=True, setting=None):
    """Return a run in which seed i has bleu + i, and a validation loss of 1 / bleu."""
    models = stored.members([0.0] * seeds, ("loss",), setting=setting)
    for seed, model in enumerate(models):
        score = bleu + seed
        model["validation"]["loss"] = 1 / bleu
        if scored:
            model["test"] |= {"bleu": score, "bleu_lowercase": score + 1, "chrf": score + 20}
    config = {"model.layers": 3, "model.features": 256}
    one = stored.run(method, models, criterion="loss", config=config)
    about = {"beam": 4, "length_penalty": 0.6, "average": None, "signatures": SIGNATURES}
    return {**one, "translations": {"test": about}}


def content(name, methods=tuple(BLEU), *, gain=0.0, **arguments):
    """Return the results of an experiment. `gain` is added to BLEU."""
    runs = {method: translator(method, BLEU[method] + gain, **arguments) for method in methods}
    return {"experiment": name, "data": stored.DATA, "runs": runs}


def learned(layers=1, heads=4, distance=3):
    """Return what `collect` keeps of a translator."""
    random = np.random.default_rng(0)
    relations = {}
    for level, count in (("encoder", 2 * distance + 1), ("decoder", distance + 1)):
        table = {
            "positions": np.arange(-distance, count - distance),
            "norms": random.uniform(0, 1, (layers, heads, count)),
            "similarities": random.uniform(-1, 1, (layers, count, count)),
        }
        relations[level] = {"keys": table, "values": table}
    source, target = ["a", "dog", "[END]"], ["ein", "Hund", "!", "[END]"]
    weights = random.dirichlet(np.ones(len(source)), (layers, len(target)))
    alignment = {"source": source, "target": target, "weights": weights}
    return {"relations": relations, "alignment": alignment}


def make_contents():
    tiny = content("multi30k_tiny", ("vanilla",))
    parts = [
        translator("vanilla", bleu, setting={"learning_rate": 5e-3, "dropout_rate": rate})
        for rate, bleu in ((0.1, 37.0), (0.3, 12.0))
    ]
    models = [model for part in parts for model in part["result"]["members"]]
    tiny["runs"]["vanilla"]["result"]["members"] = models
    sweep = []
    for i, k in enumerate(DISTANCES):  # 15 without positions, then 30, then 36.2 to 36.6
        one = content(f"multi30k_small_k{k}", ())
        bleu = {0: 15.0, 1: 30.0}.get(k, 36.0 + i / 10)
        one["runs"]["relative_position"] = translator("relative_position", bleu, seeds=2)
        sweep.append(one)
    return [
        {**content("multi30k_small"), **learned()},
        content("multi30k_medium", ("vanilla", "relative_position"), gain=2.0),
        content("libreoffice_small", ("vanilla",), scored=False),
        tiny,
        *sweep,
    ]


@pytest.fixture(scope="module")
def results():
    return stored.make_results(*make_contents())


@pytest.fixture(scope="module")
def summary(results):
    return REPORT.summarize(results)


def test_table_1_shows_our_sizes_and_says_that_those_of_the_paper_were_not_run(summary):
    # Three seeds: 36, 37 and 38, and two points more with the medium model.
    ours = ["37.00 ± 1.00", "39.00 ± 1.00", "not run", "not run"]
    published = [f"not run / {number}" for number in ("26.5", "27.9", "38.2", "41.2")]
    assert find_row(summary, "absolute", "(Table 1)")[1:] == [*ours, *published]
    both = find_row(summary, "relative and absolute", "(Table 1)")
    assert both[1:3] + both[5:6] == ["37.50 ± 1.00", "not run", "not run / -"]
    assert "| Multi30k, small (3 + 3 x 256) |" in summary


def test_tables_2_and_3_show_every_distance_and_every_kind_of_vectors(summary):
    ends = [find_row(summary, k, "(Table 2)")[1:] for k in ("0", "256")]
    assert ends[0] == ["15.50 ± 0.71", "not run", "not run / 12.5"]
    assert ends[1] == ["37.10 ± 0.71", "not run", "not run / 25.8"]
    keys = find_row(summary, "no | yes", "(Table 3)")
    assert keys[2:] == ["38.00 ± 1.00", "not run", "not run", "not run", "not run / 25.8"]
    assert find_row(summary, "no | no", "(Table 3)")[2] == "16.00 ± 1.00"


def test_findings_state_the_collapse_and_the_plateau(summary):
    collapse = "16.00 ± 1.00 with no positions, 15.50 ± 0.71 with k = 0 and 38.00 ± 1.00 with"
    assert collapse in summary
    assert "from 36.70 (k = 2) to 37.10 (k = 256) on Multi30k, and from not run on" in summary


def test_differences_are_tested_by_seed():
    contents = make_contents()
    runs = contents[0]["runs"]
    pairs = zip(
        *(runs[m]["result"]["members"] for m in ("relative_position", "vanilla")), strict=True
    )
    for gain, (member, other) in zip((0.9, 1.0, 1.1), pairs, strict=True):
        member["test"]["bleu"] = other["test"]["bleu"] + gain
    text = REPORT.summarize(stored.make_results(*contents))
    # Mean 1, standard deviation 0.1, three seeds: t = 17.3 and p = 0.0033.
    row = find_row(text, "Relative against absolute positions")
    assert row[1:] == ["1: Multi30k small (1.00 points, p = 0.0033)", "0", "1: Multi30k medium"]
    row = find_row(text, "relative - absolute", "| difference in BLEU")
    assert row[1:] == ["1.00 (p = 0.0033)", "1.00", "not run", "not run"]


def test_our_best_model_by_validation_loss_is_compared_with_others(summary):
    tiny = "39.00 ± 1.00 (tiny, absolute, rate 0.005, dropout 0.1 everywhere) against 41.02"
    assert tiny in summary
    # The run of the medium model with relative positions has the lowest loss.
    assert "40.00 ± 1.00 (medium, relative) against 35.41, cased (DGL" in summary
    row = find_row(summary, "ours, relative", "| system")
    evaluation = "sacrebleu, tokens 13a; beam 4"
    assert row[1:] == ["small (3 + 3 x 256)", "38.00 ± 1.00", "39.00 ± 1.00", evaluation]
    name = "ours, absolute, recipe of Wu et al., rate 0.005, dropout 0.3 everywhere"
    assert find_row(summary, name)[1:4] == ["tiny (3 + 3 x 256)", "-", "14.00 ± 1.00"]


def test_details_list_every_seed_with_signatures_and_runs(results):
    details = REPORT.detail(results, "")
    row = find_row(details, "multi30k_small", "### Every seed")
    assert row == ["multi30k_small", "no positions", "0", "0.0667", "15.00", "16.00", "35.00"]
    assert "- BLEU, lower case: `nrefs:1|case:lc|" in details
    assert "- Decoding: beam 4, length penalty 0.6, best checkpoint" in details
    assert find_row(details, "Multi30k", "### Data")[1:] == ["1,234", "56", "78"]
    assert "multi30k_small_search:\n\nNot run." in details
    assert find_row(details, "multi30k_small_k4/relative_position", "### Runs")[4] == "2"


def test_every_linked_figure_is_drawn(results, summary, tmp_path):
    REPORT.draw_figures(results, tmp_path)
    names = {part.split(")")[0].split("/")[-1] for part in summary.split("](")[1:]}
    assert names == {
        *("shaw_distances.png", "shaw_attention_multi30k.png"),
        *(
            f"shaw_{level}_{kind}_multi30k.png"
            for level in ("encoder", "decoder")
            for kind in ("norms", "similarities")
        ),
    }
    for name in names:
        assert image.imread(tmp_path / "figures" / name).ndim == 3


def test_without_any_result_everything_is_reported_as_not_run():
    empty = stored.make_results()
    text = REPORT.summarize(empty)
    assert "±" not in text.replace("mean ± standard deviation", "")
    row = find_row(text, "Relative against absolute positions")
    assert row[1:] == ["not run"] * 3
    assert "Figures:" not in text
    assert REPORT.detail(empty, "").endswith("shared the device.\n\nNot run.\n")
