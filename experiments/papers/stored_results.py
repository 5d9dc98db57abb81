"""Results small enough to keep: what the runs of one experiment came to, in one JSON file.

`collect` writes them from runs; `report da` and `report guiding` make tables and figures of them,
and put these into RESULTS.md, between two marks.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from etils import epath

AnyPath = str | Path | epath.Path
FOLDER = Path(__file__).parent.parent / "results"
RESULTS = Path(__file__).parent.parent / "RESULTS.md"
DIGITS = 5  # kept of every number


def write(content: Mapping[str, Any], folder: AnyPath = FOLDER) -> epath.Path:
    """Keeps the results of an experiment, a line for each of its parts."""
    path = epath.Path(folder) / f"{content['experiment']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_text(content, depth=2) + "\n")
    return path


def read(name: str, folder: AnyPath = FOLDER) -> dict[str, Any] | None:
    """The results of an experiment; None: there are none."""
    path = epath.Path(folder) / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def results_of(content: Mapping[str, Any], methods: Sequence[str]) -> list[dict[str, Any]]:
    """What these methods came to, in this order; those that were not run are left out."""
    return [content["runs"][method]["result"] for method in methods if method in content["runs"]]


def put_into_results_md(paper: str, text: str, path: Path = RESULTS) -> None:
    """Replaces what stands between the marks of a paper; all else was written by hand."""
    before, after = (f"<!-- {word} of report {paper} -->" for word in ("begin", "end"))
    written = path.read_text()
    if before not in written or after not in written:
        raise ValueError(f"{path}: must hold the lines {before} and {after}.")
    head, tail = written.partition(before)[0], written.partition(after)[2]
    path.write_text(f"{head}{before}\n\n{text}\n{after}{tail}")


def rounded(content: Any) -> Any:
    """With few digits of every number, and lists in the place of arrays."""
    if isinstance(content, np.ndarray):
        return rounded(content.tolist())
    if isinstance(content, Mapping):
        return {key: rounded(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [rounded(value) for value in content]
    return float(f"{content:.{DIGITS}g}") if isinstance(content, float) else content


def _text(content: Any, *, depth: int, indent: str = "") -> str:
    """JSON with a line for each entry down to a depth."""
    if depth == 0 or not isinstance(content, Mapping):
        return json.dumps(content)
    inner = indent + " "
    lines = [
        f"{inner}{json.dumps(key)}: {_text(value, depth=depth - 1, indent=inner)}"
        for key, value in content.items()
    ]
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
