"""Whole runs in this process: on any mesh, resumed, refused, stopped."""

import errno
import json
import re
from pathlib import Path

import jax
import pytest
from etils import epath

from distattn_jax import sharding
from distattn_jax.tasks import load_config, make_trainer, prepare
from distattn_jax.train import CheckpointError, NonFiniteError, RunError, Trainer, journal
from experiments.commands import train as train_command
from tests.train.runs import (
    assert_same_metrics,
    finish,
    keep_compiled,
    run_directory,
    short_config,
    start,
    stop_after,
)


@pytest.fixture(scope="module", autouse=True)
def _keep_compiled(compiled):
    with keep_compiled(compiled):
        yield


def test_devices_share_batches_tokens_and_heads_and_a_run_resumes_on_another_mesh(
    finished_run, texts, tmp_path, eight_devices
):
    """Eight devices train past an evaluation at step 15 and a checkpoint at step 20, then one."""
    config = short_config(texts, tmp_path, steps_at_once=1)
    trainer, run = start(config, mesh=(2, 2), sequence=2)
    check_shardings(trainer.initial_state().state)
    stop_after(trainer, run, 23)
    finish(*start(config))
    assert [line["steps"] for line in run.timings] == [23, 10]
    assert_same_metrics(finished_run, run.path)


def check_shardings(state):
    """Check that heads are sharded over the model axis."""
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


def test_a_loss_that_is_not_finite_stops_the_run_and_is_never_saved(texts, tmp_path):
    # Two rates and one seed are two models, as in the other runs, which share their programs.
    changes = {"optimizer.learning_rate": (1e-2, 1e30), "seeds": 1}
    trainer, run = start(short_config(texts, tmp_path, **changes))
    with pytest.raises(NonFiniteError, match=r"not finite at step 2 \(member 1, ") as stopped:
        trainer.fit(run)
    assert "learning rate" in str(stopped.value)
    assert "There is no checkpoint yet." in str(stopped.value)
    trainer.save_every = 3  # A checkpoint is due before a line of the log.
    with pytest.raises(NonFiniteError, match="There is no checkpoint yet"):
        trainer.fit(run)
    assert not run.checkpoints.exists()


def test_an_interrupted_run_loses_nothing_and_ends_with_the_same_bits(
    finished_run, texts, tmp_path, capfd, caplog
):
    """Its programs are compiled once, and the number of steps in a call changes nothing."""

    def list_compiled():
        prefixes = "Compiling jit(train_steps)", "Compiling jit(count_steps)"
        return [line.split(" with ")[0] for line in caplog.messages if line.startswith(prefixes)]

    def read_files():
        paths = (path for path in Path(run.path).rglob("*") if path.is_file())
        return {path: path.read_bytes() for path in paths if path.name != "lock"}

    trainer, run = start(short_config(texts, tmp_path, steps_at_once=4))
    with jax.log_compiles():
        trainer.compile()
        assert list_compiled() == ["Compiling jit(train_steps)", "Compiling jit(count_steps)"]
        stop_after(trainer, run, 6)  # before the first checkpoint
        stop_after(trainer, run, 24)  # calls of 4, 1, 4, 1, ... steps
        files = [run.checkpoints / str(step) / "_CHECKPOINT_METADATA" for step in (10, 20)]
        contents = [path.read_bytes() for path in files]
        for path in files:
            path.unlink()
        before = read_files()
        with pytest.raises(CheckpointError, match="no checkpoint can be used"):
            trainer.fit(run)
        assert read_files() == before
        with run.lock(), pytest.raises(RunError, match="is in use"):
            trainer.fit(run)
        assert read_files() == before

        files[0].write_bytes(contents[0])
        capfd.readouterr()
        finish(trainer, run)
    assert f"step 20: {files[1]} is missing" in capfd.readouterr().err
    assert len(list_compiled()) == 2
    assert [line["steps"] for line in run.timings] == [9, 24, 20]
    for name in ("metrics.jsonl", "result.json"):
        assert (run.path / name).read_bytes() == (finished_run / name).read_bytes()


def test_a_full_disk_ends_a_run_with_one_line_that_says_what_to_do(texts, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Trainer, "compile", lambda *_, **__: [])
    monkeypatch.setattr(Trainer, "fit", fail)
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
