"""Command `reproduce`: jobs of a report, and how they end."""

import math
import sys
import time
from pathlib import Path

import pytest

from distattn_jax.train.options import (
    describe_differences,
    list_set_options,
    options_read_by,
    parse_options,
    result_options,
)
from experiments.commands import reproduce
from experiments.commands.reproduce import (
    Command,
    Job,
    join_methods,
    list_jobs,
    main,
    read_commands,
    run_jobs,
)
from experiments.commands.train import obey_set_options
from experiments.papers.collecting import LOCAL_OPTIONS, MAY_DIFFER
from experiments.papers.stored_results import read_results
from experiments.papers.when_to_use.settings import ADDED, EXPERIMENTS, LARGER
from experiments.recipes import load_recipe

TRAIN_X = ["train", "tagging", "--name", "x", "--methods"]
LENGTHS = ["--lengths", "8", "16"]
LINES = [
    [*TRAIN_X, "vanilla", "adapted", "--epochs", "2"],
    ["train", "tagging", "--name", "y", "--methods", "vanilla"],
    ["heads", "runs/x/adapted", "runs/z/adapted"],
    ["perplexity", "runs/y/METHOD", "runs/x/METHOD", *LENGTHS],
]


def describe(job):
    """Return a dict from the files that each command writes to the words of the command."""
    return {" ".join(map(str, one.files)): one.arguments for one in job.commands}


def test_one_job_for_each_method():
    first, second, third = list_jobs(LINES)
    assert [first.name, second.name, third.name] == ["x/vanilla", "x/adapted", "y/vanilla"]
    assert describe(second) == {
        "runs/x/adapted/result.json": [*TRAIN_X, "adapted", "--epochs", "2"],
        "runs/x/adapted/heads.json": ["heads", "runs/x/adapted"],
        "runs/x/adapted/perplexity.json": ["perplexity", "runs/x/adapted", *LENGTHS],
    }
    assert [command.words[0] for command in first.commands] == ["train", "perplexity"]


def test_one_job_for_all_methods_of_an_experiment():
    first, second = join_methods(list_jobs(LINES))
    assert (first.name, second.name) == ("x", "y/vanilla")
    runs = ["runs/x/vanilla", "runs/x/adapted"]
    assert describe(first) == {
        "runs/x/vanilla/result.json runs/x/adapted/result.json": LINES[0],
        "runs/x/vanilla/perplexity.json runs/x/adapted/perplexity.json": [
            *("perplexity", *runs, *LENGTHS)
        ],
        "runs/x/adapted/heads.json": ["heads", "runs/x/adapted"],
    }


def test_each_translator_is_evaluated_by_a_command_of_its_own():
    (job,) = join_methods(list_jobs([LINES[0], ["evaluate", "runs/x/METHOD"]]))
    assert describe(job) == {
        "runs/x/vanilla/result.json runs/x/adapted/result.json": LINES[0],
        "runs/x/vanilla/translations/test.json": ["evaluate", "runs/x/vanilla"],
        "runs/x/adapted/translations/test.json": ["evaluate", "runs/x/adapted"],
    }


def test_the_commands_have_the_options_of_the_stored_runs():
    """A new method would have the options of the stored runs of its experiment."""
    compared_runs = 0
    for kind, recipe, *flags in read_commands("when_to_use"):
        if kind != "train":
            continue
        config = parse_options(load_recipe(recipe).get_config(), flags, program="train")
        config = obey_set_options(config, list_set_options(flags))
        stored = read_results(config.name) or {"runs": {}}
        for method, run in stored["runs"].items():
            own = config.for_method(method)
            compared = options_read_by(own, method).keys() - {*LOCAL_OPTIONS, *MAY_DIFFER}
            if "--data.vectors" in flags:  # The file determines the width.
                compared -= {"model.embedding_features"}
            before, now = (
                {name: value for name, value in options.items() if name in compared}
                for options in (run["config"], result_options(own))
            )
            assert not describe_differences(before, now), f"{config.name}, {method}"
            compared_runs += 1
    assert compared_runs > 90


def test_the_report_trains_the_methods_of_its_settings():
    jobs, expected = list_jobs(read_commands("when_to_use")), EXPERIMENTS | ADDED
    trained = {
        name: {job.methods[0] for job in jobs if job.experiment == name} for name in expected
    }
    assert trained == {name: set(methods) for name, methods in expected.items()}


def test_commands_are_listed_in_the_order_of_the_options(capsys):
    main(["when_to_use", "--experiments", LARGER, "ud_en", "--methods", "rotary", "--list"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["train", "language_model"],
        ["perplexity", f"runs/{LARGER}/rotary"],
        ["train", "tagging"],
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--experiments", "ud_xx"], "--experiments: unknown ['ud_xx']; known are ['ag_5_seeds'"),
        (["--methods", "rotary", "bert"], "--methods: unknown ['bert']"),
        (["--workers", "0"], "--workers must be at least 1; got 0"),
    ],
)
def test_wrong_options(capsys, options, message):
    with pytest.raises(SystemExit, match="2"):
        main(["when_to_use", *options])
    assert message in capsys.readouterr().err


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """Change to an empty folder, in which commands are Python code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(reproduce, "PROGRAM", (sys.executable, "-c"))
    return tmp_path


def job(name: str, *commands: str) -> Job:
    """Return a job whose commands are Python code, and write the files 0, 1, ..."""
    written = enumerate(commands)
    return Job(
        name, ("m",), tuple(Command((code,), (), (), (Path(f"{name}{i}"),)) for i, code in written)
    )


def test_finished_commands_are_skipped(folder, capsys):
    (folder / "a0").touch()
    jobs = [job("a", "1 / 0", "print('second'); open('a1', 'w')"), job("b", "open('b0', 'w')")]
    assert run_jobs(jobs, 2, math.inf) == {"a/m": "finished", "b/m": "finished"}
    assert (folder / "runs/logs/a_m.txt").read_text() == "second\n"
    assert "2 of 2" in capsys.readouterr().out


@pytest.mark.parametrize("workers", [1, 2])
def test_only_jobs_that_share_a_device_compile_quickly(folder, monkeypatch, workers):
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_autotune_level=1")
    run_jobs([job("a", "import os; print(os.environ['XLA_FLAGS'])")], workers, math.inf)
    flags = (folder / "runs/logs/a_m.txt").read_text().split()
    assert flags[-1] == "--xla_gpu_autotune_level=1"
    assert ("--xla_gpu_autotune_level=0" in flags) == (workers > 1)


def test_a_failed_command_stops_its_own_job_only(folder, capsys):
    jobs = [job("a", "1 / 0", "open('a1', 'w')"), job("b", "open('b0', 'w')"), job("c", "pass")]
    states = {"a/m": "failed", "b/m": "finished", "c/m": "failed"}
    assert run_jobs(jobs, 1, math.inf) == states
    assert not (folder / "a1").exists()
    assert "see runs/logs/a_m.txt" in capsys.readouterr().out
    assert "ZeroDivisionError" in (folder / "runs/logs/a_m.txt").read_text()


def test_the_deadline_interrupts_and_keeps_what_is_written(folder):
    code = """
import signal, sys, time
def leave(*_):
    open('saved', 'w')
    sys.exit(143)
signal.signal(signal.SIGTERM, leave)
open('ready', 'w')
time.sleep(60)
"""
    jobs = [job("a", code), job("b", "open('b0', 'w')")]
    assert run_jobs(jobs, 1, time.monotonic() + 3) == {"a/m": "interrupted", "b/m": "not started"}
    assert (folder / "saved").exists()
    assert not (folder / "b0").exists()
