"""Write files atomically: they are complete or absent, even if their process is killed."""

import errno
import os

from etils import epath


def is_disk_full(error: BaseException) -> bool:
    """Return True if an error says that the disk, or the user's share of it, is full."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def write_atomically(path: epath.Path, text: str) -> None:
    """Write a file under a temporary name, then rename it.

    The file has either its old or its new content at any time, also after a power failure.
    """
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            if "://" not in str(path):
                os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
