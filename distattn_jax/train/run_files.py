"""Read and write the files of a run.

Files are written atomically: a file is complete or absent, even if the process is killed. If a file
has wrong content, the error names the file. In a file of JSON lines, the error also names the line.
"""

import errno
import hashlib
import json
import os
from collections.abc import Collection
from typing import Any

from etils import epath

from distattn_jax.data import files
from distattn_jax.data.files import DataError, parse_json, read_text

KINDS: dict[type, str] = {dict: "an object", list: "a list"}


def read_json(path: epath.Path, kind: type = dict) -> Any:
    """Return the content of a JSON file, or None if the file does not exist.

    Args:
      path: Path of the file.
      kind: Type that the content must have: dict or list.
    """
    if not path.exists():
        return None
    content = files.read_json(path)
    if not isinstance(content, kind):
        raise DataError(f"{path}: must contain {KINDS[kind]}; got {type(content).__name__}.")
    return content


def read_json_lines(path: epath.Path, names: Collection[str]) -> list[dict[str, Any]]:
    """Return the objects of a file with one JSON object per line, or [] if there is no file.

    If the last line has no line break, it is skipped: the process was killed while it wrote this
    line.

    Args:
      path: Path of the file.
      names: Keys that each object must have. Their values must be numbers.
    """
    lines = read_text(path).split("\n")[:-1] if path.exists() else []
    objects = []
    for number, line in enumerate(lines, start=1):
        content = parse_json(line, f"{path}:{number}")
        values = content if isinstance(content, dict) else {}
        if not all(isinstance(values.get(name), int | float) for name in names):
            raise DataError(f"{path}:{number}: must be an object with numbers {', '.join(names)}.")
        objects.append(content)
    return objects


def read_result(path: epath.Path) -> dict[str, Any] | None:
    """Return the content of result.json, or None if the file does not exist."""
    result = read_json(path)
    if result is None:
        return None
    digest = result.pop("digest", None)  # Runs of older versions have none.
    if digest is not None and digest != hash_text(json.dumps(result)):
        raise DataError(f"{path}: changed after it was saved. Restore it, or remove it and train.")
    kinds = {"method": str, "criterion": str, "parameters": int, "members": list}
    wrong = [name for name, kind in kinds.items() if not isinstance(result.get(name), kind)]
    if wrong or not result["members"]:
        raise DataError(f"{path}: must contain method, criterion, parameters and members.")
    has_test = any(isinstance(member, dict) and "test" in member for member in result["members"])
    splits = ("validation", "test") if has_test else ("validation",)
    for i, member in enumerate(result["members"]):
        if not _is_member(member, result["criterion"], splits):
            raise DataError(
                f"{path}: model {i} of members must have a seed, a setting, and the metric "
                f"{result['criterion']!r} of each split."
            )
    return result


def _is_member(member: Any, criterion: str, splits: Collection[str]) -> bool:
    """Return True if an entry of `members` in result.json has a seed, a setting and all metrics."""
    if not isinstance(member, dict) or not isinstance(member.get("seed"), int):
        return False
    parts = [member.get(name) for name in ("setting", *splits)]
    return all(
        isinstance(part, dict) and all(isinstance(value, int | float) for value in part.values())
        for part in parts
    ) and all(criterion in member[split] for split in splits)


def write_result(path: epath.Path, result: dict[str, Any]) -> None:
    """Write result.json with a digest of its content, which `read_result` checks."""
    write_json(path, {**result, "digest": hash_text(json.dumps(result))})


def hash_text(text: str) -> str:
    """Return the SHA-256 digest of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def is_disk_full(error: BaseException) -> bool:
    """Return True if the error means that the disk is full or the disk quota is exceeded."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def write_atomically(path: epath.Path, text: str | bytes) -> None:
    """Write a file under a temporary name, then rename it.

    At any time, the file has either its old or its new content, even after a power failure.
    """
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            file.write(text.encode() if isinstance(text, str) else text)
            file.flush()
            if "://" not in str(path):
                os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_json(path: epath.Path, content: Any) -> None:
    """Write a JSON file atomically: a killed process leaves no incomplete file."""
    write_atomically(path, json.dumps(content, indent=2) + "\n")
