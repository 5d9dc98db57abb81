"""Turn SIGTERM into a flag that the training loop checks after every step."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator

import jax
from jax.experimental import multihost_utils


@contextlib.contextmanager
def watch_for_sigterm() -> Iterator[Callable[[int], bool]]:
    """Yield a function of the current step that returns True once SIGTERM was received.

    If there are several processes, a signal to any process stops all processes after the same step.
    JAX's preemption service chooses this step.

    If there is a single process, the previous signal handler is restored on exit. Python handles
    signals only in the main thread, so in any other thread the function always returns False.
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
