"""Agreement between the processes of a run."""

import json
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils


def call_in_first_process(function: Callable[[], Any]) -> Any:
    """Call a function in the first process, and return its result in all processes.

    Args:
      function: Function that returns a JSON value. It must not raise an error, because the other
        processes wait for its result.
    """
    if jax.process_count() == 1:
        return function()
    is_first = jax.process_index() == 0
    text = json.dumps(function()).encode() if is_first else b""
    size = int(multihost_utils.broadcast_one_to_all(np.int32(len(text))))
    content = np.frombuffer(text.ljust(size, b"\0"), np.uint8)
    return json.loads(np.asarray(multihost_utils.broadcast_one_to_all(content)).tobytes())
