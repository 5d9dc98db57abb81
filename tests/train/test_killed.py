"""Runs in processes of their own: killed, told to stop, damaged, joined; nothing is lost."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time

import jax
import numpy as np
import pytest

from distattn_jax.train.run import load_best
from tests import compiler
from tests.train.driver import config_in, run_of, write_texts

PATIENCE = 1200  # seconds; a process that takes longer hangs, however slow the machine


@pytest.fixture(scope="module")
def start(compiled):
    """Starts a driver; programs compiled by one are found by the next."""
    environment = {
        **os.environ,
        "XLA_FLAGS": compiler.FLAGS,
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "JAX_COMPILATION_CACHE_DIR": str(compiled),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "PYTHONFAULTHANDLER": "1",
    }
    drivers = []

    def started(folder, *flags):
        command = [sys.executable, "-m", "tests.train.driver", str(folder), *flags]
        drivers.append(Driver(command, environment))
        return drivers[-1]

    yield started
    for driver in drivers:
        driver.end()


class Driver(subprocess.Popen):
    """A run in a process of its own. It speaks into a file: a pipe that nobody reads fills up."""

    def __init__(self, command, environment):
        self.said = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed by `end`
        super().__init__(command, env=environment, stdout=self.said, stderr=self.said)

    def words(self):
        """All that it said, once it has left; of one that hangs, where its threads are."""
        try:
            self.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.send_signal(signal.SIGABRT)
            self.wait()
        self.said.seek(0)
        return self.said.read()

    def end(self):
        self.kill()
        self.wait()
        self.said.close()


@pytest.fixture(scope="module")
def straight(start, made_once):
    """The folder of a run that nothing happened to."""

    def make(folder):
        process = start(folder)
        said = process.words()
        assert process.returncode == 0, said

    return made_once("straight", make)


def files_of(folder):
    run = run_of(config_in(folder))
    return {name: (run / name).read_bytes() for name in ("metrics.jsonl", "result.json")}


def steps_logged(folder):
    path = run_of(config_in(folder)) / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return json.loads(lines[-1])["step"] if lines and lines[-1].endswith("}") else 0


def reach(process, folder, step, saved=0):
    """Waits until the run has logged this step and saved so many checkpoints."""

    def there():
        return steps_logged(folder) >= step and len(checkpoints(folder)) >= saved

    late = time.monotonic() + PATIENCE
    while process.poll() is None and not there() and time.monotonic() < late:
        time.sleep(0.002)
    if process.poll() is not None or time.monotonic() >= late:
        pytest.fail(f"{process.args} never reached step {step}:\n{process.words()}")


def checkpoints(folder):
    """The whole ones, oldest first; one being written has another name until it is whole."""
    paths = (run_of(config_in(folder)) / "checkpoints").glob("*")
    return sorted((path for path in paths if path.name.isdigit()), key=lambda path: int(path.name))


def newest_checkpoint(folder):
    return checkpoints(folder)[-1]


def test_a_run_killed_at_random_steps_ends_as_one_never_killed(start, straight, tmp_path):
    draw = random.Random()  # another one every time
    for step, saved in ((draw.randrange(1, 10), 0), (draw.randrange(10, 40), 1)):
        process = start(tmp_path)
        reach(process, tmp_path, step, saved)
        time.sleep(draw.uniform(0, 0.05))
        process.kill()
        process.wait()
        print(f"killed at step {step} or a little later")

    damaged = newest_checkpoint(tmp_path)  # and then the disk fails, too
    for path in damaged.rglob("d/*"):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    process = start(tmp_path)
    reach(process, tmp_path, steps_logged(tmp_path) + 1)
    process.send_signal(signal.SIGTERM)
    said = process.words()
    assert process.returncode == 143, said
    assert f"The checkpoint {damaged} is damaged" in said
    assert "The same command goes on from there." in said
    assert f"saved at step {newest_checkpoint(tmp_path).name} of 100" in said

    process = start(tmp_path)
    said = process.words()
    assert process.returncode == 0, said
    assert files_of(tmp_path) == files_of(straight)
    assert parameters_of(tmp_path) == parameters_of(straight)


def parameters_of(folder):
    """The bytes of the best parameters, in the order of their names."""
    _, params = load_best(run_of(config_in(folder)))
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(params)]


def test_two_processes_reach_what_one_does_and_save_together(start, straight, tmp_path):
    write_texts(tmp_path)

    def start_both():
        together = ("--mesh.coordinator", f"localhost:{free_port()}", "--mesh.processes", "2")
        return [start(tmp_path, *together, "--mesh.process", str(i)) for i in range(2)]

    processes = start_both()
    reach(processes[0], tmp_path, 7)
    processes[1].send_signal(signal.SIGTERM)  # one is told, both leave after the same step
    said = [process.words() for process in processes]
    assert [process.returncode for process in processes] == [143, 143], said
    step = newest_checkpoint(tmp_path).name
    assert all(f"saved at step {step} of 100" in lines for lines in said)

    processes = start_both()
    said = [process.words() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    one, two = (
        [json.loads(line) for line in files_of(folder)["metrics.jsonl"].splitlines()]
        for folder in (straight, tmp_path)
    )
    assert [line.keys() for line in one] == [line.keys() for line in two]
    for before, after in zip(one, two, strict=True):
        for name in before:
            np.testing.assert_allclose(after[name], before[name], rtol=1e-5, atol=1e-5)
    assert newest_checkpoint(tmp_path).name == "100"
    environment = json.loads((run_of(config_in(tmp_path)) / "environment.json").read_text())
    assert environment["processes"] == 2
    for alone, shared in zip(parameters_of(straight), parameters_of(tmp_path), strict=True):
        np.testing.assert_allclose(
            np.frombuffer(shared, np.float32), np.frombuffer(alone, np.float32), atol=1e-3
        )


def free_port():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]
