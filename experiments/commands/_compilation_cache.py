"""Folder of compiled programs, so that a second start of the same training hardly compiles.

JAX stores every compiled program in a file. The name of the file is a digest of the program, of the
options of the compiler and of the versions of JAX and of the compiler, so that a stored program is
never used for another one. Each kind of CPU has its own folder, because programs for a CPU contain
its machine code, and a home folder may be shared by several machines.

Several processes may use the folder at the same time: JAX ignores a file that is not complete.
"""

import contextlib
import hashlib
import os
import platform
import re
import sys
import warnings
import zlib
from pathlib import Path
from typing import Any

import jax

DISABLED = "none"  # name of a folder that stands for no folder
MIN_COMPILE_SECONDS = 0.2  # A program that compiles faster is not worth a file.
MAX_BYTES = 2 * 2**30  # The oldest files are removed if the folder is larger.
READING_FAILED = re.compile(r"Error reading persistent compilation cache entry for '([^']+)'")


def enable_compilation_cache(folder: str = "") -> None:
    """Let JAX keep compiled programs in a folder.

    The environment variable JAX_COMPILATION_CACHE_DIR overrides the argument. If the folder cannot
    be written, a line on standard error says so, and programs are not kept.

    Args:
      folder: Folder of compiled programs. The empty string selects `default_folder()`, and "none"
        keeps no programs.
    """
    if os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        folder = os.environ["JAX_COMPILATION_CACHE_DIR"]
    elif folder != DISABLED:
        try:
            path = Path(folder).expanduser() if folder else default_folder()
            path.mkdir(parents=True, exist_ok=True, mode=0o700)  # The files contain machine code.
            remove_oldest_files(path.parent if not folder else path, MAX_BYTES)
        except (OSError, RuntimeError) as error:
            print(f"Compiled programs are not kept: {error}", file=sys.stderr)
            return
        folder = str(path)
        jax.config.update("jax_compilation_cache_dir", folder)
    if folder == DISABLED:
        return
    if not os.environ.get("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"):
        jax.config.update("jax_persistent_cache_min_compile_time_secs", MIN_COMPILE_SECONDS)
    _remove_damaged_files_when_read(folder)


def default_folder() -> Path:
    """Return the folder of compiled programs for this kind of CPU, in the cache of the user."""
    root = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not root.is_absolute():  # The specification of XDG ignores relative folders.
        root = Path.home() / ".cache"
    return root / "distattn_jax" / "compiled" / name_cpu()


def name_cpu() -> str:
    """Return a name for the CPU: its architecture and a digest of its instruction sets."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        lines = [platform.processor()]
    features = [line for line in lines if line.lower().startswith(("flags", "features"))] or lines
    return f"{platform.machine()}-{hashlib.sha256(features[0].encode()).hexdigest()[:8]}"


def remove_oldest_files(folder: Path, max_bytes: int) -> None:
    """Remove the oldest compiled programs until all files have at most `max_bytes` bytes."""
    files = []
    for path in folder.rglob("*-cache"):
        with contextlib.suppress(FileNotFoundError):  # Another process has removed the file.
            files.append((path.stat().st_mtime, path.stat().st_size, path))
    total = 0
    for _, size, path in sorted(files, reverse=True):
        total += size
        if total > max_bytes:
            path.unlink(missing_ok=True)


def _remove_damaged_files_when_read(folder: str) -> None:
    """Remove a damaged file when JAX warns about it, and print a line instead of the warning.

    JAX ignores a damaged file and compiles the program, but stores it only if no file has its name.
    """
    show_others = warnings.showwarning

    def show_warning(message: Any, *arguments: Any, **more: Any) -> None:
        failed = READING_FAILED.match(str(message))
        if failed is None:
            return show_others(message, *arguments, **more)
        for path in Path(folder).glob(f"{failed[1]}-*-cache"):
            if _is_damaged(path):
                path.unlink(missing_ok=True)
        return print(
            f"A stored program in {folder} cannot be read. It is compiled again.", file=sys.stderr
        )

    warnings.showwarning = show_warning


def _is_damaged(path: Path) -> bool:
    """Return True if a file is not complete, or changed after it was written."""
    try:
        zlib.decompress(path.read_bytes())
    except (OSError, zlib.error):
        return True
    return False
