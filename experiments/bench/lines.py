"""The lines of the table of `bench`."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from experiments.bench.cases import BACKWARD, Shape
from experiments.papers.formatting import NOTHING

COLUMNS = {
    "relative error": ("values", "dq dk dv", "dw"),
    "": ("compile s", "temp MiB"),
    "forward": ("ms", "TFLOP/s", "ratio"),
    "forward + backward": ("ms", "TFLOP/s", "ratio"),
}
FIRST, EACH = 28, 10  # characters of the first column, and of each of the others


@dataclasses.dataclass(frozen=True)
class Line:
    """A case at a shape: None where it was not measured.

    Attributes:
      said: why something was not measured; empty: all was.
      errors: relative, by the name of an output or a gradient.
      temporary_mib: what a call needs beside its inputs and outputs.
      both_ms: forward and backward.
      forward_ratio: to the time of the yardstick; above 1 is slower.
    """

    shape: str
    case: str
    said: str = ""
    errors: Mapping[str, float] = dataclasses.field(default_factory=dict)
    compile_seconds: float | None = None
    temporary_mib: float | None = None
    forward_ms: float | None = None
    forward_tflops: float | None = None
    forward_ratio: float | None = None
    both_ms: float | None = None
    both_tflops: float | None = None
    both_ratio: float | None = None


def rated(line: Line, shape: Shape, yardstick: Line) -> Line:
    """The line with its rates, and its ratios to the yardstick.

    Forward and backward count as 3.5 times the forward pass, whatever is computed twice.
    """
    return dataclasses.replace(
        line,
        forward_tflops=_rate(shape.flops, line.forward_ms),
        both_tflops=_rate(shape.flops * (1 + BACKWARD), line.both_ms),
        forward_ratio=_ratio(line.forward_ms, yardstick.forward_ms),
        both_ratio=_ratio(line.both_ms, yardstick.both_ms),
    )


def header() -> str:
    """Two rows: what the columns are of, and what they are."""
    groups = "".join(f"{of:>{EACH * len(names)}}" for of, names in COLUMNS.items())
    names = "".join(f"{name:>{EACH}}" for names in COLUMNS.values() for name in names)
    return f"{'':<{FIRST}}{groups}\n{'case':<{FIRST}}{names}"


def row(line: Line) -> str:
    """One line of the table."""
    errors = (("values", "received"), ("d_query", "d_key", "d_value"), ("d_w",))
    found = [[line.errors[name] for name in names if name in line.errors] for names in errors]
    cells = [f"{max(worst):.1e}" if worst else NOTHING for worst in found]
    cells += [_cell(line.compile_seconds, 1), _cell(line.temporary_mib, 1)]
    for ms, tflops, ratio in (
        (line.forward_ms, line.forward_tflops, line.forward_ratio),
        (line.both_ms, line.both_tflops, line.both_ratio),
    ):
        cells += [_cell(ms, 3), _cell(tflops, 3 if (tflops or 0) < 1 else 1), _cell(ratio, 2)]
    figures = (
        "" if line.said and line.forward_ms is None else "".join(f"{c:>{EACH}}" for c in cells)
    )
    return f"{line.case:<{FIRST}}{figures}{'  ' if figures and line.said else ''}{line.said}"


def lines_of(content: Mapping[str, Any]) -> list[Line]:
    """Those that were written."""
    return [Line(**line) for line in content["lines"]]


def _cell(value: float | None, digits: int) -> str:
    return NOTHING if value is None else f"{value:.{digits}f}"


def _rate(flops: float, milliseconds: float | None) -> float | None:
    return None if milliseconds is None else flops / milliseconds / 1e9


def _ratio(milliseconds: float | None, one: float | None) -> float | None:
    return None if milliseconds is None or one is None else milliseconds / one
