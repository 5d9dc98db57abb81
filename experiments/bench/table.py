"""Rows of benchmark results, and functions that format the rows as a text table."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from experiments.bench.cases import BACKWARD, Shape

COLUMNS = {
    "relative error": ("values", "dq dk dv", "dw"),
    "": ("compile s", "temp MiB"),
    "forward": ("ms", "TFLOP/s", "ratio"),
    "forward + backward": ("ms", "TFLOP/s", "ratio"),
}
CASE_WIDTH, CELL_WIDTH = 28, 10  # characters

EMPTY = "-"  # a cell without a value


@dataclasses.dataclass(frozen=True)
class Row:
    """Measurements of one case at one shape. A value that was not measured is None.

    Attributes:
      shape: Name of the shape.
      case: Name of the case.
      message: Reason why something was not measured, or "".
      errors: Relative error of each output and gradient, by name.
      compile_seconds: Time to compile a program of one forward and backward pass.
      temporary_mib: Memory in MiB that a call needs in addition to its inputs and outputs.
      forward_ms: Milliseconds of a forward pass.
      forward_tflops: 10¹² floating-point operations per second in a forward pass.
      forward_ratio: `forward_ms` divided by `forward_ms` of the reference case.
      both_ms: Milliseconds of a forward and backward pass.
      both_tflops: 10¹² floating-point operations per second in a forward and backward pass.
      both_ratio: `both_ms` divided by `both_ms` of the reference case.
    """

    shape: str
    case: str
    message: str = ""
    errors: Mapping[str, float] = dataclasses.field(default_factory=dict)
    compile_seconds: float | None = None
    temporary_mib: float | None = None
    forward_ms: float | None = None
    forward_tflops: float | None = None
    forward_ratio: float | None = None
    both_ms: float | None = None
    both_tflops: float | None = None
    both_ratio: float | None = None


def add_rates(row: Row, shape: Shape, reference: Row) -> Row:
    """Return a copy of the row, with its TFLOP/s and its time ratios to the reference row.

    A forward and backward pass is assumed to need the operations of 3.5 forward passes.
    Recomputation in the backward pass is not included.
    """
    return dataclasses.replace(
        row,
        forward_tflops=_tflops(shape.flops, row.forward_ms),
        both_tflops=_tflops(shape.flops * (1 + BACKWARD), row.both_ms),
        forward_ratio=_ratio(row.forward_ms, reference.forward_ms),
        both_ratio=_ratio(row.both_ms, reference.both_ms),
    )


def format_header() -> str:
    """Format the two header lines: the names of the column groups and of the columns."""
    groups = "".join(f"{title:>{CELL_WIDTH * len(names)}}" for title, names in COLUMNS.items())
    names = "".join(f"{name:>{CELL_WIDTH}}" for names in COLUMNS.values() for name in names)
    return f"{'':<{CASE_WIDTH}}{groups}\n{'case':<{CASE_WIDTH}}{names}"


def format_row(row: Row) -> str:
    """Format one line of the table. A row without times shows its message instead."""
    groups = (("values", "received"), ("d_query", "d_key", "d_value"), ("d_w",))
    found = [[row.errors[name] for name in names if name in row.errors] for names in groups]
    cells = [f"{max(errors):.1e}" if errors else EMPTY for errors in found]
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


def read_rows(content: Mapping[str, Any]) -> list[Row]:
    """Return the rows of a stored benchmark. Older files use the key "said" for `message`."""
    return [
        Row(**{"message" if name == "said" else name: value for name, value in line.items()})
        for line in content["lines"]
    ]


def _format_cell(value: float | None, digits: int) -> str:
    """Format a number with `digits` decimals. None is formatted as "-"."""
    return EMPTY if value is None else f"{value:.{digits}f}"


def _tflops(flops: float, milliseconds: float | None) -> float | None:
    """Return the number of floating-point operations per second, divided by 10¹².

    The result is None if `milliseconds` is None.
    """
    return None if milliseconds is None else flops / milliseconds / 1e9


def _ratio(milliseconds: float | None, reference: float | None) -> float | None:
    """Return a time divided by the reference time, or None if either time is None."""
    return None if milliseconds is None or reference is None else milliseconds / reference
