"""Models saved as a folder of their own: equal to those of the run, complete, and checked."""

import json
from pathlib import Path

import chex
import pytest
from etils import epath
from flax import nnx

from distattn_jax.tasks import load, load_config, save
from distattn_jax.train import Run, RunError
from experiments.commands import save as command
from tests.train.runs import keep_compiled


@pytest.fixture(scope="module", autouse=True)
def _keep_compiled(compiled):
    with keep_compiled(compiled):
        yield


@pytest.fixture(scope="module")
def saved(finished_run, tmp_path_factory):
    """Folder of the second model of a run."""
    folder = tmp_path_factory.mktemp("saved") / "model"
    save(finished_run, folder, member=1)
    return folder


def read_parameters(loaded):
    return nnx.to_pure_dict(nnx.state(loaded.model))


def test_the_saved_model_is_that_of_the_run(finished_run, saved):
    one, two = load(finished_run, member=1), load(saved)
    chex.assert_trees_all_equal(read_parameters(one), read_parameters(two))
    assert two.labels == one.labels
    assert two.tokenizer.to_str() == one.tokenizer.to_str()
    assert two.task.data.keys() == one.task.data.keys()
    assert two.config.model == one.config.model
    with pytest.raises(ValueError, match=r"one of the 1 of the run, 0 to 0; got 1"):
        load(saved, member=1)


def test_the_folder_describes_one_model_and_names_no_folder_of_this_machine(finished_run, saved):
    config = load_config(saved)
    assert (config.seed, config.seeds) == (1, 1)
    (member,) = Run(epath.Path(saved)).result["members"]
    assert member == Run(epath.Path(finished_run)).result["members"][1]
    home = str(Path(finished_run).parents[2])
    texts = [path.read_bytes() for path in saved.iterdir()]
    assert home.encode() not in b"".join(texts)
    rows = [line.split(" | ") for line in (saved / "README.md").read_text().splitlines()]
    (test,) = (row[1:] for row in rows if row[0] == "| test")
    assert f"{member['test']['accuracy']:.4g}" in " ".join(test).split()
    assert any(row[0] == "| options" and "seed 1, " in row[1] for row in rows)


def test_a_damaged_or_exchanged_file_is_refused(saved, tmp_path):
    for path in saved.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    weights = tmp_path / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(RunError, match=r"model\.safetensors: changed after it was saved"):
        load(tmp_path)
    content[-1] ^= 1
    weights.write_bytes(content)
    config = json.loads((tmp_path / "config.json").read_text())
    config["model.features"] *= 2
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(RunError, match=r"does not fit config\.json; these parameters differ: \['"):
        load(tmp_path)


def test_what_cannot_be_saved_or_averaged_is_refused(finished_run, saved, tmp_path, capsys):
    with pytest.raises(RunError, match="a new or an empty folder only"):
        save(finished_run, saved)
    with pytest.raises(RunError, match="--average needs a run with checkpoints"):
        load(saved, average=2)
    command.main([str(finished_run), str(tmp_path / "mean"), "--average", "1"])
    assert "mean: 7 files, 0.0 MB." in capsys.readouterr().out
    assert "was not measured" in (tmp_path / "mean" / "README.md").read_text()
    assert load_config(tmp_path / "mean").seeds == 1
