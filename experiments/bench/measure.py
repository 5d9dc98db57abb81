"""Measure the cases of the benchmark: compile, check and time each case."""

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from experiments.bench.cases import ALL_CASES, Operands, draw_operands, shard
from experiments.bench.memory import explain_lack_of_memory
from experiments.bench.processes import Limits, measure_in_processes
from experiments.bench.programs import Programs, describe_failure, try_compiling
from experiments.bench.shapes import Shape
from experiments.bench.table import Row
from experiments.bench.timing import measure_errors, select_large_errors, time_programs

# Part of the remaining time after which no further case is compiled, and part after which processes
# that still compile are ended.
COMPILE_SHARES = 0.6, 0.8
# Seconds after which a process that times a case is ended: the first number, or the second one for
# each repeat, if this is more.
LONGEST_TIMING, LONGEST_REPEAT = 300, 60
WRONG = "wrong:"  # begins the message of a case with large errors


class Settings(NamedTuple):
    """Settings that all measurements share.

    Attributes:
      dtype: Name of the dtype of the inputs.
      repeats: Number of timings, of which the median is reported.
      processes: Number of processes that compile at the same time. With 1, this process compiles
        and times the cases one after the other.
      deadline: Value of `time.monotonic()` after which no further case starts.
    """

    dtype: str
    repeats: int
    processes: int
    deadline: float


def measure_shape(
    name: str,
    shape: Shape,
    cases: Sequence[str],
    settings: Settings,
    report: Callable[[str], None] = print,
) -> Iterator[Row]:
    """Yield the row of each case of a shape, in the order of `cases`.

    A case that does not start before the deadline has no row. With several processes, all cases
    are compiled before the first case is timed. To leave time for the timings, no compilation
    starts after the first of `COMPILE_SHARES` of the remaining time, and compilations that still
    run after the second are ended. Their cases have no row.

    Args:
      name: Name of the shape.
      shape: Sizes of the arrays.
      cases: Names of the cases.
      settings: Settings of the measurement.
      report: Function that prints a line of text. With several processes, it is called once, when
        all cases are compiled.
    """
    start = functools.partial(_start_case, name, shape, settings)
    if settings.processes == 1:
        for case in cases:
            if time.monotonic() <= settings.deadline:
                yield start(case)()
        return
    began = time.monotonic()

    def report_compiled(compiled: int) -> None:
        counts = f"{compiled} of {len(cases)} cases"
        seconds = time.monotonic() - began
        report(f"{name}: compiled {counts} in {seconds:.0f} s, processes: {settings.processes}")

    last_start, end = (began + share * (settings.deadline - began) for share in COMPILE_SHARES)
    limits = Limits(last_start, end, timing=max(LONGEST_TIMING, LONGEST_REPEAT * settings.repeats))
    for case, row in measure_in_processes(
        cases, start, settings.processes, limits, report_compiled
    ):
        failed = isinstance(row, ChildProcessError | TimeoutError)
        yield Row(name, case, message=describe_failure(row)) if failed else row
        if time.monotonic() > settings.deadline:
            return


def _start_case(name: str, shape: Shape, settings: Settings, case: str) -> Callable[[], Row]:
    """Compile a case at a shape, and draw its inputs. Return a function that measures the case."""
    row = Row(name, case)
    programs = try_compiling(ALL_CASES[case], shape, settings.dtype)
    if isinstance(programs, str):
        return lambda: dataclasses.replace(row, message=programs)
    lack = explain_lack_of_memory(programs)
    if lack:
        return lambda: dataclasses.replace(
            row, message=lack, implementation=programs.implementation
        )
    operands = shard(draw_operands(shape, ALL_CASES[case], settings.dtype), ALL_CASES[case])
    return functools.partial(measure_case, row, shape, programs, operands, settings)


def measure_case(
    row: Row, shape: Shape, programs: Programs, operands: Operands, settings: Settings
) -> Row:
    """Check and time one case, and return its row with errors, times and memory.

    If the case fails or its errors are too large, the row has a message and no times.

    Args:
      row: Row that contains only the names of the shape and the case.
      shape: Sizes of the arrays.
      programs: Compiled programs.
      operands: Inputs of the programs.
      settings: Settings of the measurement.
    """
    row = dataclasses.replace(
        row, implementation=programs.implementation, compile_seconds=programs.compile_seconds
    )
    try:
        errors = measure_errors(programs, operands)
        row = dataclasses.replace(row, errors=errors)
        large = select_large_errors(errors)
        if large:
            listed = ", ".join(f"{name} off by {error:.1e}" for name, error in large.items())
            return dataclasses.replace(row, message=f"{WRONG} {listed}")
        timing: dict[str, Any] = time_programs(programs, operands, shape.calls, settings.repeats)
        return dataclasses.replace(row, **timing)
    except Exception as error:  # A case that fails must not stop the other cases.
        return dataclasses.replace(row, message=describe_failure(error))
