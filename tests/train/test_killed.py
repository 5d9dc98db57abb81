"""Killed, terminated and damaged runs are resumed exactly. Two processes train like one."""

import json
import multiprocessing
import os
import random
import signal
import socket
import tempfile
import time
from multiprocessing import forkserver
from pathlib import Path

import jax
import numpy as np
import pytest
from etils import epath

from distattn_jax.tasks.load import load_parameters, load_task
from distattn_jax.train.manifest import is_incomplete
from tests import compiler
from tests.train.driver import main_with_log, make_config, run_directory, write_texts

TIMEOUT = 1200  # seconds, enough for a slow machine


@pytest.fixture(scope="module")
def start(compiled):
    """A function that starts a driver process. All processes share one compilation cache.

    The processes are forked from a server that has imported everything, which saves seconds.
    """
    environment = {
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "XLA_FLAGS": compiler.FLAGS,
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "JAX_COMPILATION_CACHE_DIR": str(compiled),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "PYTHONFAULTHANDLER": "1",
    }
    drivers = []
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.train.driver"])
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        forkserver.ensure_running()

    def start_driver(folder, *flags):
        drivers.append(Driver(context, str(folder), *flags))
        return drivers[-1]

    yield start_driver
    for driver in drivers:
        driver.end()


class Driver:
    """A run in a separate process. It writes to a file, because an unread pipe would block it."""

    def __init__(self, context, *arguments):
        self.arguments = arguments
        self.log = tempfile.NamedTemporaryFile()  # noqa: SIM115  `end` closes it
        self.process = context.Process(target=main_with_log, args=(self.log.name, *arguments))
        self.process.start()

    @property
    def returncode(self):
        """Exit status, or None if the process is running."""
        return self.process.exitcode

    def send_signal(self, number):
        os.kill(self.process.pid, number)

    def kill(self):
        self.process.kill()
        self.process.join()

    def wait_for_output(self):
        """Wait for the end of the process and return its output.

        A process that hangs is aborted. Its output then ends with the stack of every thread.
        """
        self.process.join(TIMEOUT)
        if self.returncode is None:
            self.send_signal(signal.SIGABRT)
            self.process.join()
        return Path(self.log.name).read_text()

    def end(self):
        self.kill()
        self.log.close()


@pytest.fixture(scope="module")
def uninterrupted(start, made_once):
    """The folder of a run that was never interrupted."""

    def make(folder):
        process = start(folder)
        output = process.wait_for_output()
        assert process.returncode == 0, output

    return made_once("uninterrupted", make)


def find_run(folder):
    return run_directory(make_config(folder))


def read_results(run):
    return {name: (run / name).read_bytes() for name in ("metrics.jsonl", "result.json")}


def last_logged_step(folder):
    path = find_run(folder) / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return json.loads(lines[-1])["step"] if lines and lines[-1].endswith("}") else 0


def wait_for_step(process, folder, step, saved=0):
    """Wait until the run has logged this step and written this number of checkpoints."""

    def reached():
        return last_logged_step(folder) >= step and len(list_checkpoints(folder)) >= saved

    deadline = time.monotonic() + TIMEOUT
    while process.returncode is None and not reached() and time.monotonic() < deadline:
        time.sleep(0.005)
    if process.returncode is not None or time.monotonic() >= deadline:
        pytest.fail(f"{process.arguments} never reached step {step}:\n{process.wait_for_output()}")


def list_checkpoints(folder):
    """List the finished checkpoints, oldest first."""
    paths = (find_run(folder) / "checkpoints").glob("*")
    paths = sorted((path for path in paths if path.name.isdigit()), key=lambda path: int(path.name))
    return [path for path in paths if not is_incomplete(epath.Path(path))]


def newest_checkpoint(folder):
    return list_checkpoints(folder)[-1]


def test_a_run_killed_at_random_steps_ends_like_an_uninterrupted_run(
    start, uninterrupted, tmp_path
):
    draw = random.Random()  # unseeded: every test run kills at other steps
    for step, saved in ((draw.randrange(1, 10), 0), (draw.randrange(20, 40), 2)):
        process = start(tmp_path)
        wait_for_step(process, tmp_path, step, saved)
        time.sleep(draw.uniform(0, 0.05))
        process.kill()
        print(f"killed at step {step} or a little later")

    files = [path for path in newest_checkpoint(tmp_path).rglob("*") if path.is_file()]
    damaged = draw.choice(files)
    print(f"damaged {damaged}")
    damaged.write_bytes(draw.randbytes(draw.randrange(300)))  # as by a failing disk
    process = start(tmp_path)
    wait_for_step(process, tmp_path, last_logged_step(tmp_path) + 1)
    number = draw.choice([signal.SIGTERM, signal.SIGINT])
    process.send_signal(number)
    output = process.wait_for_output()
    assert process.returncode == 128 + number, output
    assert "Traceback" not in output
    assert f"{damaged} is damaged" in output
    assert "The same command resumes it." in output
    assert f"saved at step {newest_checkpoint(tmp_path).name} of 100" in output

    process = start(tmp_path)
    output = process.wait_for_output()
    assert process.returncode == 0, output
    runs = find_run(tmp_path), find_run(uninterrupted)
    assert read_results(runs[0]) == read_results(runs[1])
    assert best_parameters(runs[0]) == best_parameters(runs[1])


def best_parameters(run):
    """Return the bytes of each array of the best parameters, in the order of their names."""
    params = load_parameters(run, load_task(run))
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(params)]


def test_two_processes_train_like_one_and_save_the_same_step(start, finished_run, tmp_path):
    write_texts(tmp_path)
    # These are the options of the run in one process.
    short = ("--epochs", "3", "--output.log-every", "5", "--output.evaluate-every", "15")

    def start_both():
        mesh = ("--mesh.coordinator", f"localhost:{free_port()}", "--mesh.processes", "2")
        options = (*short, *mesh)
        return [start(tmp_path, *options, "--mesh.process", str(i)) for i in range(2)]

    processes = start_both()
    wait_for_step(processes[0], tmp_path, 5)
    number = random.choice([signal.SIGTERM, signal.SIGINT])
    print(f"sent {number.name}")
    processes[1].send_signal(number)  # Both processes stop after the same step.
    outputs = [process.wait_for_output() for process in processes]
    assert [process.returncode for process in processes] == [143, 143], outputs
    step = newest_checkpoint(tmp_path).name
    assert all(f"saved at step {step} of 30" in output for output in outputs)

    processes = start_both()
    outputs = [process.wait_for_output() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    run = find_run(tmp_path)
    one, two = (
        [json.loads(line) for line in read_results(each)["metrics.jsonl"].splitlines()]
        for each in (finished_run, run)
    )
    assert [line.keys() for line in one] == [line.keys() for line in two]
    for expected, actual in zip(one, two, strict=True):
        for name in expected:
            np.testing.assert_allclose(actual[name], expected[name], rtol=1e-5, atol=1e-5)
    assert newest_checkpoint(tmp_path).name == "30"
    environment = json.loads((run / "environment.json").read_text())
    assert environment["processes"] == 2
    for one, two in zip(best_parameters(finished_run), best_parameters(run), strict=True):
        np.testing.assert_allclose(
            np.frombuffer(two, np.float32), np.frombuffer(one, np.float32), atol=1e-3
        )


def free_port():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]
