"""Files that are either complete or absent, even if the process is killed while it writes them."""

import os

from etils import epath


def write_whole(path: epath.Path, text: str) -> None:
    """Write a file under a temporary name, then rename it.

    The file has either its old or its new content at any time, also after a power failure.
    """
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("w") as file:
            file.write(text)
            file.flush()
            if "://" not in str(path):
                os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
