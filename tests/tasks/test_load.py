"""Trained models: loaded, evaluated, and used by the commands."""

import copy
import json
import shutil
from pathlib import Path

import chex
import jax
import numpy as np
import pytest
from etils import epath
from flax import nnx

from distattn_jax import sharding
from distattn_jax.data import DataError, encode
from distattn_jax.tasks import load, load_config, read_split
from distattn_jax.tasks.load import load_parameters, load_task
from distattn_jax.train import CheckpointError, Checkpoints, Run, RunError
from distattn_jax.train import evaluate as evaluate_table
from distattn_jax.train.state import abstract_state
from experiments.commands import evaluate, predict, report
from tests.train.runs import keep_compiled


@pytest.fixture(scope="module", autouse=True)
def _keep_compiled(compiled):
    with keep_compiled(compiled):
        yield


@pytest.fixture(scope="module")
def result(finished_run):
    return Run(epath.Path(finished_run)).result


def test_the_loaded_model_has_the_accuracy_of_the_result(finished_run, result):
    loaded = load(finished_run, member=1)
    lines = (Path(loaded.config.data.manual_dir) / "test.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    tokens, lengths = encode(loaded.tokenizer, [row["text"] for row in rows]).pad(
        np.arange(len(rows)), 8
    )
    predicted = np.asarray(jax.jit(loaded.model)(tokens, lengths).logits.argmax(axis=-1))
    right = [loaded.labels[i] == row["label"] for i, row in zip(predicted, rows, strict=True)]
    assert np.mean(right) == pytest.approx(result["members"][1]["test"]["accuracy"])
    assert loaded.config == load_config(finished_run)
    with pytest.raises(
        ValueError, match=r"--member\) must be one of the 2 of the run, 0 to 1; got 2"
    ):
        load(finished_run, member=2)


def test_an_older_checkpoint_is_not_taken_for_the_parameters_of_the_result(
    finished_run, result, tmp_path
):
    run = Path(shutil.copytree(finished_run, tmp_path / "run"))
    result = copy.deepcopy(result)
    result["members"][1]["best_step"] = 31  # in a newer checkpoint, which is damaged
    (run / "result.json").write_text(json.dumps(result))
    with pytest.raises(
        RunError, match=r"of the steps \[\d+, 31\], which the checkpoint of step 30"
    ):
        load_parameters(run, load_task(run))


def test_an_average_is_the_mean_of_the_parameters_of_the_last_checkpoints(finished_run):
    task = load_task(finished_run)
    like = abstract_state(task, sharding.make_mesh(1, 1))
    with Checkpoints(Run(epath.Path(finished_run)).checkpoints) as checkpoints:
        saved = list(checkpoints.restore_last(2, like))
    assert [step for step, _ in saved] == [30, 20]
    expected = jax.tree.map(lambda a, b: (a + b) / 2, *(own.state.params for _, own in saved))
    averaged = load_parameters(finished_run, task, average=2)
    chex.assert_trees_all_equal(averaged, expected)
    last = load_parameters(finished_run, task, average=1)
    chex.assert_trees_all_equal(last, saved[0][1].state.params)
    model = nnx.to_pure_dict(nnx.state(load(finished_run, member=1, average=2).model))
    chex.assert_trees_all_equal(model, jax.tree.map(lambda leaf: leaf[1], expected))


def test_an_average_needs_as_many_checkpoints_and_none_may_be_damaged(finished_run, tmp_path):
    with pytest.raises(CheckpointError, match=r"has 2 checkpoints, but 3 .*--output.keep"):
        load(finished_run, average=3)
    with pytest.raises(ValueError, match=r"average \(--average\) must be at least 1; got 0"):
        load(finished_run, average=0)
    run = Path(shutil.copytree(finished_run, tmp_path / "run"))
    next(path for path in (run / "checkpoints" / "20").rglob("*") if path.is_file()).unlink()
    with pytest.raises(CheckpointError, match=r"the checkpoint of step 20 cannot .* is missing"):
        evaluate.main([str(run), "--average", "2"])


def test_the_command_evaluate_prints_the_metrics_of_every_member(finished_run, result, capsys):
    evaluate.main([str(finished_run), "--split", "validation"])
    printed = capsys.readouterr().out
    for member in result["members"]:
        loss, *shares = member["validation"].values()
        cells = [f"{loss:.4f}", *(f"{100 * share:.2f}" for share in shares)]
        assert f"| {member['seed']} | {' | '.join(cells)} |" in printed
    assert "| seed | loss | accuracy (%) | macro F (%) |" in printed
    with pytest.raises(RunError, match=r"model\.heads: 2 before, 4 now"):
        evaluate.main([str(finished_run), "--model.heads", "4"])
    task, mesh = load_task(finished_run), sharding.make_mesh(1, 1)
    table = read_split(task, "test")
    metrics = evaluate_table(task, load_parameters(finished_run, task), table, mesh)
    for i, member in enumerate(result["members"]):
        assert {name: column[i] for name, column in metrics.items()} == member["test"]
    metrics = evaluate_table(task, load_parameters(finished_run, task, average=2), table, mesh)
    evaluate.main([str(finished_run), "--average", "2", "--json"])
    document = json.loads(capsys.readouterr().out)
    assert document.keys() == {"run", "task", "split", "examples", "models"}
    assert (document["split"], document["examples"]) == ("test", len(table))
    for i, model in enumerate(document["models"]):
        member = result["members"][i]
        assert model == {
            "member": i,
            "seed": member["seed"],
            "setting": member["setting"],
            "chosen": True,
            "metrics": {name: column[i] for name, column in metrics.items()},
        }


def test_the_command_predict_prints_one_line_for_each_text(finished_run, tmp_path, capsys):
    file = tmp_path / "lines.txt"
    file.write_text("a b c\nh g f\n\nc c c c c c c c c c c c\n \t\r\n")
    predict.main([str(finished_run), str(file), "--average", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert [lines[i] for i in (2, 4)] == ["", ""]
    for line, text in ((lines[0], "a b c"), (lines[1], "h g f")):
        label, probability, others, shown = line.split("\t")
        other, rest = others.split(" ")
        assert {label, other} == {"early", "late"}
        assert float(rest) == pytest.approx(1 - float(probability), abs=1e-4)
        assert shown == text
    predict.main([str(finished_run), str(file), "--average", "1", "--json"])
    found = json.loads(capsys.readouterr().out)["predictions"]
    assert [one["line"] for one in found] == [1, 2, 4]
    assert [one["label"] for one in found] == [lines[i].split("\t")[0] for i in (0, 1, 3)]
    assert all(one["probabilities"].keys() == {"early", "late"} for one in found)
    with pytest.raises(ValueError, match="FILE must be a file that can be read"):
        predict.main([str(finished_run), str(tmp_path / "nothing")])
    file.write_bytes(b"a b c\n\xff\n")
    with pytest.raises(DataError, match=r"lines.txt:2: not UTF-8"):
        predict.main([str(finished_run), str(file)])


def test_the_command_report_draws_curves_heads_and_attention(
    finished_run, result, tmp_path, capsys
):
    report.main([str(finished_run), "--output", str(tmp_path), "--sentence", "a b c", "--json"])
    (described,) = json.loads(capsys.readouterr().out)["experiments"]
    assert "| DA-Transformer |" in Path(described["report"]).read_text()
    drawn = {path.stem for path in (tmp_path / "figures").iterdir()}
    assert drawn == {"learning_curves", "heads", "coefficients", "attention"}
    assert drawn == {Path(path).stem for path in described["figures"]}
    (run,) = described["runs"]
    assert run["run"] == str(finished_run)
    assert run["result"] == result
    assert (run["step"], run["steps"]) == (result["steps"], result["steps"])
