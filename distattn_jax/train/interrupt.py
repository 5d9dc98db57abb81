"""Turn SIGTERM and Ctrl-C into a flag that the training loop checks after every few steps."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator

import jax
from jax.experimental import multihost_utils

SAVING = b"\nStopping after this step to save a checkpoint. Ctrl-C again leaves at once.\n"
LEAVING = b"\nLeft at once. The same command resumes from the newest checkpoint.\n"


@contextlib.contextmanager
def watch_for_stop() -> Iterator[Callable[[int], signal.Signals | None]]:
    """Yield a function that returns the signal that asked the run to stop, or None.

    The signal is SIGTERM or SIGINT (Ctrl-C). Call the yielded function after every few steps. Its
    argument is the number of the call: 0, 1, 2, ... A second Ctrl-C ends the process at once.

    If there are several processes, a signal to any process stops all processes at the same call.
    JAX's preemption service chooses this call. The service reacts only to SIGTERM, so SIGINT is
    passed on as SIGTERM.

    The previous signal handlers are restored on exit. Python handles signals only in the main
    thread, so in any other thread the function always returns None. If SIGINT was ignored when the
    process started, SIGINT stays ignored. Shells start background jobs in this way.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda call: None
        return
    received: list[signal.Signals] = []
    several = jax.process_count() > 1

    def is_preempted(call: int) -> signal.Signals | None:
        return signal.SIGTERM if multihost_utils.reached_preemption_sync_point(call) else None

    watched = set() if several else {signal.SIGTERM}
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        watched.add(signal.SIGINT)
    with _forward_signals(watched, lambda number: _receive(number, received, several)):
        yield is_preempted if several else lambda call: received[0] if received else None


def _receive(number: signal.Signals, received: list[signal.Signals], several: bool) -> None:
    """Add a signal to `received`. After a Ctrl-C, print what happens next.

    `several` is True if the run has several processes.
    """
    if number == signal.SIGINT:
        if signal.SIGINT in received:
            os.write(2, LEAVING)
            os._exit(128 + signal.SIGINT)
        os.write(2, SAVING)
        if several:
            os.kill(os.getpid(), signal.SIGTERM)
    received.append(number)


@contextlib.contextmanager
def _forward_signals(
    watched: set[signal.Signals], receive: Callable[[signal.Signals], None]
) -> Iterator[None]:
    """Call `receive` in a thread for every watched signal that arrives.

    A signal handler of Python runs in the main thread, and only after the current call into XLA. A
    long step would delay the handler. Python also writes the number of each signal to a pipe at
    once. The thread reads this pipe.
    """
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)

    def forward() -> None:
        while number := os.read(read_end, 1):
            if number[0] in watched:
                receive(signal.Signals(number[0]))

    thread = threading.Thread(target=forward, name="signals", daemon=True)
    thread.start()
    handlers = {number: signal.signal(number, lambda *_: None) for number in watched}
    previous = signal.set_wakeup_fd(write_end)
    try:
        yield
    finally:
        signal.set_wakeup_fd(previous)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.close(write_end)
        thread.join()
        os.close(read_end)
