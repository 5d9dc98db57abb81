"""Measure each case of the benchmark in its own process.

Threads cannot compile in parallel, because tracing and lowering hold Python's global interpreter
lock. First, several processes at a time compile the cases of a shape. Then one process at a time
checks and times its case, while nothing else runs. A process ends after its case. All its memory is
then free for the next case, and a crash affects only one case.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from experiments.bench.workers import Worker, end_workers, start_worker

Start = Callable[[str], Callable[[], Any]]  # compiles a case, and returns a function that times it


def measure_in_processes(
    cases: Sequence[str],
    start: Start,
    processes: int,
    compile_deadline: float,
    report: Callable[[int], None],
) -> Iterator[tuple[str, Any]]:
    """Compile cases in parallel processes, then yield the name and the result of each case.

    Args:
      cases: Names of the cases.
      start: Function that can be pickled. It compiles a case, and returns a function that times the
        case and returns the result.
      processes: Number of processes that compile at the same time.
      compile_deadline: Value of `time.monotonic()` after which no further case is compiled. Cases
        that are not compiled are not yielded.
      report: Callback that receives the number of compiled cases, before the first case is timed.

    Yields:
      Name and result. The result is a ChildProcessError if the process of the case crashed.
    """
    workers = _compile(cases, start, processes, compile_deadline)
    report(len(workers))
    try:
        for case, worker in workers.items():
            with contextlib.suppress(OSError):  # The process has crashed.
                worker.connection.send(None)
            result = worker.receive()
            worker.process.join()
            yield case, result
    finally:
        end_workers(workers.values())


def _compile(
    cases: Sequence[str], start: Start, processes: int, deadline: float
) -> dict[str, Worker]:
    """Start a process for each case, and wait until all processes have compiled their cases.

    `measure_in_processes` explains the arguments.

    Returns:
      Dict from the name of each case that started before the deadline to its process.
    """
    workers: dict[str, Worker] = {}
    compiling: list[Connection] = []
    for case in cases:
        if time.monotonic() > deadline:
            break
        while len(compiling) >= processes:
            _wait_for_one(compiling)
        workers[case] = start_worker(_run, start, case)
        compiling.append(workers[case].connection)
    while compiling:
        _wait_for_one(compiling)
    return workers


def _wait_for_one(compiling: list[Connection]) -> None:
    """Wait until at least one process has compiled or crashed, and remove its connection.

    `compiling` has the connections of the processes that are still compiling.
    """
    ready = set(wait(compiling))
    for connection in [connection for connection in compiling if connection in ready]:
        compiling.remove(connection)
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
