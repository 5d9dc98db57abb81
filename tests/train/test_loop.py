"""Whole runs in this process: on any mesh, resumed, refused, stopped."""

import errno
import json
import re

import jax
import numpy as np
import pytest
from etils import epath

from distattn_jax import sharding
from distattn_jax.tasks import load_config, make_trainer, open_task_run, prepare
from distattn_jax.train import CheckpointError, NonFiniteError, Run, RunError, Trainer, journal
from experiments.commands import train as train_command
from tests.train.driver import run_directory
from tests.train.runs import keep_compiled, short_config, train


@pytest.fixture(scope="module", autouse=True)
def _keep_compiled(compiled):
    with keep_compiled(compiled):
        yield


def assert_same_metrics(one, two):
    first, second = journal.read(epath.Path(one)), journal.read(epath.Path(two))
    assert [line["step"] for line in first] == [line["step"] for line in second]
    for before, after in zip(first, second, strict=True):
        assert before.keys() == after.keys()
        for name in before:
            np.testing.assert_allclose(after[name], before[name], rtol=1e-5, atol=1e-5)


def test_devices_share_batches_and_heads_and_a_run_resumes_on_another_mesh(
    finished_run, texts, tmp_path, eight_devices
):
    """Four devices train past an evaluation at step 15 and a checkpoint at step 20, then one."""
    config = short_config(texts, tmp_path, steps_at_once=1)
    train(config, (2, 2), stop_at=23)
    run = train(config)
    assert_same_metrics(finished_run, run)
    assert [line["steps"] for line in Run(epath.Path(run)).timings] == [23, 10]


def test_metrics_do_not_depend_on_the_number_of_steps_in_a_call(finished_run, texts, tmp_path):
    train(
        short_config(texts, tmp_path, steps_at_once=4), stop_at=13
    )  # calls of 4, 1, 4, 1, 4 steps
    run = train(short_config(texts, tmp_path, steps_at_once=100))
    assert [line["steps"] for line in Run(epath.Path(run)).timings] == [14, 20]
    for name in ("metrics.jsonl", "result.json"):
        assert (run / name).read_bytes() == (finished_run / name).read_bytes()


def test_programs_that_were_compiled_in_advance_are_not_compiled_again(texts, tmp_path, caplog):
    prepared = prepare(short_config(texts, tmp_path))
    run = open_task_run(prepared.config, prepared)
    trainer = make_trainer(prepared.config, prepared, sharding.make_mesh(1, 1))

    def list_compiled():
        prefixes = "Compiling jit(train_steps)", "Compiling jit(count_steps)"
        return [line.split(" with ")[0] for line in caplog.messages if line.startswith(prefixes)]

    with jax.log_compiles():
        trainer.compile()
        assert list_compiled() == ["Compiling jit(train_steps)", "Compiling jit(count_steps)"]
        trainer.measure(trainer.fit(run))
    assert len(list_compiled()) == 2


def test_heads_are_sharded_over_the_model_axis_from_the_start(texts, tmp_path, eight_devices):
    prepared = prepare(short_config(texts, tmp_path))
    trainer = make_trainer(prepared.config, prepared, sharding.make_mesh(2, 2))
    state = trainer.initial_state().state
    attention, moments = (
        tree["text"]["sequence"]["encoder"]["layers"][0]["attention"]
        for tree in (state.params, state.opt_state[0].mu)
    )
    assert attention["query"]["kernel"].sharding.spec == jax.P(None, None, "model", None)
    assert attention["out"]["kernel"].sharding.spec == jax.P(None, "model", None, None)
    assert attention["variant"]["weight"].sharding.spec == jax.P(None, "model")
    assert moments["query"]["kernel"].sharding.spec == jax.P(None, None, "model", None)


def test_a_batch_is_divided_equally_between_devices(texts, tmp_path, eight_devices):
    prepared = prepare(short_config(texts, tmp_path))
    message = r"--data.batch-size \(16\) must be a multiple of the devices that share .* \(3"
    with pytest.raises(ValueError, match=message):
        make_trainer(prepared.config, prepared, sharding.make_mesh(3, 1))


def test_a_loss_that_is_not_finite_stops_the_run(texts, tmp_path):
    # Two rates and one seed are two models, as in the other runs, which share their programs.
    changes = {"optimizer.learning_rate": (1e-2, 1e30), "seeds": 1}
    config = short_config(texts, tmp_path, **changes)
    with pytest.raises(NonFiniteError, match=r"not finite at step 2 \(member 1, ") as stopped:
        train(config)
    assert "learning rate" in str(stopped.value)
    assert "There is no checkpoint yet." in str(stopped.value)


def test_a_state_that_is_not_finite_is_never_saved(texts, tmp_path):
    changes = {"optimizer.learning_rate": (1e30,), "output.checkpoint_every": 3}
    config = short_config(texts, tmp_path, **changes)
    with pytest.raises(NonFiniteError, match="There is no checkpoint yet"):
        train(config)
    assert not (run_directory(config) / "checkpoints").exists()


def test_a_run_with_damaged_checkpoints_loses_nothing_and_ends_with_the_same_bits(
    finished_run, texts, tmp_path, capfd
):
    config = short_config(texts, tmp_path)
    run = train(config, stop_at=24)
    files = [run / "checkpoints" / str(step) / "_CHECKPOINT_METADATA" for step in (10, 20)]
    contents = [path.read_bytes() for path in files]
    for path in files:
        path.unlink()

    def read_files():
        paths = (path for path in run.rglob("*") if path.is_file())
        return {path: path.read_bytes() for path in paths if path.name != "lock"}

    before = read_files()
    with pytest.raises(CheckpointError, match="no checkpoint can be used"):
        train(config)
    assert read_files() == before
    folder, prepared = Run(epath.Path(run)), prepare(config)
    trainer = make_trainer(prepared.config, prepared, sharding.make_mesh(1, 1))
    with folder.lock(), pytest.raises(RunError, match="is in use"):
        trainer.fit(folder)
    assert read_files() == before

    files[0].write_bytes(contents[0])
    capfd.readouterr()
    train(config)
    assert f"step 20: {files[1]} is missing" in capfd.readouterr().err
    for name in ("metrics.jsonl", "result.json"):
        assert (run / name).read_bytes() == (finished_run / name).read_bytes()


def test_a_full_disk_ends_a_run_with_one_line_that_says_what_to_do(texts, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Trainer, "compile", lambda _: None)
    monkeypatch.setattr(Run, "write_plan", fail)
    config = short_config(texts, tmp_path)
    folder = re.escape(str(run_directory(config)))
    message = rf"^{folder}: no space is left on the disk\. .* the same command resumes from .*\.$"
    with pytest.raises(RunError, match=message):
        train_command.train(config)


def test_a_run_stores_its_config_environment_metrics_events_and_profile(finished_run):
    environment = json.loads((finished_run / "environment.json").read_text())
    assert environment["packages"]["jax"] == jax.__version__
    assert environment["device"] == jax.devices()[0].device_kind
    assert "commit" in environment
    data = json.loads((finished_run / "data.json").read_text())
    assert data["longest_sequences"] == {"text": 8}
    assert any((finished_run / "events").iterdir())
    assert any((finished_run / "profile").rglob("*.xplane.pb"))
    names = {name for line in journal.read(epath.Path(finished_run)) for name in line} - {"step"}
    assert {"train/loss", "loss/task", "validation/accuracy"} <= names
    assert all(name.count("/") == 1 for name in names)
    assert load_config(finished_run).epochs == 3.0
