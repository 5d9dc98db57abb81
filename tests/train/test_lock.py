"""A lock keeps a second process out, says who holds it, and ends with its process."""

import datetime
import errno
import fcntl
import json
import os
import socket
import subprocess
import sys

import pytest

from distattn_jax.train.processes import LockedError, hold_lock

HOLD_AND_WAIT = """
import importlib.util, pathlib, sys
spec = importlib.util.spec_from_file_location("lock", sys.argv[1])
lock = importlib.util.module_from_spec(spec)
spec.loader.exec_module(lock)
with lock.hold_lock(pathlib.Path(sys.argv[2])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_killed_process_leaves_no_lock_and_a_living_one_is_named(tmp_path):
    path = tmp_path / "lock"
    source = sys.modules[hold_lock.__module__].__file__
    command = [sys.executable, "-c", HOLD_AND_WAIT, source, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(LockedError) as locked, hold_lock(path):
            pass
        year = datetime.date.today().year
        holder = f"process {process.pid} on {socket.gethostname()}, since {year}-"
        assert str(locked.value).startswith(holder)
        process.kill()
    with hold_lock(path):
        assert json.loads(path.read_text())["pid"] == os.getpid()


def test_a_lock_is_released_and_can_be_held_again(tmp_path):
    for _ in range(2):
        refused = pytest.raises(LockedError, match=f"process {os.getpid()} on ")
        with hold_lock(tmp_path / "lock"), refused, hold_lock(tmp_path / "lock"):
            pass


def test_a_holder_that_has_not_written_its_name_yet_is_another_process(tmp_path):
    with (tmp_path / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(LockedError, match=r"^another process$"), hold_lock(tmp_path / "lock"):
            pass


def test_a_file_system_without_locks_locks_nothing(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", fail)
    with hold_lock(tmp_path / "lock"), hold_lock(tmp_path / "lock"):
        pass
