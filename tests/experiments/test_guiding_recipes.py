"""Every recipe of the attention-guiding paper, shrunk, on made-up rows and a tiny random model."""

import dataclasses
import io
import json
import math
import random
import shutil

import jax
import numpy as np
import pytest

from distattn_jax.tasks import load, make_task, prepare
from distattn_jax.tasks.fine_tuning import guide_options
from distattn_jax.train import RunError, Trainer, journal
from distattn_jax.train.options import parse_options
from distattn_jax.train.run import Run, experiment_folder
from experiments.__main__ import main
from experiments.commands.predict import predict
from experiments.commands.train import train
from experiments.papers.attention_guiding.published import CLASSIFICATION, RANKING
from experiments.papers.attention_guiding.settings import search_config
from experiments.papers.collecting import collect_results
from experiments.recipes import load_recipe
from tests.experiments.raw import text
from tests.train.pretrained import WORDS, write_model

VECTORS = {"good": (1, 0), "bad": (0, 1), "fair": (1, 1), "price": (1, 2)}


@pytest.fixture(autouse=True)
def _compiled(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))


def multinli(folder):
    """The training set, the pairs to be tested on, and vectors of some of their words."""
    draw = random.Random(0)
    labels = ("entailment", "neutral", "contradiction", "-")
    for split, rows in (("train", 40), ("dev_matched", 8)):
        with (folder / f"multinli_1.0_{split}.jsonl").open("w") as file:
            for i in range(rows):
                pair = {"sentence1": text(draw), "sentence2": text(draw, 3)}
                file.write(json.dumps({"gold_label": labels[i % 4], **pair}) + "\n")
    lines = [" ".join(map(str, (word, *vector))) for word, vector in VECTORS.items()]
    (folder / "vectors.txt").write_text("".join(f"{line}\n" for line in lines))


def covid_fact(folder):
    """Claims, and every text of them parsed: each word hangs on the one before it."""
    draw = random.Random(1)
    texts = []
    with (folder / "claims.jsonl").open("w") as file:
        for i in range(30):
            row = {"claim": text(draw, 3), "evidence": [text(draw, 5)], "gold_source": f"{i}"}
            file.write(json.dumps({**row, "label": "SUPPORTED"}) + "\n")
            texts += [row["claim"], *row["evidence"]]
    with (folder / "parses.conllu").open("w") as file:
        for each in texts:
            for i, word in enumerate(each.split()):
                file.write(f"{i + 1}\t{word}\t_\t_\t_\t_\t{i}\tdep\t_\t_\n")
            file.write("\n")


def config_in(folder, recipe, *flags):
    """A recipe as the command line makes it, with the sizes of the tests."""
    if not (folder / "model").exists():
        write_model(folder / "model")
        {"multinli": multinli, "covid_fact": covid_fact}[recipe](folder)
    small = {
        "model.pretrained": folder / "model",
        "data.manual-dir": folder,
        "data.directory": folder / "prepared",
        "data.longest": 16,
        "data.batch-size": 8,
        "data.buckets": 1,
        "mesh.data": 1,
        "seeds": 1,
        "epochs": 2,
        "output.directory": folder / "runs",
        "output.tensorboard": "false",
        "output.checkpoint-every": 100,  # one, at the end
    }
    given = [word for name, value in small.items() for word in (f"--{name}", str(value))]
    return parse_options(load_recipe(recipe).get_config(), [*given, *flags], program="train")


def trained(config):
    """The folder of its only run, the pre-trained model taken away."""
    train(config)
    shutil.rmtree(config.model.pretrained)
    return experiment_folder(config) / config.methods[0]


def checked(run, metrics, weights):
    """The result of a run: its members, metrics, time and memory."""
    result = Run(run).result
    assert [member["setting"]["alpha"] for member in result["members"]] == weights
    for member in result["members"]:
        for split in ("validation", "test"):
            assert set(member[split]) == {*metrics, "loss"}
            assert all(math.isfinite(value) for value in member[split].values())
    assert result["step_bytes"] > 4 * result["parameters"]
    assert Run(run).step_seconds > 0


def out_of_memory(_):
    raise jax.errors.JaxRuntimeError("INTERNAL: Out of memory allocating 9 GiB")


def test_pairs_are_classified_measured_and_collected(tmp_path, capsys, monkeypatch):
    flags = ("--methods", "ag", "--guiding.alpha", "0.1", "0.01")
    config = config_in(tmp_path, "multinli", *flags)
    with monkeypatch.context() as at_first:
        at_first.setattr(Trainer, "compile", out_of_memory)
        with pytest.raises(
            RunError, match=r"too little memory. .*--models-at-once.* It said: .* 9 GiB"
        ):
            train(config)
    run = trained(dataclasses.replace(config, models_at_once=1))
    checked(run, CLASSIFICATION, [0.1, 0.01])
    lines = journal.read(run)
    assert any({"loss/task", "loss/mdg", "loss/pdg"} < line.keys() for line in lines)
    said = capsys.readouterr().out
    assert "2 models side by side (over seeds, alpha), 1 at a time" in said
    assert "\n0 of the texts of train are cut to 16 tokens" in said
    assert "examples are truncated" not in said
    main(["evaluate", str(run)])
    table = capsys.readouterr().out.splitlines()
    accuracy = [member["test"]["accuracy"] for member in Run(run).result["members"]]
    shown = [float(row.split("|")[3]) for row in table[-3:-1]]
    assert shown == pytest.approx(accuracy, abs=1e-4)
    said = list(predict(load(run), io.StringIO("good team\tbad team\n")))
    assert said[0].split("\t")[0] in ("entailment", "neutral", "contradiction")
    monkeypatch.setattr("experiments.recipes.multinli.PAIR", ("good team", "bad team"))
    monkeypatch.setattr(
        "experiments.papers.attention_guiding.head_statistics.MAX_TOKENS", 16
    )  # positions are 24 here
    content = collect_results(run.parent)
    heads = content["guided"]["heads"]["ag"]
    assert heads["pairs"] == content["data"]["rows"]["validation"]
    assert all(0 < share < 1 for share in heads["special"])
    assert content["data"]["pretrained"]["config"]["layers"] == 1
    assert content["runs"]["ag"]["config"]["model.pretrained"] == "model"


def test_evidence_is_ranked_and_guided_by_a_parser(tmp_path, capsys):
    flags = ("--methods", "dependency", "--data.parses", str(tmp_path), "--data.share", "0.5")
    run = trained(config_in(tmp_path, "covid_fact", *flags))
    checked(run, RANKING, [0.01])
    for baseline in Run(run).result["baseline"].values():
        assert set(baseline) == set(RANKING)
        assert 0 < baseline["mrr"] <= 1
    assert json.loads((run / "data.json").read_text())["rows"]["train"] == 10
    lines = journal.read(run)
    assert [line["loss/dependency"][0] > 0 for line in lines if "loss/dependency" in line] == [True]
    # 10 claims make two batches of 8; 3 words, 5 words and 3 special tokens are 11 of 16 places.
    said = "8 examples padded to 5 candidates (38% of these are padding), each padded to 16 tokens"
    assert f"{said} (31% of these are padding)\n" in capsys.readouterr().out


def test_a_guide_gets_the_columns_and_tables_that_it_needs_and_no_others(tmp_path):
    vectors = str(tmp_path / "vectors.txt")
    methods = ("none", "pmi", "word_similarity")
    config = config_in(tmp_path, "multinli", "--methods", *methods, "--data.vectors", vectors)
    prepared = prepare(config)
    sizes = prepared.about["pretrained"]["config"]
    assert (sizes["heads"], sizes["features"]) == (2, 8)  # those of the pre-trained model
    tasks = {method: make_task(config.for_method(method), prepared) for method in methods}
    tables = {
        method: task.select_columns(prepared.tables["train"]) for method, task in tasks.items()
    }
    plain = {"tokens", "types", "label"}
    assert set(tables["none"].columns) == plain
    assert set(tables["pmi"].columns) == plain
    assert set(tables["word_similarity"].columns) == plain | {"vectors"}
    assert set(prepared.tables["test"].columns) == plain
    rows = tables["word_similarity"].take(np.arange(27), 16)
    words = np.asarray(WORDS)[rows["tokens"]]
    table = tasks["word_similarity"].constants["word_vectors"]
    for word, vector in VECTORS.items():
        np.testing.assert_array_equal(table[np.unique(rows["vectors"][words == word])], [vector])
    assert set(rows["vectors"][words == "team"]) == {0}  # it has none
    values = tasks["pmi"].constants["pmi_values"]
    assert values.shape[0] == len(np.unique(rows["tokens"])) - 1  # padding is no token
    assert values.max() > 0


def test_one_layer_is_guided_where_one_is_given(tmp_path):
    for given in ([], ["--guiding.layer", "0"]):
        prepared = prepare(config_in(tmp_path, "multinli", "--methods", "mdg", *given))
        options = guide_options(prepared.config.guiding, prepared.tokenizer)
        assert options.single_layer == bool(given)


def test_the_search_has_the_grid_that_was_said():
    search = search_config(load_recipe("multinli").get_config())
    sizes = {
        method: math.prod(
            len(getattr(search.for_method(method).guiding, name))
            for name in ("alpha", "beta", "gamma")
        )
        for method in search.methods
    }
    rivals = dict.fromkeys(("first", "next", "previous", "period", "delimiter", "pmi"), 4)
    assert sizes == {"none": 1, "ag": 16, "mdg": 4, "pdg": 4, **rivals}
    assert not search.output.test
