"""Measure each case of the benchmark in its own process.

Threads cannot compile in parallel, because tracing and lowering hold Python's global interpreter
lock. First, several processes at a time compile the cases of a shape. Then one process at a time
checks and times its case, while nothing else runs. A process ends after its case. All its memory is
then free for the next case, and a crash affects only one case.
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from experiments.bench.workers import Worker, end_workers, start_worker

LONGEST_TIMING = 300  # seconds in which a compiled case is checked and timed
Start = Callable[[str], Callable[[], Any]]  # compiles a case, and returns a function that times it


def measure_in_processes(
    cases: Sequence[str],
    start: Start,
    processes: int,
    compile_deadline: float,
    deadline: float,
    report: Callable[[int], None],
) -> Iterator[tuple[str, Any]]:
    """Compile cases in parallel processes, then yield the name and the result of each case.

    Args:
      cases: Names of the cases.
      start: Function that can be pickled. It compiles a case, and returns a function that times the
        case and returns the result.
      processes: Number of processes that compile at the same time.
      compile_deadline: Value of `time.monotonic()` after which no further case is compiled.
      deadline: Value of `time.monotonic()` at which processes that still compile are ended. Their
        cases are not yielded.
      report: Callback that receives the number of compiled cases, before the first case is timed.

    Yields:
      Name and result. The result is a ChildProcessError if the process of the case crashed, and a
      TimeoutError if timing took longer than `LONGEST_TIMING`.
    """
    workers: dict[str, Worker] = {}
    try:
        compiled = _compile(workers, cases, start, processes, compile_deadline, deadline)
        report(len(compiled))
        for case in compiled:
            worker = workers[case]
            with contextlib.suppress(OSError):  # The process has crashed.
                worker.connection.send(None)
            if worker.connection.poll(LONGEST_TIMING):
                result = worker.receive()
                worker.process.join()
            else:
                end_workers([worker])
                result = TimeoutError(f"no result after {LONGEST_TIMING} s")
            yield case, result
    finally:
        end_workers(workers.values())


def _compile(
    workers: dict[str, Worker],
    cases: Sequence[str],
    start: Start,
    processes: int,
    compile_deadline: float,
    deadline: float,
) -> list[str]:
    """Start a process for each case, and wait until they have compiled their cases.

    Args:
      workers: Dict to which the process of each case is added.
      cases, start, processes, compile_deadline, deadline: See `measure_in_processes`.

    Returns:
      Names of the cases whose processes have compiled or crashed before the deadline.
    """
    compiling: dict[Connection, str] = {}
    for case in cases:
        while len(compiling) >= processes and time.monotonic() < deadline:
            _wait_for_one(compiling, deadline)
        if time.monotonic() > min(compile_deadline, deadline):
            break
        workers[case] = start_worker(_run, start, case)
        compiling[workers[case].connection] = case
    while compiling and time.monotonic() < deadline:
        _wait_for_one(compiling, deadline)
    return [case for case in workers if case not in compiling.values()]


def _wait_for_one(compiling: dict[Connection, str], deadline: float) -> None:
    """Wait until a process has compiled or crashed, or for the deadline. Remove its connection.

    `compiling` has the connections of the processes that are still compiling.
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
