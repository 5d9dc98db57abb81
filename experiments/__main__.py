"""Command line of the experiments: `python -m experiments COMMAND ...`."""

import contextlib
import errno
import gc
import importlib
import linecache
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from experiments import summarize_modules

ROOT = Path(__file__).parent.parent
# Errors of the operating system: no permission, no such folder, no space, a file that is too large.
USER_ERRNOS = frozenset(
    {
        *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.EEXIST),
        *(errno.ENOTDIR, errno.EISDIR, errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
        errno.ENAMETOOLONG,
    }
)
OWN_PACKAGES = (ROOT / "distattn_jax", ROOT / "experiments")


@contextlib.contextmanager
def exit_when_interrupted() -> Iterator[None]:
    """Exit with a short message after Ctrl-C, also while the packages are imported."""
    try:
        yield
    except KeyboardInterrupt as stopped:
        print(f"\ninterrupted. {stopped}".rstrip(), file=sys.stderr)
        sys.stdout.flush()
        os._exit(130)  # Threads that still compile would delay a normal exit.


@contextlib.contextmanager
def exit_at_interrupt() -> Iterator[None]:
    """Exit at once after Ctrl-C, without a KeyboardInterrupt.

    Some extension modules print a traceback or crash if an exception interrupts their import.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        os.write(sys.stderr.fileno(), b"\ninterrupted.\n")
        os._exit(130)

    before = signal.getsignal(signal.SIGINT)
    if before is not raise_interrupt:  # The caller handles Ctrl-C, or ignores it.
        yield
        return
    signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@exit_when_interrupted()
def main(arguments: list[str]) -> None:
    """Run a command. If the user's input is wrong, print the error without a traceback."""
    for number, argument in enumerate(arguments, start=1):
        if not argument.isascii() and any("\ud800" <= letter <= "\udfff" for letter in argument):
            raise SystemExit(f"error: argument {number} is not UTF-8: {argument!r}")
    commands = list_commands()
    if arguments[:1] == ["--version"]:
        from distattn_jax import __version__

        print(f"distattn-jax {__version__}")
        return
    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: python -m experiments [--help | --version] COMMAND ...\n")
        for name, summary in commands.items():
            print(f"  {name:<15}{summary}")
        print("\nCOMMAND --help describes a command, train RECIPE --help the options of a recipe.")
        sys.exit(0 if arguments else 2)
    name, *rest = arguments
    if name not in commands:
        from distattn_jax.names import suggest  # Listing names needs no library.

        raise SystemExit(f"unknown command {name!r}: {suggest(name, commands)}")
    try:
        with exit_at_interrupt():
            command = importlib.import_module(f"experiments.commands.{name}")
        command.main(rest)
    except Exception as error:
        if not is_user_error(error):
            raise
        raise SystemExit(f"error: {error}") from None


def list_commands() -> dict[str, str]:
    """Return a dict from the name of each command to the first line of its docstring."""
    return summarize_modules(ROOT / "experiments" / "commands")


def is_user_error(error: Exception) -> bool:
    """Return True if the user can remove the cause of an error, and needs no traceback.

    These errors are our own exception classes, a ValueError from a `raise` statement in our
    packages, and files that the operating system refuses to read or write. A ValueError from JAX or
    NumPy is a bug, and its traceback is needed.
    """
    if type(error).__module__.startswith(("distattn_jax.", "experiments.")):
        return True
    if isinstance(error, OSError):
        return error.errno in USER_ERRNOS
    if isinstance(error, ImportError):  # A package that a cloud bucket needs has no `name`.
        return error.name is None
    traceback = error.__traceback__
    if not isinstance(error, ValueError) or traceback is None:
        return False
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    file = traceback.tb_frame.f_code.co_filename
    is_own = any(Path(file).is_relative_to(package) for package in OWN_PACKAGES)
    return is_own and linecache.getline(file, traceback.tb_lineno).lstrip().startswith("raise")


@contextlib.contextmanager
def exit_with_reader() -> Iterator[None]:
    """Exit without a message if a program that reads our output, such as `head`, has ended."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes the output again at exit, which must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)  # the exit status of a process ended by SIGPIPE


def raise_interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, but not while a callback of the garbage collector runs.

    Python ignores errors in such a callback, and JAX has one, so the interrupt would be lost. The
    signal is sent again a moment later instead.

    Args:
      number: Signal, SIGINT.
      frame: Stack frame that the signal interrupted.
    """
    callbacks = {getattr(callback, "__code__", None) for callback in gc.callbacks}
    while frame is not None:
        if frame.f_code in callbacks:
            threading.Timer(0.01, os.kill, (os.getpid(), number)).start()
            return
        frame = frame.f_back
    raise KeyboardInterrupt


if __name__ == "__main__":
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, raise_interrupt)
    with exit_with_reader():
        main(sys.argv[1:])
