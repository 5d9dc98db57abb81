"""Measure each case of the benchmark in its own process.

Tracing and lowering hold Python's global interpreter lock, so that threads would not run them in
parallel. First, several processes at a time compile the cases of a shape. Then one process at a
time checks and times its case, while nothing else runs. A process ends after its case. All its
memory is then free for the next case, and a crash affects only one case.
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

from experiments.bench.workers import GRACE, Worker, end_workers, seconds_until, start_worker

Start = Callable[[str], Callable[[], Any]]  # compiles a case, and returns a function that times it


class Limits(NamedTuple):
    """Times at which processes are ended.

    Attributes:
      last_start: Value of `time.monotonic()` after which no process starts to compile.
      compile_end: Value of `time.monotonic()` at which processes that still compile are ended.
      compilation: Seconds after which a process that still compiles its case is ended. The case
        has failed.
      timing: Seconds after which a process that still checks or times its case is ended. The case
        has failed.
    """

    last_start: float = math.inf
    compile_end: float = math.inf
    compilation: float = 600.0
    timing: float = 300.0


def measure_in_processes(
    cases: Sequence[str],
    start: Start,
    processes: int,
    limits: Limits,
    report: Callable[[int], None],
) -> Iterator[tuple[str, Any]]:
    """Compile cases in parallel processes, then yield the name and the result of each case.

    Cases that do not start before `limits.last_start`, or still compile at `limits.compile_end`,
    are not yielded.

    Args:
      cases: Names of the cases.
      start: Function that can be pickled. It compiles a case, and returns a function that times the
        case and returns the result.
      processes: Number of processes that compile at the same time.
      limits: Times at which processes are ended.
      report: Callback that receives the number of compiled cases, before the first case is timed.
        Cases whose processes crashed are counted too.

    Yields:
      Name and result. The result is a ChildProcessError if the process of the case ended, and a
      TimeoutError if the case took longer than `limits.compilation` or `limits.timing`.
    """
    workers: dict[str, Worker] = {}
    try:
        unfinished, late = _compile(workers, cases, start, processes, limits)
        end_workers([workers.pop(case) for case in unfinished])
        report(len(workers) - len(late))
        for case, worker in workers.items():
            if case in late:
                yield case, TimeoutError(f"not compiled after {limits.compilation:g} s")
                continue
            with contextlib.suppress(OSError):  # The process has crashed.
                worker.connection.send(None)
            if worker.connection.poll(limits.timing):
                result = worker.receive()
                worker.process.join(GRACE)
            else:
                result = TimeoutError(f"no result after {limits.timing:g} s")
            end_workers([worker])
            yield case, result
    finally:
        end_workers(workers.values())


def _compile(
    workers: dict[str, Worker],
    cases: Sequence[str],
    start: Start,
    processes: int,
    limits: Limits,
) -> tuple[list[str], list[str]]:
    """Start a process for each case, and wait until they have compiled, crashed or been ended.

    `measure_in_processes` explains the other arguments.

    Args:
      workers: Empty dict. This function adds the process of each case, so that the caller can end
        all processes after an error.

    Returns:
      Names of the cases that still compile at `limits.compile_end`, and names of the cases whose
      processes were ended after `limits.compilation` seconds.
    """
    compiling: dict[str, float] = {}  # time at which the process of a case is ended
    late: list[str] = []
    for case in cases:
        while len(compiling) >= processes and time.monotonic() < limits.compile_end:
            late += _wait_for_one(workers, compiling, limits.compile_end)
        if time.monotonic() > min(limits.last_start, limits.compile_end):
            break
        workers[case] = start_worker(_run, start, case)
        compiling[case] = time.monotonic() + limits.compilation
    while compiling and time.monotonic() < limits.compile_end:
        late += _wait_for_one(workers, compiling, limits.compile_end)
    return [*compiling], late


def _wait_for_one(
    workers: dict[str, Worker], compiling: dict[str, float], compile_end: float
) -> list[str]:
    """Wait until a process has compiled or crashed, or until a process must be ended.

    Args:
      workers: Processes of the cases.
      compiling: Dict from each case that still compiles to the time at which its process is ended.
        Cases that have compiled, crashed or been ended are removed.
      compile_end: Value of `time.monotonic()` at which this function returns.

    Returns:
      Names of the cases whose processes were ended.
    """
    connections = {workers[case].connection: case for case in compiling}
    ready = wait(connections, seconds_until(min(compile_end, *compiling.values())))
    for connection in ready:
        assert isinstance(connection, Connection)
        del compiling[connections[connection]]
        # A process that crashed sends nothing. Its exit code is reported when its turn comes.
        with contextlib.suppress(EOFError):
            connection.recv()
    late = [case for case, end in compiling.items() if end <= time.monotonic()]
    end_workers([workers[case] for case in late])
    for case in late:
        del compiling[case]
    return late


def _run(connection: Connection, start: Start, case: str) -> None:
    """Compile a case, send None, wait for a message, time the case, and send the result.

    This function runs in the process of the case.
    """
    finish = start(case)
    connection.send(None)
    connection.recv()
    connection.send(finish())
