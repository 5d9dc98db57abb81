"""Killed and terminated runs are resumed exactly. Two processes train like one."""

import json
import multiprocessing
import os
import random
import signal
import socket
from multiprocessing import forkserver
from pathlib import Path

import jax
import numpy as np
import pytest
from etils import epath

from distattn_jax.tasks.load import load_parameters, load_task
from distattn_jax.train import Run
from tests import compiler
from tests.train.driver import Attempt, train_with_log
from tests.train.runs import assert_same_metrics, run_directory, short_config

TIMEOUT = 1200  # seconds, enough for a slow machine


@pytest.fixture(scope="module")
def processes(compiled):
    """Context of processes that share one compilation cache.

    The processes are forked from a server that has imported everything, which saves seconds.
    """
    environment = {
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "XLA_FLAGS": compiler.FLAGS,
        "JAX_DEFAULT_MATMUL_PRECISION": "highest",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "JAX_NUM_CPU_DEVICES": "1",
        "JAX_COMPILATION_CACHE_DIR": str(compiled),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "PYTHONFAULTHANDLER": "1",
    }
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.train.driver"])
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        forkserver.ensure_running()
    return context


@pytest.fixture
def run_processes(processes, tmp_path):
    """A function that trains in processes, with the arguments of `train_with_log` except the log.

    It returns the exit status and the output of each process. It aborts a process that hangs, whose
    output then ends with the stack of every thread.
    """

    def run(*arguments):
        logs = [tmp_path / f"log{i}" for i in range(len(arguments))]  # A pipe might block.
        started = []
        for log, own in zip(logs, arguments, strict=True):
            started.append(processes.Process(target=train_with_log, args=(str(log), *own)))
            started[-1].start()
        for process in started:
            process.join(TIMEOUT)
            if process.exitcode is None:
                os.kill(process.pid, signal.SIGABRT)
                process.join()
        return [(one.exitcode, log.read_text()) for one, log in zip(started, logs, strict=True)]

    return run


def best_parameters(run):
    """Return the arrays of the best parameters, in the order of their names."""
    params = load_parameters(run, load_task(run))
    return [np.asarray(leaf) for leaf in jax.tree.leaves(params)]


def test_a_killed_and_then_terminated_run_ends_like_an_uninterrupted_run(
    run_processes, finished_run, texts, tmp_path
):
    config = short_config(texts, tmp_path)
    draw = random.Random()  # unseeded: every test run kills at other steps
    kill = Attempt(signal.SIGKILL, draw.randrange(1, 26))
    stop = Attempt(draw.choice([signal.SIGTERM, signal.SIGINT]), draw.randrange(21, 24))
    print(kill, stop)
    ((status, output),) = run_processes((config, kill))
    assert status == -signal.SIGKILL, output

    ((status, output),) = run_processes((config, stop, Attempt()))
    assert status == 0, output
    assert f"exit status {128 + stop.number}" in output
    assert "The same command resumes it." in output
    assert "Traceback" not in output
    run = run_directory(config)
    steps = [line["steps"] for line in Run(epath.Path(run)).timings]
    assert f"saved at step {30 - steps[-1]} of 30" in output
    assert steps[-1] < 10
    for name in ("metrics.jsonl", "result.json"):
        assert (run / name).read_bytes() == (finished_run / name).read_bytes()
    for one, other in zip(best_parameters(run), best_parameters(finished_run), strict=True):
        assert one.tobytes() == other.tobytes()


def test_two_processes_train_like_one_and_save_the_same_step(
    run_processes, finished_run, texts, tmp_path
):
    number = random.choice([signal.SIGTERM, signal.SIGINT])
    print(f"sent {number.name}")
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        address = f"localhost:{probe.getsockname()[1]}"
    mesh = {"mesh.coordinator": address, "mesh.processes": 2, "steps_at_once": 1}
    configs = [short_config(texts, tmp_path, **mesh, **{"mesh.process": i}) for i in range(2)]
    attempts = Attempt(step=13), Attempt()
    outputs = run_processes(
        (configs[0], *attempts, Attempt(name="stopped")),
        (configs[1], *attempts, Attempt(number, 5, name="stopped")),
    )
    assert [status for status, _ in outputs] == [0, 0], outputs
    run, stopped = (tmp_path / name / "distance_aware" for name in ("little", "stopped"))
    names = (path.name for path in (stopped / "checkpoints").iterdir())
    step = max(int(name) for name in names if name.isdigit())
    for _, output in outputs:
        assert "interrupted after step 13" in output
        assert f"saved at step {step} of 30" in output
        assert "exit status 143" in output

    assert [line["steps"] for line in Run(epath.Path(run)).timings] == [13, 20]
    assert_same_metrics(finished_run, run)
    assert json.loads((run / "environment.json").read_text())["processes"] == 2
    for one, two in zip(best_parameters(finished_run), best_parameters(run), strict=True):
        np.testing.assert_allclose(two, one, atol=1e-3)
