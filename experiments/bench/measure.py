"""Measure the cases of the benchmark: compile all cases of a shape, then check and time each."""

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from experiments.bench.cases import CASES, REFERENCE_CASE, draw_operands
from experiments.bench.programs import Programs, compile_cases, describe_failure
from experiments.bench.shapes import Shape
from experiments.bench.table import Row
from experiments.bench.timing import measure_errors, select_large_errors, time_programs

COMPILE_SHARE = 0.6  # part of the remaining time after which no further case is compiled
WRONG = "wrong:"  # begins the message of a case with large errors


class Settings(NamedTuple):
    """Settings that all measurements share.

    Attributes:
      dtype: Name of the dtype of the inputs.
      repeats: Number of timings, of which the median is reported.
      threads: Number of threads that compile.
      deadline: Value of `time.monotonic()` after which no further case starts.
    """

    dtype: str
    repeats: int
    threads: int
    deadline: float


def measure_shape(
    name: str,
    shape: Shape,
    cases: Sequence[str],
    settings: Settings,
    report: Callable[[str], None] = print,
) -> Iterator[Row]:
    """Compile all cases of a shape, then yield the row of each case, the reference case first.

    Cases that do not start before the deadline have no row. Compilation stops earlier, so that
    time remains for the cases that are compiled.

    Args:
      name: Name of the shape.
      shape: Sizes of the arrays.
      cases: Names of the cases.
      settings: Settings of the measurement.
      report: Receives one line about the compilation.
    """
    names = [REFERENCE_CASE, *(case for case in cases if case != REFERENCE_CASE)]
    start = time.monotonic()
    compiled = compile_cases(
        {case: CASES[case] for case in names},
        shape,
        settings.dtype,
        threads=settings.threads,
        deadline=start + COMPILE_SHARE * (settings.deadline - start),
    )
    seconds = time.monotonic() - start
    counts = f"{len(compiled)} of {len(names)} cases"
    report(f"{name}: compiled {counts} in {seconds:.0f} s, threads: {settings.threads}")
    for case in names:
        # Take the programs out of the dict, so that their memory is free after the case.
        programs = compiled.pop(case, None)
        if programs is not None and time.monotonic() <= settings.deadline:
            yield measure_case(Row(name, case), shape, programs, settings)


def measure_case(row: Row, shape: Shape, programs: Programs | str, settings: Settings) -> Row:
    """Check and time one case, and return its row with errors, times and memory.

    If the case cannot run or its errors are too large, the message of the row states the reason.

    Args:
      row: Row that contains only the names of the shape and the case.
      shape: Sizes of the arrays.
      programs: Compiled programs, or a message that says why there are none.
      settings: Settings of the measurement.
    """
    if isinstance(programs, str):
        return dataclasses.replace(row, message=programs)
    row = dataclasses.replace(
        row,
        implementation=programs.implementation,
        compile_seconds=programs.compile_seconds,
    )
    try:
        operands = draw_operands(shape, CASES[row.case], settings.dtype)
        errors = measure_errors(programs, operands, CASES[row.case])
        row = dataclasses.replace(row, errors=errors)
        large = select_large_errors(errors)
        if large:
            listed = ", ".join(f"{name} off by {error:.1e}" for name, error in large.items())
            return dataclasses.replace(row, message=f"{WRONG} {listed}")
        timing = time_programs(programs, operands, shape.calls, settings.repeats)
        return dataclasses.replace(row, **timing._asdict())
    except Exception as error:  # A case that fails must not stop the other cases.
        return dataclasses.replace(row, message=describe_failure(error))
