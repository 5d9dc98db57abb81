"""Folders of runs: what a run refuses to resume, and what it does not mind."""

import dataclasses
import json
import os

import pytest
from etils import epath

from distattn_jax.data import DataError
from distattn_jax.tasks import load_config
from distattn_jax.tasks.load import load_task
from distattn_jax.train import OptimizerConfig, OutputConfig, RunError, open_run
from distattn_jax.train.journal import read
from distattn_jax.train.options import replace_options
from tests.train import tiny

MEMBER = {"seed": 0, "setting": {"learning_rate": 0.1}, "validation": {"accuracy": 0.5}}
EDITED = b'{"format": 3, "task": "text_classification", %s}'
RESULT = {"method": "a", "criterion": "accuracy", "parameters": 5, "members": [MEMBER]}


@pytest.fixture
def config(tmp_path):
    return tiny.make_config(name="one", output=OutputConfig(directory=str(tmp_path / "runs")))


def start(config, *, files=None, **digests):
    return open_run(config, data={"digests": digests}, files=files or {})


def edit_config(run, edit):
    """Change the stored config of a run as an older version of the package may have stored it."""
    path = run.path / "config.json"
    path.write_text(json.dumps(edit(json.loads(path.read_text()))))


def test_a_run_stores_its_config_its_data_and_further_files(config):
    run = start(config, files={"labels.json": "[]"}, raw="a")
    assert run.path == epath.Path(config.output.directory) / "one" / "distance_aware"
    assert load_config(run.path) == config
    assert run.data["digests"] == {"raw": "a"}
    assert (run.path / "labels.json").read_text() == "[]"
    assert (run.result, run.steps) == (None, None)


def test_a_run_with_another_config_or_task_is_refused_with_all_differences(config):
    run = start(config)
    changes = {"model.features": 16, "optimizer.b1": 0.8, "output.evaluate_every": 7}
    other = replace_options(config, changes)
    with pytest.raises(RunError, match="another configuration") as refused:
        start(other)
    assert "model.features: 8 before, 16 now" in str(refused.value)
    assert "optimizer.b1: 0.9 before, 0.8 now" in str(refused.value)
    assert "output.evaluate_every: 0 before, 7 now" in str(refused.value)
    assert load_config(run.path) == config  # The stored config was not overwritten.
    edit_config(run, lambda saved: {**saved, "task": "pair_classification"})
    message = "task: pair_classification before, text_classification now"
    with pytest.raises(RunError, match=message):
        start(config)


def test_a_run_can_be_resumed_with_other_devices_folders_and_intervals(config):
    moved = replace_options(
        config,
        {
            "mesh.data": 2,
            "models_at_once": 1,
            "data.directory": "elsewhere",
            "data.manual_dir": "raw",
            "output.log_every": 7,
            "output.keep": 5,
        },
    )
    assert start(config) == start(moved)
    assert load_config(start(moved).path) == moved


def test_a_run_is_refused_if_its_weights_or_data_changed(config):
    start(config)  # Its digests are unknown, so every file may follow.
    start(config, raw="a", weights="b")
    start(config, raw="a", weights="b")
    with pytest.raises(RunError, match="weights: b before, c now"):
        start(config, raw="a", weights="c")
    with pytest.raises(RunError, match="raw: a before, d now"):
        start(config, raw="d", weights="b")


def test_a_run_that_lacks_newer_options_is_loaded_and_resumed_with_their_defaults(config):
    run = start(config)
    edit_config(run, lambda saved: {k: v for k, v in saved.items() if k != "optimizer.b1"})
    assert load_config(run.path) == config
    other = dataclasses.replace(config, optimizer=OptimizerConfig(learning_rate=(0.1,), b1=0.5))
    with pytest.raises(RunError, match=r"optimizer.b1: 0.9 before, 0.5 now"):
        start(other)
    assert start(config).path == run.path


def test_a_run_of_an_older_version_and_another_folder_are_refused_with_one_line(config):
    run = start(config)
    edit_config(run, lambda saved: {k: v for k, v in saved.items() if k != "format"})
    message = "was written by an earlier version of distattn_jax, .* or train it again.$"
    with pytest.raises(RunError, match=message):
        load_config(run.path)
    with pytest.raises(RunError, match=message):
        start(config)
    with pytest.raises(RunError, match=r"is not a run: it holds no config.json"):
        load_config(run.path.parent)


def test_an_output_folder_that_cannot_be_written_is_named(config, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    config = replace_options(config, {"output.directory": str(tmp_path / "file")})
    with pytest.raises(RunError, match=r"--output.directory must be a folder .* got .*file"):
        start(config)


def test_a_run_that_another_process_trains_is_refused_and_not_written(config):
    run = start(config)
    before = read_files(run)
    message = rf"is in use \(process {os.getpid()} on .*, since "
    with run.lock(), pytest.raises(RunError, match=message):
        start(replace_options(config, {"output.keep": 5}))
    after = read_files(run)
    assert before | {"lock": after["lock"]} == after
    start(config)


def read_files(run):
    return {path.name: path.read_bytes() for path in run.path.iterdir()}


def test_a_finished_run_is_not_written_again(config):
    run = start(config, files={"labels.json": "[]"})
    run.write_plan(30)
    run.write_result(RESULT)
    start(config, files={"labels.json": "changed"})
    assert (run.path / "labels.json").read_text() == "[]"
    assert (run.result, run.steps) == (RESULT, 30)


def test_the_seconds_of_a_step_leave_out_the_first_span_after_every_start(config):
    run = start(config)
    assert run.step_seconds is None
    run.add_timing(9.0, 10, [(10, 9.0)])
    assert run.step_seconds is None
    run.add_timing(16.0, 12, [(2, 10.0), (4, 2.0), (6, 4.0)])
    assert run.step_seconds == pytest.approx(6 / 10)
    assert [line["steps"] for line in run.timings] == [10, 12]


def read_all(run):
    """Read every file of a run."""
    load_config(run.path)
    load_task(run.path)
    read(run.path)
    return run.result, run.data, run.steps, run.timings


@pytest.fixture
def complete_run(config):
    """Run with all files but checkpoints, made without training."""
    tokenizer = tiny.make_task().tokenizer.to_str()
    run = start(config, files={"labels.json": '["a"]', "tokenizer.json": tokenizer}, raw="a")
    (run.path / "metrics.jsonl").write_text('{"step": 1, "loss": [1.5]}\n' * 2)
    run.write_plan(30)
    run.add_timing(9.0, 10, [(10, 9.0)])
    run.write_result(RESULT)
    read_all(run)
    return run


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        *(
            (f"{stem}.json", content, reason)
            for stem in ("config", "data", "plan", "result")
            for content, reason in (
                (b"{", "broken JSON"),
                (b"3", "must contain "),
                (b"\xff", "not"),
            )
        ),
        ("config.json", b'{"format": 3, "task": null}', "unknown task 'None'"),
        ("config.json", b'{"format": 3}', "unknown task 'None'"),
        ("config.json", EDITED % b'"seeds": 0', "seeds must be at least 1; got 0"),
        ("config.json", EDITED % b'"sed": 0', "unknown option 'sed'"),
        ("config.json", EDITED % b'"name": "../x"', "name must be a folder name"),
        ("data.json", b'{"digests": 1}', "digests must be an object"),
        ("plan.json", b"{}", "must contain the number of steps"),
        ("result.json", b'{"members": []}', "must contain method, criterion, "),
        *(
            ("result.json", json.dumps(RESULT | changes).encode(), "model 0 of members must have")
            for changes in (
                {"members": [{}]},
                {"criterion": "x"},
                {"members": [{**MEMBER, "test": {}}]},
                {"members": [{**MEMBER, "setting": {"learning_rate": []}}]},
            )
        ),
        ("tokenizer.json", b"{}", "changed after it was saved"),
        ("labels.json", b'["b"]', "changed after it was saved"),
        ("result.json", b'{"digest": "0", "members": []}', "changed after it was saved"),
        ("timing.jsonl", b"\xff\n", "1: not UTF-8"),
        ("metrics.jsonl", b'{"step": 1}\n{"step"\n', "2: broken JSON"),
        ("metrics.jsonl", b'{"step": 1}\n[]\n', "2: must be an object with numbers step"),
        ("metrics.jsonl", b'{"step": "x"}\n', "1: must be an object with numbers step"),
        ("metrics.jsonl", b'{"step": 1, "a": 2}\n', "1: 'a' must be a list of numbers"),
        ("metrics.jsonl", b'{"step": 1, "a": [2], "b": [1, 2]}\n', "1: 'b' must have 1 numbers"),
        ("metrics.jsonl", b'{"step": 1}\n\xff\n', "2: not UTF-8"),
        ("timing.jsonl", b"{}\n", "1: must be an object with numbers seconds, steps"),
        ("timing.jsonl", b'{"seconds": 1, "steps": 1, "spans": [1]}\n', "1: spans must be pairs"),
    ],
)
def test_a_damaged_file_is_an_error_that_names_it(complete_run, name, content, message):
    (complete_run.path / name).write_bytes(content)
    with pytest.raises((DataError, RunError), match=rf"/{name}:\d*:? ?{message}"):
        read_all(complete_run)


def test_an_unfinished_last_line_of_metrics_is_skipped(complete_run):
    with (complete_run.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "lo')
    assert [line["step"] for line in read(complete_run.path)] == [1, 1]


@pytest.mark.parametrize("name", ["tokenizer.json", "labels.json"])
def test_a_missing_file_is_an_error_that_names_it(complete_run, name):
    (complete_run.path / name).unlink()
    with pytest.raises(RunError, match=f"{name}: missing. Restore it."):
        load_task(complete_run.path)


def test_files_of_an_older_run_have_no_digests(complete_run):
    for name in ("data.json", "result.json"):
        path = complete_run.path / name
        content = json.loads(path.read_text())
        path.write_text(
            json.dumps({k: v for k, v in content.items() if k not in ("digest", "files")})
        )
    assert load_task(complete_run.path).labels == ("a",)
    assert complete_run.result == RESULT


def test_checkpoints_without_a_config_are_not_resumed(config):
    run = start(config)
    (run.checkpoints / "10").mkdir(parents=True)
    (run.path / "config.json").unlink()
    with pytest.raises(RunError, match="holds checkpoints, but no config"):
        start(config)


def test_damaged_timings_do_not_prevent_the_end_of_a_run(complete_run):
    (complete_run.path / "timing.jsonl").write_bytes(b"\xff\n")
    complete_run.add_timing(9.0, 10, [(10, 9.0)])
    assert (complete_run.path / "timing.jsonl").read_bytes().startswith(b"\xff\n{")
