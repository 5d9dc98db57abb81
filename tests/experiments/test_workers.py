"""Tasks in other processes: results, crashes, limits, and the end of all processes."""

import fcntl
import math
import os
import signal
import subprocess
import sys
import time

import pytest

from experiments.bench import workers
from experiments.bench.workers import compile_quickly, run_tasks

pytestmark = pytest.mark.usefixtures("no_process_is_left")


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
    """Lock a file, write the number of this process to it, and run forever, even after SIGTERM.

    Without a file, return the number at once.
    """
    if path is not None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with path.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            print(os.getpid(), file=file, flush=True)
            time.sleep(10_000)
    return os.getpid()


def is_locked(path):
    """Return True if another process has locked a file. The lock ends with the process."""
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


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
    path = tmp_path / "process"
    (task, error), (_, next_process) = run_tasks(hang, [path, None], 1, math.inf, 4)
    assert (task, str(error)) == (path, "no result after 4 s")
    assert int(path.read_text()) != next_process  # The next task has another process.


@pytest.mark.parametrize(("may_reuse", "processes"), [(True, 1), (False, 2)])
def test_a_process_is_reused_only_if_its_result_allows_it(may_reuse, processes):
    results = run_tasks(exit_with, [0, 0], 1, math.inf, math.inf, lambda result: may_reuse)
    assert len({process for _, process in results}) == processes


PARENT = """
import math, pathlib, sys
from experiments.bench.workers import run_tasks
from tests.experiments.test_workers import hang

if __name__ == "__main__":
    print([*run_tasks(hang, [pathlib.Path(sys.argv[1])], 1, math.inf, math.inf)])
"""


def test_a_process_ends_when_its_parent_is_killed(tmp_path):
    script, path = tmp_path / "parent.py", tmp_path / "process"
    script.write_text(PARENT)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.Popen([sys.executable, script, path], env=environment)
    while not (path.exists() and is_locked(path)):
        assert parent.poll() is None
        time.sleep(0.05)
    parent.kill()
    parent.wait()
    end = time.monotonic() + 60
    while is_locked(path):
        assert time.monotonic() < end, "the process has not ended"
        time.sleep(0.05)


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
    flags = "--xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false"
    assert environment == {"XLA_FLAGS": flags}
    environment = {"XLA_FLAGS": "--xla_gpu_autotune_level=1"}
    compile_quickly(environment)
    assert environment == {"XLA_FLAGS": f"{flags} --xla_gpu_autotune_level=1"}
