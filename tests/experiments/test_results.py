"""The long table of stored results, and the files that it is read from."""

import json

import numpy as np
import pytest

from distattn_jax.data.files import DataError
from experiments.papers import stored_results
from experiments.papers.results import NO_MODEL, load_results, split_setting
from tests.experiments import stored


def test_each_model_split_and_metric_is_a_row_of_the_table():
    scores, baseline = {"vanilla": [0.5, 0.7]}, {"test": {"loss": 2.0}}
    content = stored.content("made_up", scores, ("accuracy", "loss"), baseline=baseline)
    table = stored.make_results(content).table
    assert " ".join(table.columns[:7]) == "experiment method setting seed split metric value"
    assert len(table) == 2 * 2 * 2 + 1  # seeds, splits, metrics, and a prediction without a model
    row = table[(table.seed == 1) & (table.split == "test") & (table.metric == "loss")]
    expected = ["made_up", "vanilla", "learning_rate=0.001", 1, "test", "loss", 0.7]
    assert row.iloc[0].tolist()[:7] == expected
    assert table[table.method == NO_MODEL].value.tolist() == [2.0]


def test_scores_are_those_of_the_setting_with_the_best_mean_validation():
    settings = [{"rate": rate} for rate in (1, 2, 3)]
    content = stored.content("made_up", {"adapted": [0, 0]}, settings=settings)
    models = content["runs"]["adapted"]["result"]["members"]
    figures = [(0.9, 0.1), (0.1, 0.1), (0.6, 0.3), (0.6, 0.4), (0.2, 0.9), (0.2, 0.9)]
    for model, (validation, test) in zip(models, figures, strict=True):
        model["validation"]["accuracy"], model["test"]["accuracy"] = validation, test
    results = stored.make_results(content)
    assert results.scores("made_up", "accuracy").adapted.tolist() == [0.3, 0.4]
    assert results.tried("made_up") == {"adapted": 3}
    chosen = results.table[results.table.chosen].setting.unique()
    assert [split_setting(setting) for setting in chosen] == [{"rate": 2.0}]


def test_methods_have_the_order_of_the_package_and_missing_seeds_are_empty():
    scores = {"distance_aware": [0.1, 0.2, 0.3], "vanilla": [0.5]}
    frame = stored.make_results(stored.content("made_up", scores)).scores("made_up", "accuracy")
    assert list(frame) == ["vanilla", "distance_aware"]
    assert frame.vanilla.count() == 1
    assert frame.distance_aware.tolist() == [0.1, 0.2, 0.3]


def test_what_was_not_run_is_empty():
    results = stored.make_results()
    assert results.scores("ag", "accuracy").empty
    assert results.runs("ag") == results.part("ag", "data", "rows") == {}
    assert results.baseline("ag", "accuracy") is None
    assert results.test_metric("ag") == ""


def test_measures_of_heads_and_of_long_texts_are_rows():
    content = stored.content("imdb_language_model", {"distance_aware": [0.5, 0.5]}, ("loss",))
    lengths = {"512": {"perplexity": [90.0, 92.0]}}
    content["perplexity"] = {"distance_aware": {"lengths": lengths}}
    orders = {"random": [[0.5, 0.4], [0.7, 0.6]]}
    pruning = {"criterion": "accuracy", "counts": [1, 2], "orders": orders}
    content["heads"] = {"distance_aware": {"pruning": pruning}}
    statistics = {name: [0.1, 0.2] for name in ("spread", "likeness", "special")}
    content["guided"] = {"heads": {"ag": {"seeds": [3, 4], **statistics}}}
    results = stored.make_results(content)
    name = "imdb_language_model"
    perplexity = results.scores(name, "perplexity", "512 tokens")
    assert perplexity.distance_aware.tolist() == [90.0, 92.0]
    pruned = results.scores(f"{name}, pruning", "accuracy", "without 2")
    assert pruned.random.tolist() == [0.4, 0.6]
    assert results.scores(name, "spread", "heads").ag.to_dict() == {3: 0.1, 4: 0.2}


def test_kinds_of_positions_that_were_trained_side_by_side_are_methods():
    kinds = {
        (-1, -1, 1): ("vanilla", 30.0),
        (-1, -1, 0): ("no_positions", 10.0),
        (16, -1, 0): ("relative_position_keys", 32.0),
        (-1, 16, 0): ("relative_position_values", 31.0),
        (16, -2, 0): ("relative_position", 33.0),
        (16, 16, 1): ("relative_and_absolute", 34.0),
        (16, -1, 1): (None, 99.0),  # in no table
    }
    small = _switched("multi30k_small", {kind: bleu for kind, (_, bleu) in kinds.items()})
    several = _switched("multi30k_small_k", {(k, -2, 0): 20.0 + k for k in (0, 4, 16)})
    alone = stored.content("multi30k_small_k4", {"relative_position": [38.0]}, ("bleu",))
    results = stored.make_results(small, several, alone)
    frame = results.main_scores("multi30k_small").drop(columns="switched_positions")
    assert frame.iloc[0].to_dict() == {method: bleu for method, bleu in kinds.values() if method}
    found = {k: results.main_scores(f"multi30k_small_k{k}") for k in (0, 1, 4, 16)}
    assert found[0].relative_position.tolist() == [20.0]
    assert found[4].relative_position.tolist() == [38.0]  # A run of its own is not replaced.
    assert found[16].relative_position.tolist() == [36.0]
    assert found[1].empty
    assert list(results.stored) == ["multi30k_small", "multi30k_small_k", "multi30k_small_k4"]


def _switched(name, kinds):
    """Return a run that trains several kinds of positions: (keys, values, sinusoids) -> BLEU."""
    names = ("key_distance", "value_distance", "sinusoids")
    models = []
    for kind, bleu in kinds.items():
        setting = dict(zip(names, kind, strict=True))
        models += stored.members([bleu], ("bleu", "loss"), setting=setting)
    runs = {"switched_positions": stored.run("switched_positions", models, criterion="loss")}
    return {"experiment": name, "data": stored.DATA, "runs": runs}


def test_written_results_can_be_read_and_other_files_are_ignored(tmp_path):
    content = stored.content("made_up", {"vanilla": [0.5]})
    path = stored_results.write_results(content, tmp_path)
    assert json.loads(path.read_text()) == content
    assert stored_results.read_results("nothing", tmp_path) is None
    (tmp_path / "bench.json").write_text('{"experiment": "bench", "runs": []}')
    (tmp_path / "tpu.json").write_text('{"a case": {}}')
    assert list(load_results(tmp_path).contents) == ["made_up"]


@pytest.mark.parametrize(
    ("text", "error"), [("{", r"made_up\.json"), ("[]", r"made_up\.json: must contain an object")]
)
def test_a_damaged_file_is_named(tmp_path, text, error):
    (tmp_path / "made_up.json").write_text(text)
    with pytest.raises(DataError, match=error):
        load_results(tmp_path)


def test_numbers_are_rounded_to_five_digits():
    content = {"a": (1, 123456.7), "b": np.asarray([[0.1234567]]), "c": True}
    expected = {"a": [1, 123460.0], "b": [[0.12346]], "c": True}
    assert stored_results.round_numbers(content) == expected


def test_only_the_text_between_the_comments_is_replaced(tmp_path):
    path = tmp_path / "RESULTS.md"
    path.write_text("a\n<!-- begin of report x -->\nb\n<!-- end of report x -->\nc\n")
    stored_results.update_results_page("x", "new\n", path)
    expected = "a\n<!-- begin of report x -->\n\nnew\n\n<!-- end of report x -->\nc\n"
    assert path.read_text() == expected
    with pytest.raises(ValueError, match="must hold the lines <!-- begin of report y -->"):
        stored_results.update_results_page("y", "new\n", path)
