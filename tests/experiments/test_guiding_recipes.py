"""Recipes of the attention-guiding paper on artificial rows, with a tiny random model."""

import dataclasses
import io
import json
import math
import random
import shutil

import jax
import numpy as np
import pytest
from flax import nnx

from distattn_jax.tasks import load, make_task, prepare
from distattn_jax.tasks.fine_tuning import guide_options
from distattn_jax.train import RunError, Trainer, journal
from distattn_jax.train.members import placeholder_setting
from distattn_jax.train.options import parse_options
from distattn_jax.train.run import Run, experiment_folder
from experiments.__main__ import main
from experiments.commands.predict import predict
from experiments.commands.train import train
from experiments.papers import stored_results
from experiments.papers.attention_guiding.report import CLASSIFICATION, RANKING, REPORT
from experiments.papers.attention_guiding.settings import search_config
from experiments.papers.collecting import collect_results
from experiments.papers.results import load_results
from experiments.recipes import load_recipe
from tests.experiments.raw_data import make_text
from tests.train.pretrained import WORDS, write_model

VECTORS = {"good": (1, 0), "bad": (0, 1), "fair": (1, 1), "price": (1, 2)}


@pytest.fixture(autouse=True)
def _compilation_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))


def write_multinli(folder):
    """Write training pairs, test pairs, and vectors of some of their words."""
    generator = random.Random(0)
    labels = ("entailment", "neutral", "contradiction", "-")
    for split, rows in (("train", 40), ("dev_matched", 8)):
        with (folder / f"multinli_1.0_{split}.jsonl").open("w") as file:
            for i in range(rows):
                pair = {"sentence1": make_text(generator), "sentence2": make_text(generator, 3)}
                file.write(json.dumps({"gold_label": labels[i % 4], **pair}) + "\n")
    lines = [" ".join(map(str, (word, *vector))) for word, vector in VECTORS.items()]
    (folder / "vectors.txt").write_text("".join(f"{line}\n" for line in lines))


def write_covid_fact(folder):
    """Write claims and their parses, in which the head of a word is the word before it."""
    generator = random.Random(1)
    texts = []
    with (folder / "claims.jsonl").open("w") as file:
        for i in range(30):
            claim, evidence = make_text(generator, 3), make_text(generator, 5)
            row = {"claim": claim, "evidence": [evidence], "gold_source": f"{i}"}
            file.write(json.dumps({**row, "label": "SUPPORTED"}) + "\n")
            texts += [claim, evidence]
    with (folder / "parses.conllu").open("w") as file:
        for each in texts:
            for i, word in enumerate(each.split()):
                file.write(f"{i + 1}\t{word}\t_\t_\t_\t_\t{i}\tdep\t_\t_\n")
            file.write("\n")


def write_texts(folder):
    """Write labelled texts in the files train, validation and test. Two splits share a text."""
    generator = random.Random(2)
    for split, rows in (("train", 32), ("validation", 8), ("test", 7)):
        with (folder / f"{split}.jsonl").open("w") as file:
            for i in range(rows):
                row = {"text": make_text(generator, 4), "label": ("praise", "complaint")[i % 2]}
                file.write(json.dumps(row) + "\n")
            if split != "validation":
                file.write(json.dumps({"text": "virus . is good", "label": "praise"}) + "\n")


WRITERS = {
    "multinli": write_multinli,
    "covid_fact": write_covid_fact,
    "guided_texts": write_texts,
}


def make_config(folder, recipe, *flags):
    """Return the configuration of a recipe with small sizes and the given flags."""
    if not (folder / "model").exists():
        write_model(folder / "model")
        WRITERS[recipe](folder)
    small = (
        f"--model.pretrained {folder}/model --data.manual-dir {folder} "
        f"--data.directory {folder}/prepared --output.directory {folder}/runs "
        "--data.longest 16 --data.batch-size 8 --data.buckets 1 --mesh.data 1 --seeds 1 --epochs 2 "
        "--output.tensorboard false --output.checkpoint-every 100"  # One checkpoint, at the end.
    )
    config = load_recipe(recipe).get_config()
    return parse_options(config, [*small.split(), *flags], program="train")


def train_one(config):
    """Train the only method, delete the pre-trained model, and return the folder of the run."""
    train(config)
    shutil.rmtree(config.model.pretrained)
    return experiment_folder(config) / config.methods[0]


def check_result(run, metrics, weights):
    """Check members, metrics, time and memory in the result of a run."""
    result = Run(run).result
    assert [member["setting"]["alpha"] for member in result["members"]] == weights
    for member in result["members"]:
        for split in ("validation", "test"):
            assert set(member[split]) == {*metrics, "loss"}
            assert all(math.isfinite(value) for value in member[split].values())
    assert result["step_bytes"] > 4 * result["parameters"]
    assert Run(run).step_seconds > 0


def list_guide_losses(task, batch):
    """Trace a model on a batch. Check shapes, and return the names of the guide's losses."""
    setting = placeholder_setting(task.config)
    model = nnx.eval_shape(lambda: task.make_model(setting, rngs=nnx.Rngs(0)))
    outputs = nnx.eval_shape(
        lambda model, batch: task.apply_for_training(model, batch, setting, None), model, batch
    )
    assert outputs.logits.shape == (len(batch["label"]), len(task.labels))
    losses = task.weighted_losses(setting)
    for loss, _ in losses.values():
        assert jax.eval_shape(loss, outputs, batch).shape == batch["label"].shape
    return set(losses)


def raise_out_of_memory(*_, **__):
    raise jax.errors.JaxRuntimeError("INTERNAL: Out of memory allocating 9 GiB")


def test_pairs_are_classified_measured_and_collected(tmp_path, capsys, monkeypatch):
    flags = ("--methods", "ag", "--guiding.alpha", "0.1", "0.01")
    config = make_config(tmp_path, "multinli", *flags)
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "compile", raise_out_of_memory)
        message = r"too little memory. .*--models-at-once.* It said: .* 9 GiB"
        with pytest.raises(RunError, match=message):
            train(config)
    run = train_one(dataclasses.replace(config, models_at_once=1))
    check_result(run, CLASSIFICATION, [0.1, 0.01])
    lines = journal.read(run)
    assert any({"loss/task", "loss/mdg", "loss/pdg"} < line.keys() for line in lines)
    printed = capsys.readouterr().out
    assert "2 models side by side (over seeds, alpha), 1 at a time" in printed
    assert "\n0 of the texts of train are cut to 16 tokens" in printed
    assert "examples are truncated" not in printed
    main(["evaluate", str(run)])
    table = capsys.readouterr().out.splitlines()
    accuracy = [100 * member["test"]["accuracy"] for member in Run(run).result["members"]]
    rows = [row.split("|")[1:-1] for row in table if row.startswith("| 0")]
    assert [float(row[3]) for row in rows] == pytest.approx(accuracy, abs=1e-2)
    assert [float(row[1]) for row in rows] == [0.1, 0.01]  # alpha
    assert table[-1].startswith("Best on the validation set: alpha 0.")
    predictions = list(predict(load(run), io.StringIO("good team\tbad team\n")))
    assert predictions[0].values["label"] in ("entailment", "neutral", "contradiction")
    monkeypatch.setattr("experiments.recipes.multinli.PAIR", ("good team", "bad team"))
    # The tiny model has 24 positions.
    monkeypatch.setattr("experiments.papers.attention_guiding.head_statistics.MAX_TOKENS", 16)
    content = collect_results(run.parent)
    heads = content["guided"]["heads"]["ag"]
    assert heads["pairs"] == content["data"]["rows"]["validation"]
    assert all(0 < share < 1 for share in heads["special"])
    assert content["data"]["pretrained"]["config"]["layers"] == 1
    assert content["runs"]["ag"]["config"]["model.pretrained"] == "model"
    stored_results.write_results(content, tmp_path)
    row = f"| multinli | model | {content['data']['pretrained']['digest']} | bert |"
    assert row in REPORT.detail(load_results(tmp_path))


def test_own_texts_have_the_losses_of_each_guide_and_shared_texts_are_reported(tmp_path):
    config = make_config(tmp_path, "guided_texts")
    prepared = prepare(config)
    assert prepared.labels == ("complaint", "praise")
    batch = prepared.tables["train"].take(np.arange(8), 16)
    names = {
        method: list_guide_losses(make_task(config.for_method(method), prepared), batch)
        for method in config.methods
    }
    assert names == {"none": set(), "mdg": {"mdg"}, "pdg": {"pdg"}, "ag": {"mdg", "pdg"}}
    (warning,) = prepared.about["warnings"]
    assert "test shares 1 of its 8 texts (12.5 %) with train, e.g. number 8, which" in warning
    assert prepared.messages.count(warning) == 1


def test_evidence_is_ranked_with_a_guide_from_parses(tmp_path, capsys):
    flags = ("--methods", "dependency", "--data.parses", str(tmp_path), "--data.share", "0.5")
    run = train_one(make_config(tmp_path, "covid_fact", *flags))
    check_result(run, RANKING, [0.01])
    for baseline in Run(run).result["baseline"].values():
        assert set(baseline) == set(RANKING)
        assert 0 < baseline["mrr"] <= 1
    assert json.loads((run / "data.json").read_text())["rows"]["train"] == 10
    lines = journal.read(run)
    assert [line["loss/dependency"][0] > 0 for line in lines if "loss/dependency" in line] == 4 * [
        True
    ]
    # 10 claims make two batches of 8. 3 words, 5 words and 3 special tokens fill 11 of 16 places.
    candidates = "8 examples padded to 5 candidates (38% of these are padding)"
    tokens = "each padded to 16 tokens (31% of these are padding)\n"
    assert f"{candidates}, {tokens}" in capsys.readouterr().out


def test_each_guide_receives_only_the_columns_and_constants_that_it_needs(tmp_path):
    vectors = str(tmp_path / "vectors.txt")
    methods = ("none", "pmi", "word_similarity")
    config = make_config(tmp_path, "multinli", "--methods", *methods, "--data.vectors", vectors)
    prepared = prepare(config)
    sizes = prepared.about["pretrained"]["config"]
    assert (sizes["heads"], sizes["features"]) == (2, 8)  # from the pre-trained model
    tasks = {method: make_task(config.for_method(method), prepared) for method in methods}
    tables = [task.select_columns(prepared.tables["train"]) for task in tasks.values()]
    plain = {"tokens", "types", "label"}
    columns = [set(table.columns) for table in (*tables, prepared.tables["test"])]
    assert columns == [plain, plain, plain | {"vectors"}, plain]
    rows = tables[2].take(np.arange(27), 16)
    words = np.asarray(WORDS)[rows["tokens"]]
    table = tasks["word_similarity"].constants["word_vectors"]
    for word, vector in VECTORS.items():
        np.testing.assert_array_equal(table[np.unique(rows["vectors"][words == word])], [vector])
    assert set(rows["vectors"][words == "team"]) == {0}  # This word has no vector.
    values = tasks["pmi"].constants["pmi_values"]
    assert values.shape[0] == len(np.unique(rows["tokens"])) - 1  # Padding does not count.
    assert values.max() > 0


def test_the_layer_option_guides_a_single_layer(tmp_path):
    for flags in ([], ["--guiding.layer", "1"]):
        prepared = prepare(make_config(tmp_path, "multinli", "--methods", "mdg", *flags))
        options = guide_options(prepared.config.guiding, prepared.tokenizer)
        assert options.single_layer == bool(flags)
    guiding = dataclasses.replace(prepared.config.guiding, layer=(-1,), layers=(1,))
    assert guide_options(guiding, prepared.tokenizer).layers == (0,)  # indices of an array


def test_the_search_tries_16_settings_of_ag_and_4_of_each_other_guide():
    search = search_config(load_recipe("multinli").get_config())
    sizes = {}
    for method in search.methods:
        guiding = search.for_method(method).guiding
        sizes[method] = math.prod(map(len, (guiding.alpha, guiding.beta, guiding.gamma)))
    others = dict.fromkeys(("first", "next", "previous", "period", "delimiter", "pmi"), 4)
    assert sizes == {"none": 1, "ag": 16, "mdg": 4, "pdg": 4, **others}
    assert not search.output.test
