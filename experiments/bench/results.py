"""Stored results of the benchmark: add the rows of a new run to the rows of earlier runs."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from experiments.bench.cases import ALL_CASES
from experiments.bench.pytorch import PEERS
from experiments.bench.shapes import SHAPES
from experiments.bench.table import Row, read_rows
from experiments.papers.stored_results import round_numbers

TIMED_PACKAGES = ("jax", "jaxlib")  # Times depend on them. Other packages may change.


def add_rows(
    setup: Mapping[str, Any], rows: Iterable[Row], stored: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the content of a results file: the new rows, and the stored rows of earlier runs.

    A new row replaces the stored row of the same shape and case. Stored ratios do not change: they
    are relative to the reference case of the earlier run. Rows are sorted by shape and case. Shapes
    without a name come last.

    Args:
      setup: Setup of the new run.
      rows: Rows of the new run.
      stored: Content of a file of earlier runs, for which `check_same_setup` has passed, or None.
        Its environment is kept.
    """
    content = dict(setup)
    merged = {}
    if stored is not None:
        content["environment"] = stored["environment"]
        shapes = {**stored["shapes"], **setup["shapes"]}
        content["shapes"] = {
            name: shapes[name] for name in dict.fromkeys([*SHAPES, *shapes]) if name in shapes
        }
        content["runs"] = [*stored.get("runs", []), *setup["runs"]]
        merged = {(row.shape, row.case): row for row in read_rows(stored)}
    merged |= {(row.shape, row.case): row for row in rows}
    orders = [list(content["shapes"]), [*ALL_CASES, *PEERS]]
    keys = sorted(merged, key=lambda names: list(map(_find, orders, names)))
    content["lines"] = [dataclasses.asdict(merged[key]) for key in keys]
    return round_numbers(content)


def check_same_setup(setup: Mapping[str, Any], stored: Mapping[str, Any], path: Any) -> None:
    """Raise a ValueError if the rows of two runs cannot be compared, and must not share a file.

    Device, platform, versions of `TIMED_PACKAGES`, dtype, w, v and the sizes of the shapes must be
    equal.

    Args:
      setup: Setup of the new run.
      stored: Content of the file of earlier runs.
      path: Path of the file, for the error message.
    """
    old, new = (content["environment"] for content in (stored, setup))
    pairs = {name: (old.get(name), new.get(name)) for name in ("device", "platform")}
    for name in TIMED_PACKAGES:
        pairs[name] = (old["packages"].get(name), new["packages"].get(name))
    pairs |= {name: (stored[name], setup[name]) for name in ("dtype", "w", "v")}
    for name, sizes in setup["shapes"].items():
        pairs[f"shape {name}"] = (stored["shapes"].get(name, sizes), sizes)
    different = [
        f"{name} was {before}, now it is {now}"
        for name, (before, now) in pairs.items()
        if before != now
    ]
    if different:
        raise ValueError(
            f"--add cannot mix these results with those of {path}: {'; '.join(different)}. "
            "Use another --output, or omit --add to replace the file."
        )


def _find(names: Sequence[str], name: str) -> int:
    """Return the index of a name in a list, or the length of the list if the name is missing."""
    return names.index(name) if name in names else len(names)
