"""`python -m experiments`: which errors are shown as one line, and what a command imports."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from distattn_jax.tasks import TextClassificationConfig
from distattn_jax.train import MeshConfig, RunError
from distattn_jax.train.checkpoint import fingerprint
from experiments.__main__ import is_user_error, main

ROOT = Path(__file__).parent.parent


def raise_invalid_option(*_):
    TextClassificationConfig(seeds=0)


def call_jax_with_nothing(*_):
    fingerprint({})  # jnp.stack refuses an empty list.


def throw(error):
    raise error


# Functions that raise an error, and if the error is the user's.
RAISED = {
    "invalid option": (raise_invalid_option, True),
    "call of several lines": (
        lambda: TextClassificationConfig(mesh=MeshConfig(coordinator="host:1")),
        True,
    ),
    "own exception": (lambda: throw(RunError("no run")), True),
    "full disk": (lambda: throw(OSError(errno.ENOSPC, "No space left on device", "a.md")), True),
    "JAX": (call_jax_with_nothing, False),
    "unpacking": (lambda: TextClassificationConfig(methods=("vanilla", "adapted")).method, False),
    "division": (lambda: 1 / 0, False),
}


@pytest.mark.parametrize("name", RAISED)
def test_an_error_is_the_users_if_our_code_raised_it_on_purpose(name):
    function, expected = RAISED[name]
    with pytest.raises((ValueError, RunError, ZeroDivisionError, OSError)) as error:
        function()
    assert is_user_error(error.value) == expected


def test_errors_of_the_user_end_the_program_with_one_line(monkeypatch):
    monkeypatch.setattr("experiments.commands.list.main", raise_invalid_option)
    with pytest.raises(SystemExit) as exit:
        main(["list"])
    assert exit.value.code == "error: seeds must be at least 1; got 0."


def test_errors_of_jax_keep_their_traceback(monkeypatch):
    monkeypatch.setattr("experiments.commands.list.main", call_jax_with_nothing)
    with pytest.raises(ValueError, match="at least one array"):
        main(["list"])


def test_a_closed_pipe_ends_the_program_without_a_message():
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "experiments", "list"],
        stdout=write,
        stderr=subprocess.PIPE,
        cwd=ROOT,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_ctrl_c_ends_the_program_with_one_line(monkeypatch, capsys):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    statuses = []
    monkeypatch.setattr("experiments.commands.train.run", interrupt)
    monkeypatch.setattr("os._exit", statuses.append)
    main(["train", "nearest"])
    assert statuses == [130]
    assert capsys.readouterr().err == "\ninterrupted. The same command resumes.\n"


INTERRUPTED_COLLECTION = """
import gc, signal, time
from experiments.__main__ import raise_interrupt

def interrupt(phase, _):
    if phase == "start" and not interrupted:
        interrupted.append(phase)
        signal.raise_signal(signal.SIGINT)

interrupted = []
signal.signal(signal.SIGINT, raise_interrupt)
gc.disable()
gc.callbacks.append(interrupt)
try:
    gc.collect()
    for _ in range(600):
        time.sleep(0.1)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_is_not_lost_in_a_callback_of_the_garbage_collector():
    """Use a process of its own, in which no other library has callbacks or threads."""
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_COLLECTION], capture_output=True, text=True, cwd=ROOT
    )
    assert (done.stdout, done.stderr) == ("interrupted\n", "")


INTERRUPTED_IMPORT = """
import signal, sys
from experiments import __main__ as program

class Finder:
    def find_spec(name, path, target=None):
        if name == "experiments.commands.list":
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                print("an extension module may crash")

signal.signal(signal.SIGINT, program.raise_interrupt)
sys.meta_path.insert(0, Finder)
program.main(["list"])
"""


def test_ctrl_c_while_packages_are_imported_raises_no_error_in_them():
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_IMPORT], capture_output=True, text=True, cwd=ROOT
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "\ninterrupted.\n")


@pytest.mark.parametrize("arguments", [["list"], ["--help"]], ids=" ".join)
def test_listing_recipes_and_commands_imports_no_slow_library(arguments):
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "experiments", *arguments],
        **{"capture_output": True, "text": True, "check": True, "cwd": ROOT},
    )
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "experiments" in imported
    assert not imported & {"jax", "flax", "matplotlib", "numpy", "distattn_jax"}
    assert done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["list", "a\udcff"], "argument 2 is not UTF-8: 'a"),
        (["explore", "run", "--against-member", "1"], "--against-member needs --against"),
        (["explore", "run", "--output", f"{__file__}/x.html"], "File exists"),
        (["predict", "/nowhere"], "is not a run: it holds no config.json"),
    ],
)
def test_wrong_arguments_are_one_line(capsys, arguments, message):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert message in f"{stopped.value}{capsys.readouterr().err}"


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOSPC, errno.EFBIG])
def test_a_file_that_the_system_refuses_is_one_line(monkeypatch, number):
    def refuse(_):
        raise OSError(number, os.strerror(number), "runs/x")

    monkeypatch.setattr("experiments.commands.list.main", refuse)
    with pytest.raises(SystemExit, match=rf"error: .*{os.strerror(number)}: 'runs/x'"):
        main(["list"])
