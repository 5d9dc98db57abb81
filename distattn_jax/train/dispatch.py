"""Choose how many training or evaluation steps one call of a compiled program takes.

Each call costs time on the host, while the device may be idle. Several short steps therefore share
a call. A call of many long steps would delay the progress display and the response to signals.
"""

import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

TIMED_CALLS = 5  # The first call may include compilation, and a few more vary.
CALL_SECONDS = 0.25  # time of a call of several steps, by the time of a call of one step


class DispatchLimit:
    """Largest number of steps in one call of a program.

    If the number is not given, the first calls take one step each and are timed. Later calls take
    at most as many steps as fit into `CALL_SECONDS`.

    Args:
      steps: Largest number of steps; 0 to choose the number from the measured time of a step.

    Attributes:
      steps: Largest number of steps in the next call.
    """

    def __init__(self, steps: int = 0):
        self.steps = steps or 1
        self._timed: list[float] = []
        self._chosen = steps > 0

    def call(self, program: Callable[..., Any], *arguments: Any) -> Any:
        """Call a program and return its result. Wait for the result if the call is timed."""
        if self._chosen:
            return program(*arguments)
        start = time.perf_counter()
        result = jax.block_until_ready(program(*arguments))
        self._timed.append(time.perf_counter() - start)
        if len(self._timed) == TIMED_CALLS:
            self.steps, self._chosen = self._choose_steps(min(self._timed)), True
        return result

    def _choose_steps(self, step_seconds: float) -> int:
        """Return the largest number of steps in a call, the same number in all processes."""
        if jax.process_count() > 1:
            step_seconds = float(multihost_utils.broadcast_one_to_all(np.float32(step_seconds)))
        return max(int(CALL_SECONDS / step_seconds), 1)
