"""Measure each case of the benchmark in its own process.

Threads cannot compile in parallel, because tracing and lowering hold Python's global interpreter
lock. First, several processes at a time compile the cases of a shape. Then one process at a time
checks and times its case, while nothing else runs. A process ends after its case. All its memory is
then free for the next case, and a crash affects only one case.
"""

import contextlib
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

Start = Callable[[str], Callable[[], Any]]  # compiles a case, and returns a function that times it


class _Worker(NamedTuple):
    """Process that measures one case.

    Attributes:
      process: The process.
      connection: End of a pipe whose other end belongs to the process. The process sends None when
        its case is compiled, waits for a message, and sends the result.
    """

    process: Any
    connection: Connection


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
            try:
                worker.connection.send(None)
                result = worker.connection.recv()
            except (EOFError, OSError):
                worker.process.join()
                code = worker.process.exitcode
                result = ChildProcessError(f"its process ended with exit code {code}")
            worker.process.join()
            yield case, result
    finally:
        for worker in workers.values():
            worker.process.terminate()


def _compile(
    cases: Sequence[str], start: Start, processes: int, deadline: float
) -> dict[str, _Worker]:
    """Start a process for each case, and wait until all processes have compiled their cases.

    `measure_in_processes` explains the arguments.

    Returns:
      Dict from the name of each case that started before the deadline to its process.
    """
    workers: dict[str, _Worker] = {}
    compiling: list[Connection] = []
    for case in cases:
        if time.monotonic() > deadline:
            break
        while len(compiling) >= processes:
            _wait_for_one(compiling)
        workers[case] = _start_worker(start, case)
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


def _start_worker(start: Start, case: str) -> _Worker:
    """Spawn the process of a case. A fork would copy the state of the GPU."""
    context = multiprocessing.get_context("spawn")
    own, other = context.Pipe()
    process = context.Process(target=_run, args=(other, start, case), daemon=True)
    process.start()
    other.close()  # Then the process holds the only copy, and its end closes the pipe.
    return _Worker(process, own)


def _run(connection: Connection, start: Start, case: str) -> None:
    """Compile a case, wait for a message, time the case, and send the result.

    This function runs in the process of the case.
    """
    finish = start(case)
    connection.send(None)
    connection.recv()
    connection.send(finish())
