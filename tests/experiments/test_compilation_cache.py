"""Folder of compiled programs: its place, damaged files, and its size."""

import os
import threading
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from experiments.commands._compilation_cache import (
    default_folder,
    enable_compilation_cache,
    remove_oldest_files,
)
from tests.train.runs import keep_compiled


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Let JAX keep every program in a folder of this test, as in a process of its own."""
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    compilation_cache.reset_cache()
    with keep_compiled(tmp_path / "unused"), warnings.catch_warnings():
        jax.config.update("jax_compilation_cache_dir", None)
        warnings.simplefilter("always")
        yield tmp_path / "kept"
    compilation_cache.reset_cache()


def test_the_folder_is_in_the_cache_of_the_user(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    ours = default_folder()
    assert ours.parent == tmp_path / "distattn_jax" / "compiled"
    for ignored in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert default_folder() == Path.home() / ".cache" / ours.relative_to(tmp_path)


def test_the_folder_can_be_moved_or_disabled_and_the_environment_wins(folder, monkeypatch):
    enable_compilation_cache("none")
    assert jax.config.jax_compilation_cache_dir is None
    enable_compilation_cache(str(folder))
    assert jax.config.jax_compilation_cache_dir == str(folder)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(folder / "set before"))
    enable_compilation_cache(str(folder / "other"))
    assert jax.config.jax_compilation_cache_dir == str(folder)  # JAX reads the environment itself.


def test_a_folder_that_cannot_be_made_is_named_and_not_used(folder, capsys):
    folder.write_text("not a folder")
    enable_compilation_cache(str(folder / "inside"))
    assert capsys.readouterr().err.startswith("Compiled programs are not kept: [Errno ")
    assert jax.config.jax_compilation_cache_dir is None


def run_program(divisor=3):
    """Compile a new program, or load it from the folder, and return its result."""

    def program(x):
        return jnp.sin(x).sum() / divisor

    return np.asarray(jax.jit(program)(np.arange(5, dtype=np.float32)))


def test_damaged_programs_are_compiled_again_and_replaced(folder, capsys):
    enable_compilation_cache(str(folder))
    expected = run_program()
    (path,) = folder.glob("jit_program-*-cache")
    whole = path.read_bytes()
    for damaged in (b"", whole[: len(whole) // 2], whole[:-1] + bytes([whole[-1] ^ 1])):
        path.write_bytes(damaged)
        assert run_program() == expected
        assert capsys.readouterr().err == (
            f"A stored program in {folder} cannot be read. It is compiled again.\n"
        )
        assert zlib.decompress(path.read_bytes())
    time = path.stat().st_mtime_ns
    assert run_program() == expected  # from the file
    assert (path.stat().st_mtime_ns, capsys.readouterr().err) == (time, "")


def test_several_writers_of_the_same_programs_do_no_harm(folder, capsys):
    """Threads stand for processes: JAX reads and writes the files without a lock in both cases."""
    enable_compilation_cache(str(folder))
    writers, divisors = 4, range(1, 7)
    begin = threading.Barrier(writers)

    def run_programs(_):
        begin.wait()
        return [run_program(divisor) for divisor in divisors]

    with ThreadPoolExecutor(writers) as threads:
        results = list(threads.map(run_programs, range(writers)))
    capsys.readouterr()  # A writer may say that it read a program which another one was writing.
    assert results == [[run_program(divisor) for divisor in divisors]] * writers
    paths = list(folder.glob("jit_program-*-cache"))
    assert len(paths) == len(divisors)
    assert all(zlib.decompress(path.read_bytes()) for path in paths)
    assert capsys.readouterr().err == ""


def test_the_oldest_programs_are_removed_from_a_large_folder(tmp_path):
    for age, name in enumerate(("new", "middle", "old")):
        path = tmp_path / f"cpu{age}" / f"{name}-cache"
        path.parent.mkdir()
        path.write_bytes(bytes(10))
        os.utime(path, (1000 - age, 1000 - age))
    remove_oldest_files(tmp_path, max_bytes=20)
    assert sorted(path.name for path in tmp_path.rglob("*-cache")) == ["middle-cache", "new-cache"]
