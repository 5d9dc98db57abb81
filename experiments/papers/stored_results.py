"""Read and write the stored results: one small JSON file per experiment.

`python -m experiments collect` writes these files from finished runs. `python -m experiments report
PAPER` makes tables and figures from these files, where PAPER is da, guiding, shaw or when_to_use.
Both commands write to a folder that Git ignores. With `--update`, they write to
`experiments/results` and to the page RESULTS.md instead.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from etils import epath

from distattn_jax.train.run_files import read_json, write_atomically

AnyPath = str | Path | epath.Path
FOLDER = Path(__file__).parent.parent / "results"
NEW_FOLDER = "results"  # new results, in the working directory; Git ignores this folder
RESULTS_PAGE = Path(__file__).parent.parent / "RESULTS.md"
DIGITS = 5  # significant digits of every stored number
SEARCHED = "_search"  # suffix of the name of an experiment that searches settings


def write_results(content: Mapping[str, Any], folder: AnyPath = FOLDER) -> epath.Path:
    """Write the results of an experiment to a JSON file.

    If the process is killed while it writes, an existing file stays unchanged.

    Args:
      content: Results. The file name is `content["experiment"]` with the ending ".json".
      folder: Folder of the file.

    Returns:
      Path of the file.
    """
    path = epath.Path(folder) / f"{content['experiment']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, _to_json(content, depth=2) + "\n")
    return path


def read_results(experiment: str, folder: AnyPath = FOLDER) -> dict[str, Any] | None:
    """Return the stored results of an experiment, or None if their file does not exist."""
    return read_json(epath.Path(folder) / f"{experiment}.json")


def read_notes(paper: str, folder: AnyPath = FOLDER) -> str:
    """Return the notes on how the runs for a paper were made, or "" if the file does not exist.

    Args:
      paper: "da", "guiding", "shaw" or "when_to_use". The notes are in the file `notes_{paper}.md`.
      folder: Folder of the stored results.
    """
    path = epath.Path(folder) / f"notes_{paper}.md"
    return f"{path.read_text()}\n" if path.exists() else ""


def update_results_page(paper: str, text: str, path: Path = RESULTS_PAGE) -> None:
    """Replace the part of a Markdown page that reports on one paper.

    The replaced part is between the comments "begin of report PAPER" and "end of report PAPER".

    Args:
      paper: Word for PAPER in the comments: "da", "guiding", "shaw" or "when_to_use".
      text: New Markdown text between the comments.
      path: File of the page.
    """
    begin, end = (f"<!-- {word} of report {paper} -->" for word in ("begin", "end"))
    page = path.read_text()
    if begin not in page or end not in page:
        raise ValueError(f"{path} must hold the lines {begin} and {end}; add them.")
    before, after = page.partition(begin)[0], page.partition(end)[2]
    path.write_text(f"{before}{begin}\n\n{text}\n{end}{after}")


def round_numbers(content: Any) -> Any:
    """Round every float in a nested structure to DIGITS digits, and turn arrays into lists."""
    if isinstance(content, np.ndarray):
        return round_numbers(content.tolist())
    if isinstance(content, Mapping):
        return {key: round_numbers(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [round_numbers(value) for value in content]
    return float(f"{content:.{DIGITS}g}") if isinstance(content, float) else content


def _to_json(content: Any, *, depth: int, indent: str = "") -> str:
    """Return `content` as JSON text.

    The outer `depth` levels of dicts have one line per key. Each value below these levels is
    written on a single line.
    """
    if depth == 0 or not isinstance(content, Mapping):
        return json.dumps(content)
    inner = indent + " "
    lines = [
        f"{inner}{json.dumps(key)}: {_to_json(value, depth=depth - 1, indent=inner)}"
        for key, value in content.items()
    ]
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
