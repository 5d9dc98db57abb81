"""Whole runs in this process: on any mesh, resumed, refused, stopped, and used afterwards."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from etils import epath

from distattn_jax import sharding
from distattn_jax.data import encode
from distattn_jax.train import (
    NonFiniteError,
    RunError,
    Trainer,
    load,
    load_config,
    open_run,
    prepare,
    task_of,
)
from distattn_jax.train import journal as journals
from distattn_jax.train.feed import Feed
from distattn_jax.train.flags import replace
from experiments.commands import evaluate, predict
from experiments.commands.report import report
from tests.train.driver import make_config, run_directory


class StoppedError(Exception):
    """In the middle of a run."""


@pytest.fixture(scope="module", autouse=True)
def keep_compiled(compiled):
    """Runs that differ in numbers alone find their programs compiled."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = [getattr(jax.config, name) for name in names]
    for name, value in zip(names, (str(compiled), 0.0), strict=True):
        jax.config.update(name, value)
    yield
    for name, value in zip(names, before, strict=True):
        jax.config.update(name, value)


@pytest.fixture(scope="module")
def texts(made_once):
    return made_once("texts", lambda folder: prepare(make_config(folder)))


def configured(texts, output, **changes):
    """Thirty steps, with dropout, a decay and two seeds."""
    return replace(
        make_config(texts),
        {
            "epochs": 3.0,
            "output.directory": str(output),
            "output.log_every": 5,
            "output.evaluate_every": 15,
            "output.checkpoint_every": 10,
            **changes,
        },
    )


def train(config, mesh=(1, 1), stop_at=None):
    """Trains to the end, or until just before the end of a step."""

    def stop(step, state):
        if step == stop_at:
            raise StoppedError

    config, prepared = prepare(config)
    run = open_run(config, prepared)
    trainer = Trainer(task_of(config, prepared), config, run, sharding.make_mesh(*mesh))
    try:
        trainer.finish(trainer.fit(stop))
    except StoppedError:
        assert stop_at is not None
    return run_directory(config)


@pytest.fixture(scope="module")
def alone(texts, made_once):
    """A finished run on one device, with a trace."""

    def make(folder):
        train(configured(texts, folder, **{"output.profile": True}))

    return run_directory(configured(texts, made_once("alone", make)))


def assert_same_metrics(one, two):
    first, second = journals.read(epath.Path(one)), journals.read(epath.Path(two))
    assert [line["step"] for line in first] == [line["step"] for line in second]
    for before, after in zip(first, second, strict=True):
        assert before.keys() == after.keys()
        for name in before:
            np.testing.assert_allclose(after[name], before[name], rtol=1e-5, atol=1e-5)


def test_losses_are_the_same_where_devices_share_batches_and_heads(
    alone, texts, tmp_path, eight_devices
):
    assert_same_metrics(alone, train(configured(texts, tmp_path), (4, 2)))


def test_a_run_goes_on_on_other_meshes(alone, texts, tmp_path, eight_devices):
    config = configured(texts, tmp_path)
    train(config, (8, 1), stop_at=13)
    train(config, (2, 1), stop_at=24)
    run = train(config, (1, 1))
    assert_same_metrics(alone, run)
    steps = [json.loads(line)["steps"] for line in (run / "timing.jsonl").read_text().splitlines()]
    assert steps == [13, 14, 10]  # from 0, from 10, from 20


def test_what_is_compiled_ahead_is_not_compiled_again(texts, tmp_path, caplog):
    config, prepared = prepare(configured(texts, tmp_path, epochs=0.5))
    trainer = Trainer(
        task_of(config, prepared), config, open_run(config, prepared), sharding.make_mesh(1, 1)
    )

    def compiled():
        begun = "Compiling jit(train_step)", "Compiling jit(count_step)"
        return [line.split(" with ")[0] for line in caplog.messages if line.startswith(begun)]

    with jax.log_compiles():
        trainer.compile()
        assert compiled() == ["Compiling jit(train_step)", "Compiling jit(count_step)"]
        trainer.finish(trainer.fit())
    assert len(compiled()) == 2


def test_heads_lie_on_the_model_axis_from_birth(texts, tmp_path, eight_devices):
    config, prepared = prepare(configured(texts, tmp_path))
    trainer = Trainer(
        task_of(config, prepared), config, open_run(config, prepared), sharding.make_mesh(4, 2)
    )
    attention = trainer.birth().state.params["text"]["sequence"]["encoder"]["layers"][0][
        "attention"
    ]
    assert attention["query"]["kernel"].sharding.spec == jax.P(None, None, "model", None)
    assert attention["out"]["kernel"].sharding.spec == jax.P(None, "model", None, None)
    assert attention["variant"]["weight"].sharding.spec == jax.P(None, "model")
    moments = (
        trainer.birth()
        .state.opt_state[0]
        .mu["text"]["sequence"]["encoder"]["layers"][0]["attention"]
    )
    assert moments["query"]["kernel"].sharding.spec == jax.P(None, None, "model", None)
    feed = Feed(trainer.batches.iterate(1), trainer.mesh, trainer.task.layout)
    assert next(feed)["text"].sharding.spec == jax.P("data")


def test_another_configuration_is_refused_with_what_differs(alone, texts):
    folder = alone.parent.parent
    changed = configured(texts, folder, **{"model.features": 16, "optimizer.b1": 0.8})
    config, prepared = prepare(changed)
    with pytest.raises(RunError, match="another configuration") as refused:
        open_run(config, prepared)
    assert "model.features: 8 before, 16 now" in str(refused.value)
    assert "optimizer.b1: 0.9 before, 0.8 now" in str(refused.value)
    assert load_config(alone).model.features == 8  # nothing was written over


def test_a_folder_that_cannot_be_written_is_named_before_training(texts, tmp_path):
    (tmp_path / "file").write_text("in the way")
    config, prepared = prepare(configured(texts, tmp_path / "file"))
    with pytest.raises(RunError, match=r"output.directory must be a folder .* got .*file"):
        open_run(config, prepared)


def test_a_loss_that_is_not_finite_stops_the_run(texts, tmp_path):
    config = configured(texts, tmp_path, **{"optimizer.learning_rate": (1e-2, 1e30)})
    with pytest.raises(NonFiniteError, match=r"not finite at step 2 \(member 2, ") as stopped:
        train(config)
    assert "learning rate" in str(stopped.value)
    assert "There is no checkpoint yet." in str(stopped.value)


def test_what_is_not_finite_is_not_saved(texts, tmp_path):
    changes = {"optimizer.learning_rate": (1e30,), "output.checkpoint_every": 3}
    with pytest.raises(NonFiniteError, match="There is no checkpoint yet"):
        train(configured(texts, tmp_path, **changes))
    assert not any((tmp_path / "little" / "distance_aware" / "checkpoints").iterdir())


def test_the_loaded_model_is_the_one_that_was_measured(alone):
    result = json.loads((alone / "result.json").read_text())
    loaded = load(alone, member=1)
    rows = _rows(loaded.config, "test")
    tokens, lengths = encode(loaded.tokenizer, [row["text"] for row in rows]).pad(
        np.arange(len(rows)), 8
    )
    guessed = np.asarray(jax.jit(loaded.model)(tokens, lengths).logits.argmax(axis=-1))
    right = [loaded.labels[g] == row["label"] for g, row in zip(guessed, rows, strict=True)]
    assert np.mean(right) == pytest.approx(result["members"][1]["test"]["accuracy"])
    assert loaded.config == load_config(alone)
    with pytest.raises(ValueError, match=r"member must be one of the 2 of the run, 0 to 1; got 2"):
        load(alone, member=2)


def _rows(config, split):
    path = epath.Path(config.data.manual_dir) / f"{split}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_predictions_come_one_a_line(alone, tmp_path, capsys):
    file = tmp_path / "lines.txt"
    file.write_text("a b c\nh g f\n\nc c c c c c c c c c c c\n")
    predict.main([str(alone), str(file)])
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 4
    assert all(label in ("early", "late") and 0.5 <= float(p) <= 1 for label, p in lines)
    with pytest.raises(ValueError, match="file must be one that can be read"):
        predict.main([str(alone), str(tmp_path / "nothing")])


def test_evaluation_gives_what_the_result_says(alone, capsys):
    evaluate.main([str(alone), "--split", "validation"])
    result = json.loads((alone / "result.json").read_text())
    said = capsys.readouterr().out
    for member in result["members"]:
        figures = member["validation"]
        row = f"| {member['seed']} | " + " | ".join(f"{x:.4f}" for x in figures.values()) + " |"
        assert row in said
    with pytest.raises(RunError, match=r"model\.heads: 2 before, 4 now"):
        evaluate.main([str(alone), "--model.heads", "4"])


def test_the_report_draws_what_the_heads_became(alone, tmp_path):
    text = report([alone], output=tmp_path, sentence="a b c")
    assert "| DA-Transformer |" in text
    drawn = {path.stem for path in (tmp_path / "figures").iterdir()}
    assert drawn == {"learning_curves", "heads", "coefficients", "attention"}


def test_what_a_run_was_made_with_is_saved_with_it(alone):
    environment = json.loads((alone / "environment.json").read_text())
    assert environment["packages"]["jax"] == jax.__version__
    assert environment["device"] == jax.devices()[0].device_kind
    assert "commit" in environment
    assert any((alone / "events").iterdir())
    assert any((alone / "profile").rglob("*.xplane.pb"))
    names = {name for line in journals.read(epath.Path(alone)) for name in line} - {"step"}
    assert {"train/loss", "loss/task", "validation/accuracy"} <= names
    assert all(name.count("/") == 1 for name in names)
    assert dataclasses.asdict(load_config(alone))["epochs"] == 3.0
