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
from typing import Any

from experiments.bench.workers import GRACE, Worker, end_workers, start_worker

LONGEST_TIMING = 300  # seconds in which a compiled case is checked and timed
Start = Callable[[str], Callable[[], Any]]  # compiles a case, and returns a function that times it


def measure_in_processes(
    cases: Sequence[str],
    start: Start,
    processes: int,
    last_start: float,
    compile_end: float,
    report: Callable[[int], None],
) -> Iterator[tuple[str, Any]]:
    """Compile cases in parallel processes, then yield the name and the result of each case.

    Args:
      cases: Names of the cases.
      start: Function that can be pickled. It compiles a case, and returns a function that times the
        case and returns the result.
      processes: Number of processes that compile at the same time.
      last_start: Value of `time.monotonic()` after which no process starts to compile.
      compile_end: Value of `time.monotonic()` at which processes that still compile are ended.
        Their cases are not yielded.
      report: Callback that receives the number of compiled cases, before the first case is timed.
        Cases whose processes crashed are counted too.

    Yields:
      Name and result. The result is a ChildProcessError if the process of the case ended, and a
      TimeoutError if timing took longer than `LONGEST_TIMING`.
    """
    workers: dict[str, Worker] = {}
    try:
        unfinished = _compile(workers, cases, start, processes, last_start, compile_end)
        end_workers([workers.pop(case) for case in unfinished])
        report(len(workers))
        for case, worker in workers.items():
            with contextlib.suppress(OSError):  # The process has crashed.
                worker.connection.send(None)
            if worker.connection.poll(LONGEST_TIMING):
                result = worker.receive()
                worker.process.join(GRACE)
            else:
                result = TimeoutError(f"no result after {LONGEST_TIMING} s")
            end_workers([worker])
            yield case, result
    finally:
        end_workers(workers.values())


def _compile(
    workers: dict[str, Worker],
    cases: Sequence[str],
    start: Start,
    processes: int,
    last_start: float,
    compile_end: float,
) -> list[str]:
    """Start a process for each case, and wait until they have compiled or crashed.

    `measure_in_processes` explains the other arguments.

    Args:
      workers: Empty dict. This function adds the process of each case, so that the caller can end
        all processes after an error.

    Returns:
      Names of the cases that still compile at `compile_end`.
    """
    compiling: dict[Connection, str] = {}
    for case in cases:
        while len(compiling) >= processes and time.monotonic() < compile_end:
            _wait_for_one(compiling, compile_end)
        if time.monotonic() > min(last_start, compile_end):
            break
        workers[case] = start_worker(_run, start, case)
        compiling[workers[case].connection] = case
    while compiling and time.monotonic() < compile_end:
        _wait_for_one(compiling, compile_end)
    return [*compiling.values()]


def _wait_for_one(compiling: dict[Connection, str], deadline: float) -> None:
    """Wait until at least one process has compiled or crashed, or until the deadline.

    Args:
      compiling: Dict from the connection of each process that still compiles to its case. Processes
        that have compiled or crashed are removed.
      deadline: Value of `time.monotonic()`.
    """
    left = None if math.isinf(deadline) else max(0, deadline - time.monotonic())
    ready = set(wait(compiling, left))
    for connection in [connection for connection in compiling if connection in ready]:
        del compiling[connection]
        # A process that crashed sends nothing. Its exit code is reported when its turn comes.
        with contextlib.suppress(EOFError):
            connection.recv()


def _run(connection: Connection, start: Start, case: str) -> None:
    """Compile a case, send None, wait for a message, time the case, and send the result.

    This function runs in the process of the case.
    """
    finish = start(case)
    connection.send(None)
    connection.recv()
    connection.send(finish())
