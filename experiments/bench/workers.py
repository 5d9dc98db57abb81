"""Run tasks in other processes, and end the processes whose tasks take too long.

A compiler that hangs cannot be interrupted, but its process can be ended. Each process runs one
task after another. A process that hangs or crashes is replaced, and loses only its own task.
"""

import collections
import contextlib
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, MutableMapping
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple, TypeVar

GRACE = 5  # seconds in which processes may end by themselves
LONGEST_WAIT = 3600  # seconds. A pipe refuses to wait for weeks, so that callers wait in a loop.
# XLA times several kernels for each matrix product. This takes seconds, and minutes if processes
# that share a GPU delay each other's timings. Triton is turned off too: without timings, its
# kernels are slow.
QUICK_COMPILATION: dict[str, str | bool] = {
    "xla_gpu_autotune_level": "0",
    "xla_gpu_enable_triton_gemm": False,
}

Task = TypeVar("Task")


class Worker(NamedTuple):
    """Process, and our end of a pipe to it."""

    process: Any
    connection: Connection

    def receive(self) -> Any:
        """Return the next object that the process sends.

        If the process has ended instead, also by an exception, return a ChildProcessError.
        """
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            self.process.join(GRACE)
            end_workers([self])
            return ChildProcessError(f"its process ended with exit code {self.process.exitcode}")


def start_worker(run: Callable[..., None], *arguments: Any) -> Worker:
    """Spawn a process that calls `run(connection, *arguments)`, with its end of a pipe.

    The process ends when this process has ended, even if this process was killed.
    """
    context = multiprocessing.get_context("spawn")  # A fork would copy the state of the GPU.
    our_end, other_end = context.Pipe()
    process = context.Process(
        target=_run_while_parent_lives, args=(run, other_end, *arguments), daemon=True
    )
    process.start()
    other_end.close()  # Only the process holds it now, so that the pipe closes when it ends.
    return Worker(process, our_end)


def end_workers(workers: Collection[Worker]) -> None:
    """Terminate processes, and kill those that are still alive after `GRACE` seconds."""
    for worker in workers:
        worker.process.terminate()
    end = time.monotonic() + GRACE
    for worker in workers:
        worker.process.join(max(0, end - time.monotonic()))
        worker.process.kill()
        worker.process.join(GRACE)


def run_tasks(
    function: Callable[[Task], Any],
    tasks: Iterable[Task],
    processes: int,
    deadline: float,
    seconds: float,
    may_reuse: Callable[[Any], bool] = lambda result: True,
) -> Iterator[tuple[Task, Any]]:
    """Run tasks in parallel processes, and yield each task and its result when the task ends.

    Args:
      function: Function of one task. It can be pickled. An error that it raises ends its process.
      tasks: Tasks that can be pickled, in the order in which they start.
      processes: Number of processes.
      deadline: Value of `time.monotonic()` at which all processes are ended. Tasks that have not
        ended then are not yielded.
      seconds: Time after which a task is ended. It includes the start of a new process.
      may_reuse: Function of a result. If it returns False, the process of the task is ended,
        because an error may have left its device unusable.

    Yields:
      Task and result. The result is a TimeoutError if the task took too long, and a
      ChildProcessError if its process ended.
    """
    waiting = collections.deque(tasks)
    idle: list[Worker] = []
    running: dict[Worker, tuple[Task, float]] = {}  # task, and time at which it is ended
    try:
        while (waiting or running) and time.monotonic() < deadline:
            while waiting and len(running) < processes:
                idle = [worker for worker in idle if worker.process.is_alive()]
                worker = idle.pop() if idle else start_worker(_serve, function)
                with contextlib.suppress(OSError):  # A process that crashed is found below.
                    worker.connection.send(waiting[0])
                running[worker] = waiting.popleft(), time.monotonic() + seconds
            next_limit = min(deadline, *(limit for _, limit in running.values()))
            ready = wait([worker.connection for worker in running], seconds_until(next_limit))
            now = time.monotonic()
            for worker, (task, limit) in list(running.items()):
                if worker.connection in ready:
                    result = worker.receive()
                elif limit <= now:
                    end_workers([worker])
                    result = TimeoutError(f"no result after {seconds:g} s")
                else:
                    continue
                del running[worker]
                if may_reuse(result):
                    idle.append(worker)
                else:
                    end_workers([worker])
                yield task, result
    finally:
        end_workers([*running, *idle])


def seconds_until(end: float) -> float:
    """Return the seconds until a value of `time.monotonic()`: from 0 to `LONGEST_WAIT`."""
    return min(LONGEST_WAIT, max(0, end - time.monotonic()))


def compile_quickly(environment: MutableMapping[str, str]) -> None:
    """Add `QUICK_COMPILATION` to the flags of XLA, for processes that share a GPU.

    XLA uses the last value of a flag. The flags of the user come last, so that they win.
    """
    flags = (f"--{name}={str(value).lower()}" for name, value in QUICK_COMPILATION.items())
    environment["XLA_FLAGS"] = " ".join([*flags, environment.get("XLA_FLAGS", "")]).strip()


def _run_while_parent_lives(run: Callable[..., None], *arguments: Any) -> None:
    """Call a function in a worker, and end the worker when its parent has ended."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "a worker has a parent"

    def exit_after_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=exit_after_parent, daemon=True).start()
    run(*arguments)


def _serve(connection: Connection, function: Callable[[Any], Any]) -> None:
    """Run the tasks that arrive, and send their results. This function runs in a worker."""
    while True:
        try:
            task = connection.recv()
        except EOFError:  # The process that sends tasks has ended.
            return
        connection.send(function(task))
