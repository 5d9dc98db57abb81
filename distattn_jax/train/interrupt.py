"""Turn SIGTERM into a flag that the training loop checks after every step."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator

import jax
from jax.experimental import multihost_utils


@contextlib.contextmanager
def watch_for_sigterm() -> Iterator[Callable[[int], bool]]:
    """Yield a function that takes the current step and returns True once SIGTERM was received.

    With several processes, a signal to any of them counts. All processes must stop after the same
    step, so JAX's preemption service chooses that step. With one process, the previous signal
    handler is restored on exit. Python delivers signals only to the main thread. In any other
    thread the function always returns False.
    """
    if jax.process_count() > 1:
        yield multihost_utils.reached_preemption_sync_point
        return
    received = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield lambda step: received.is_set()
        return
    previous = signal.signal(signal.SIGTERM, lambda *_: received.set())
    try:
        yield lambda step: received.is_set()
    finally:
        signal.signal(signal.SIGTERM, previous)
