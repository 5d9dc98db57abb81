"""Faster callbacks of the Pallas interpreters in tests."""

import types
from typing import Any

import numpy as np
from jax._src import callback


def skip_device_copies() -> None:
    """Let JAX call Python functions from programs with integers and NumPy arrays.

    JAX first copies each argument to a device, and the interpreter then reads it back. An
    interpreted kernel calls thousands of functions with about ten arguments each, so that these
    copies take a third of the time of the tests. A JAX without the replaced function runs the tests
    as well, but more slowly.
    """
    if hasattr(callback, "api") and hasattr(callback.api, "device_put"):
        callback.api = types.SimpleNamespace(**{**vars(callback.api), "device_put": _keep})


def _keep(arguments: tuple[Any, ...], _device: Any) -> tuple[Any, ...]:
    """Return the arguments, with integers instead of arrays of one integer."""
    return tuple(
        int(x) if np.ndim(x) == 0 and np.issubdtype(x.dtype, np.integer) else x for x in arguments
    )
