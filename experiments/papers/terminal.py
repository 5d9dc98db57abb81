"""Summary of a report for the terminal: a short table, notes and the paths of the files."""

import re
from collections.abc import Sequence
from typing import Any

from distattn_jax.train.config import SHORT_RUN


def describe_short_run(steps: int) -> str:
    """Return a warning about the results of a run that has only `steps` steps."""
    return (
        f"Trained for {steps} steps only. A model learns little in less than {SHORT_RUN} steps: do "
        "not compare such results."
    )


def summarize_report(markdown: str, folder: Any) -> str:
    """Return a short version of a report: the main results, notes and the paths of its files.

    Args:
      markdown: Text of the report, as in report.md.
      folder: Folder of the experiment, with report.md and the figures.
    """
    parts = markdown.strip().split("\n\n")
    tables = [part for part in parts if part.startswith("|")]
    lines = [align_table(select_columns(read_table(tables[0])))] if tables else []
    lines += select_notes(parts)
    files = [f"all tables  {folder / 'report.md'}"]
    files += [
        f"figure      {folder / name}" for name in re.findall(r"^!\[.*\]\((.*)\)$", markdown, re.M)
    ]
    return "\n\n".join([*lines, "\n".join(files)])


def select_notes(parts: Sequence[str]) -> list[str]:
    """Return the parts of a report that are text: no heading, table, title of a table or figure."""
    following = [*parts[1:], ""]
    return [
        part
        for part, after in zip(parts, following, strict=True)
        if not part.startswith(("#", "|", "![")) and not after.startswith("|")
    ]


def read_table(markdown: str) -> list[list[str]]:
    """Return the cells of a Markdown table by row. The first row is the header."""
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in markdown.split("\n")]
    return [rows[0], *rows[2:]]


def select_columns(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return the columns for a terminal: method, main metric of each split, and seeds.

    The main metric of a split is in the first column whose title begins with the split.
    """
    header = rows[0]
    chosen = [0]
    for start in ("validation ", "test ", "seeds"):
        chosen += [i for i, title in enumerate(header) if title.startswith(start)][:1]
    return [[row[i] for i in chosen] for row in rows]


def align_table(rows: Sequence[Sequence[str]]) -> str:
    """Return a table as text: the first column left-aligned, all others right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = (f"{cell:>{width}}" for cell, width in zip(others, widths[1:], strict=True))
        lines.append("  ".join([f"{first:<{widths[0]}}", *cells]).rstrip())
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])
