"""Read the JSON files of a run. Errors name the file, and the line of a file with lines."""

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

    A last line without a line break is skipped: the process was killed while it wrote this line.

    Args:
      path: Path of the file.
      names: Names that each object must contain. Their values must be numbers.
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
    """Return True if a part of a result is complete: seed, setting and metrics of one model.

    Args:
      member: Part of the result.
      criterion: Name of the metric that each split must have.
      splits: Names of the splits.
    """
    if not isinstance(member, dict) or not isinstance(member.get("seed"), int):
        return False
    parts = [member.get(name) for name in ("setting", *splits)]
    return all(
        isinstance(part, dict) and all(isinstance(value, int | float) for value in part.values())
        for part in parts
    ) and all(criterion in member[split] for split in splits)
