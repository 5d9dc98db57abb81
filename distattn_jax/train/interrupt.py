"""SIGTERM as a question that the loop asks: was this run told to stop?"""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator

import jax
from jax.experimental import multihost_utils


@contextlib.contextmanager
def told_to_stop() -> Iterator[Callable[[int], bool]]:
    """A function of the step: whether SIGTERM came, to this process or, among several, to any.

    Several processes must leave after the same step, so there JAX's own handler is asked, which
    agrees on one.
    """
    if jax.process_count() > 1:
        yield multihost_utils.reached_preemption_sync_point
        return
    told = threading.Event()
    if threading.current_thread() is not threading.main_thread():  # signals come to that one only
        yield lambda step: told.is_set()
        return
    before = signal.signal(signal.SIGTERM, lambda *_: told.set())
    try:
        yield lambda step: told.is_set()
    finally:
        signal.signal(signal.SIGTERM, before)
