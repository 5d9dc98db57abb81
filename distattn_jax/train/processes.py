"""Cooperation of processes: locks on files, and function calls whose result all processes get."""

import contextlib
import datetime
import errno
import fcntl
import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

# Errors of file systems that have no locks, such as some network mounts.
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP)


class LockedError(Exception):
    """Raised when another process holds a lock. The message describes that process."""


@contextlib.contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file. The file names the process that holds the lock.

    The file is not deleted when the lock is released. If the file system does not support locks,
    this function only writes the file.

    Args:
      path: Path of the file. The file is created if it does not exist.

    Raises:
      LockedError: Another process holds the lock.
    """
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockedError(_describe_holder(path)) from None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
        file.truncate(0)
        now = datetime.datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        file.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": now}))
        file.flush()
        yield


def _describe_holder(path: Path) -> str:
    """Return a description of the process that holds a lock, as stored in the locked file."""
    try:
        holder = json.loads(path.read_text())
        return f"process {holder['pid']} on {holder['host']}, since {holder['since']}"
    except (OSError, ValueError, LookupError, TypeError):  # It is being written.
        return "another process"


def call_in_first_process(function: Callable[[], Any]) -> Any:
    """Call a function in the first process, and return its result in all processes.

    Args:
      function: Function that returns a JSON value. It must not raise an error, because the other
        processes wait for its result.
    """
    if jax.process_count() == 1:
        return function()
    is_first = jax.process_index() == 0
    text = json.dumps(function()).encode() if is_first else b""
    size = int(multihost_utils.broadcast_one_to_all(np.int32(len(text))))
    content = np.frombuffer(text.ljust(size, b"\0"), np.uint8)
    return json.loads(np.asarray(multihost_utils.broadcast_one_to_all(content)).tobytes())
