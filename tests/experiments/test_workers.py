"""Tasks in other processes: results, crashes, limits, and the end of all processes."""

import math
import multiprocessing
import os
import signal
import time

import pytest

from experiments.bench import workers
from experiments.bench.workers import QUICK_COMPILATION, compile_quickly, run_tasks


@pytest.fixture(autouse=True)
def _no_process_is_left():
    """Check that a test has ended all processes."""
    before = {*multiprocessing.active_children()}
    yield
    assert {*multiprocessing.active_children()} <= before


def wait_for(path):
    """Return the name of a path, when the path exists."""
    while not path.exists():
        time.sleep(0.01)
    return path.name


def exit_with(code):
    """End this process, unless the exit code is 0. Then return the number of this process."""
    if code:
        os._exit(code)
    return os.getpid()


def hang(path):
    """Write a file, and run forever. Only SIGKILL ends this process."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    path.touch()
    time.sleep(10_000)


def test_results_come_as_tasks_end(tmp_path):
    first = tmp_path / "first"
    results = run_tasks(wait_for, [first, tmp_path], 2, math.inf, math.inf)
    assert next(results) == (tmp_path, tmp_path.name)
    first.touch()
    assert [*results] == [(first, "first")]


def test_a_crash_is_the_result_of_its_task_only():
    results = [*run_tasks(exit_with, [0, 0, 3, 0], 1, math.inf, math.inf)]
    assert [task for task, _ in results] == [0, 0, 3, 0]
    one, same, crash, other = (result for _, result in results)
    assert isinstance(crash, ChildProcessError)
    assert str(crash) == "its process ended with exit code 3"
    assert one == same != other  # A process runs several tasks, and is replaced after a crash.


def test_a_task_that_hangs_is_ended_at_its_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "GRACE", 0.1)
    paths = [tmp_path / "0", tmp_path / "1"]
    results = run_tasks(hang, paths, 2, math.inf, 1)
    assert [(path, str(error)) for path, error in results] == [
        (path, "no result after 1 s") for path in paths
    ]


def test_the_deadline_ends_all_tasks(tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "GRACE", 0.1)
    paths = [tmp_path / str(number) for number in range(4)]
    assert not [*run_tasks(hang, paths, 2, time.monotonic() + 1, math.inf)]
    assert not any(path.exists() for path in paths[2:])


def test_no_task_starts_after_the_deadline():
    assert not [*run_tasks(exit_with, [0], 1, -math.inf, math.inf)]


def test_flags_of_the_user_come_last():
    environment: dict[str, str] = {}
    compile_quickly(environment)
    assert environment == {"XLA_FLAGS": QUICK_COMPILATION}
    environment = {"XLA_FLAGS": "--xla_gpu_autotune_level=1"}
    compile_quickly(environment)
    assert environment == {"XLA_FLAGS": f"{QUICK_COMPILATION} --xla_gpu_autotune_level=1"}
