"""Runs that are slow to make are made once, whatever worker asks first."""

import fcntl
import os

import pytest


@pytest.fixture(scope="session")
def made_once(tmp_path_factory):
    """`made_once(name, make)`: the folder of that name, after some worker called `make(folder)`."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # shared by the workers of this session

    def folder_of(name, make):
        folder = base / "made_once" / name
        folder.parent.mkdir(exist_ok=True)
        with (folder.parent / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                folder.mkdir()
                make(folder)
        return folder

    return folder_of


@pytest.fixture(scope="session")
def compiled(made_once):
    """Where one run, or one process, leaves its compiled programs for the next."""
    return made_once("compiled", lambda folder: None)
