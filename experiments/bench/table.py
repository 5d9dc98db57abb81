"""Rows of benchmark results, and functions that format the rows as a text table."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.bench.cases import (
    BASELINES,
    BY_HAND,
    BY_HAND_CASES,
    COMPARED,
    REFERENCE_CASE,
)
from experiments.bench.shapes import BACKWARD, SHAPES, Shape

COLUMNS = {
    "": ("used",),
    "relative error": ("values", "dq dk dv", "d param"),
    "compiler": ("seconds", "temp MiB"),
    "forward": ("ms", "TFLOP/s", "ratio"),
    "forward + backward": ("ms", "TFLOP/s", "ratio"),
}
CASE_WIDTH, CELL_WIDTH = 35, 10  # characters
SHORT_CASE_WIDTH = 28

SHORT_NAMES = {"pallas_portable": "portable"}  # of implementations, in a cell
EMPTY = "-"  # a cell without a value


@dataclasses.dataclass(frozen=True)
class Row:
    """Measurements of one case at one shape. A value that was not measured is None.

    Attributes:
      shape: Name of the shape.
      case: Name of the case.
      message: Reason why something was not measured, or "".
      implementation: Name of the implementation that computed the case, or "" if it is unknown.
      errors: Dict from the name of each output and gradient to its relative error.
      compile_seconds: Time to compile a program of one forward and backward pass, while other
        processes compile other cases.
      temporary_mib: Memory in MiB that a call needs in addition to its inputs and outputs.
      forward_ms: Milliseconds of a forward pass.
      forward_tflops: 10¹² floating-point operations per second in a forward pass.
      forward_ratio: `forward_ms` divided by `forward_ms` of the reference case. The reference case
        of a shape without a name is its baseline (see `find_baseline`).
      both_ms: Milliseconds of a forward and backward pass.
      both_tflops: 10¹² floating-point operations per second in a forward and backward pass.
      both_ratio: `both_ms` divided by `both_ms` of the reference case.
    """

    shape: str
    case: str
    message: str = ""
    implementation: str = ""
    errors: Mapping[str, float] = dataclasses.field(default_factory=dict)
    compile_seconds: float | None = None
    temporary_mib: float | None = None
    forward_ms: float | None = None
    forward_tflops: float | None = None
    forward_ratio: float | None = None
    both_ms: float | None = None
    both_tflops: float | None = None
    both_ratio: float | None = None


def add_rates(row: Row, shape: Shape, reference: Row | None) -> Row:
    """Return a copy of the row with TFLOP/s, and with time ratios to the reference row, if any.

    A forward and backward pass is assumed to need the operations of 3.5 forward passes.
    Recomputation in the backward pass is not included.
    """
    return dataclasses.replace(
        row,
        forward_tflops=_tflops(shape.flops, row.forward_ms),
        both_tflops=_tflops(shape.flops * (1 + BACKWARD), row.both_ms),
        forward_ratio=_ratio(row.forward_ms, reference.forward_ms) if reference else None,
        both_ratio=_ratio(row.both_ms, reference.both_ms) if reference else None,
    )


def format_header() -> str:
    """Format the two header lines: the names of the column groups and of the columns."""
    groups = "".join(f"{title:>{CELL_WIDTH * len(names)}}" for title, names in COLUMNS.items())
    names = "".join(f"{name:>{CELL_WIDTH}}" for names in COLUMNS.values() for name in names)
    return f"{'':<{CASE_WIDTH}}{groups}\n{'case':<{CASE_WIDTH}}{names}"


def format_row(row: Row) -> str:
    """Format one line of the table. A row without times shows its message instead."""
    inputs = ("d_query", "d_key", "d_value")
    groups: list[list[float]] = [[], [], []]
    for name, error in row.errors.items():
        groups[1 if name in inputs else 2 if name.startswith("d_") else 0].append(error)
    cells = [SHORT_NAMES.get(row.implementation, row.implementation) or EMPTY]
    cells += [f"{max(errors):.1e}" if errors else EMPTY for errors in groups]
    cells += [_format_cell(row.compile_seconds, 1), _format_cell(row.temporary_mib, 1)]
    for ms, tflops, ratio in (
        (row.forward_ms, row.forward_tflops, row.forward_ratio),
        (row.both_ms, row.both_tflops, row.both_ratio),
    ):
        digits = 3 if (tflops or 0) < 1 else 1
        cells += [_format_cell(ms, 3), _format_cell(tflops, digits), _format_cell(ratio, 2)]
    has_times = row.forward_ms is not None or not row.message
    line = "".join(f"{cell:>{CELL_WIDTH}}" for cell in cells) if has_times else ""
    return f"{row.case:<{CASE_WIDTH}}{line}{'  ' if line and row.message else ''}{row.message}"


def find_baseline(rows: Sequence[Row], shape: str) -> Row | None:
    """Return the timed row with which other rows of a shape are compared, or None.

    The baseline of a named shape is the reference case. The baseline of another shape is the first
    of `BASELINES` that was timed.

    Args:
      rows: Rows of this shape, and of others.
      shape: Name of the shape.
    """
    timed = {row.case: row for row in rows if row.shape == shape and row.both_ms is not None}
    candidates = (REFERENCE_CASE,) if shape in SHAPES else BASELINES
    return next((timed[case] for case in candidates if case in timed), None)


def format_short_header() -> str:
    """Format the two header lines of a table that fits into a terminal."""
    groups = f"{'forward':>19}{'forward + backward':>21}{'temporary':>12}"
    names = f"{'ms':>11}{'ratio':>8}{'ms':>13}{'ratio':>8}{'MiB':>12}"
    return f"{'':<{SHORT_CASE_WIDTH + 8}}{groups}\n{'case':<{SHORT_CASE_WIDTH}}{'used':<8}{names}"


def format_short_row(row: Row) -> str:
    """Format one line of a table that fits into a terminal. A message replaces missing times."""
    start = f"{row.case:<{SHORT_CASE_WIDTH}}{row.implementation or EMPTY:<8}"
    if row.both_ms is None:
        return f"{start}  {row.message}"
    forward = f"{_format_cell(row.forward_ms, 3):>11}{_format_cell(row.forward_ratio, 2):>8}"
    both = f"{_format_cell(row.both_ms, 3):>13}{_format_cell(row.both_ratio, 2):>8}"
    return f"{start}{forward}{both}{_format_cell(row.temporary_mib, 1):>12}"


def read_rows(content: Mapping[str, Any]) -> list[Row]:
    """Return the rows of a stored benchmark. Older files use the key "said" for `message`."""
    return [
        Row(**{"message" if name == "said" else name: value for name, value in line.items()})
        for line in content["lines"]
    ]


def format_ratios(rows: Sequence[Row], titles: Mapping[str, str]) -> str:
    """Format a Markdown table of the times of a forward and backward pass.

    The table has one line per case and one column per shape. The line of the reference case has
    milliseconds. All other lines have ratios to the reference case. A case without a time has its
    message instead.

    Args:
      rows: Rows of all shapes.
      titles: Dict from the name of each shape to its title.
    """
    by_names = {(row.case, row.shape): row for row in rows}
    lines = [["", "used", *titles.values()], ["---", "---", *["---:"] * len(titles)]]
    for case in dict.fromkeys(row.case for row in rows):
        found = [by_names.get((case, shape)) for shape in titles]
        used = dict.fromkeys(row.implementation for row in found if row and row.implementation)
        is_reference = case == REFERENCE_CASE
        cells = [_format_time(row, is_reference) if row else EMPTY for row in found]
        name = case.replace("_", " ")
        lines.append([f"{name}, ms" if is_reference else name, ", ".join(used) or EMPTY, *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def format_comparison(rows: Sequence[Row], titles: Mapping[str, str], measure: str) -> str:
    """Format a Markdown table that compares implementations with attention written by hand.

    The table has one line per case and one column per shape. The lines of attention written by hand
    have milliseconds or MiB, and the other lines have ratios to them.

    Args:
      rows: Rows of all shapes. Other cases are left out.
      titles: Dict from the name of each shape to its title.
      measure: Field of `Row` to compare: "forward_ms", "both_ms" or "temporary_mib".
    """
    numbers = {(row.case, row.shape): getattr(row, measure) for row in rows}
    unit = "MiB" if measure == "temporary_mib" else "ms"
    lines = [["", *titles.values()], ["---", *["---:"] * len(titles)]]
    for case, name in itertools.product(COMPARED, (BY_HAND, "jax_nn", "xla")):
        full = f"{case}_{name}"
        if full not in BY_HAND_CASES or not any((full, shape) in numbers for shape in titles):
            continue
        found = [numbers.get((full, shape)) for shape in titles]
        if name == BY_HAND:
            cells = [EMPTY if number is None else f"{number:.3g}" for number in found]
        else:
            hand = [numbers.get((f"{case}_{BY_HAND}", shape)) for shape in titles]
            cells = [_format_cell(_ratio(*pair), 2) for pair in zip(found, hand, strict=True)]
        label = full.replace("_", " ")
        lines.append([f"{label}, {unit}" if name == BY_HAND else label, *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def shorten_message(message: str) -> str:
    """Shorten a message to the part before its first colon: "refused: dtype" to "refused"."""
    return message.partition(":")[0]


def _format_time(row: Row, is_reference: bool) -> str:
    """Format the milliseconds of the reference case, or the ratio of any other case."""
    time = row.both_ms if is_reference else row.both_ratio
    if time is None:
        return shorten_message(row.message) or EMPTY
    return f"{time:.3g}" if is_reference else f"{time:.2f}"


def _format_cell(value: float | None, digits: int) -> str:
    """Format a number with `digits` decimals. None is formatted as "-"."""
    return EMPTY if value is None else f"{value:.{digits}f}"


def _tflops(flops: float, milliseconds: float | None) -> float | None:
    """Return the number of floating-point operations per second, divided by 10¹².

    The result is None if `milliseconds` is None.
    """
    return None if milliseconds is None else flops / milliseconds / 1e9


def _ratio(number: float | None, reference: float | None) -> float | None:
    """Return a time or a size divided by that of a reference, or None if either is None."""
    return None if number is None or not reference else number / reference
