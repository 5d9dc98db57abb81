"""Callbacks of the interpreter of kernels, without a copy of every argument to a device."""

import types
from typing import Any

import numpy as np
from jax._src import callback


def pass_arguments_on() -> None:
    """Let JAX call Python functions from programs with integers and NumPy arrays.

    JAX first makes an array on a device of each argument. The interpreter then reads the numbers
    of that array. An interpreted kernel calls thousands of functions with about ten arguments each,
    so that these arrays take a third of the time of the tests. A JAX without the replaced function
    runs the tests as well, but more slowly.
    """
    if hasattr(callback, "api") and hasattr(callback.api, "device_put"):
        callback.api = types.SimpleNamespace(device_put=_keep)


def _keep(arguments: tuple[Any, ...], _device: Any) -> tuple[Any, ...]:
    """Return the arguments, with integers instead of arrays of one integer."""
    return tuple(
        int(x) if np.ndim(x) == 0 and np.issubdtype(x.dtype, np.integer) else x for x in arguments
    )
