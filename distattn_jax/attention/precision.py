"""Argument `precision` of `attention`: precision of the matrix products.

The algorithms of `ROUNDED` multiply 16-bit numbers and add the products in float32. `attention`
rounds its inputs to 16 bits before it chooses an implementation, so that the fused kernels serve
float32 calls, and every device computes nearly the same numbers. (JAX on a CPU ignores
BF16_BF16_F32 and refuses F16_F16_F32.) All other precisions are passed on to JAX.
"""

import contextlib
from typing import Any

import jax
import jax.numpy as jnp

# Algorithms that round the operands of a matrix product to 16 bits, and the dtype of the operands.
ROUNDED = {"BF16_BF16_F32": jnp.bfloat16, "F16_F16_F32": jnp.float16}
# All names that `attention` accepts, except for aliases. Inputs of 8 bits are not supported.
PRECISIONS = (
    *(precision.name.lower() for precision in jax.lax.Precision),
    *ROUNDED,
    *(
        preset.name
        for preset in jax.lax.DotAlgorithmPreset
        if preset.name not in ("DEFAULT", *ROUNDED) and "F8" not in preset.name
    ),
)


def validate_precision(precision: Any) -> str | None:
    """Validate the argument `precision` of `attention`, and return its name, or None."""
    if precision is None:
        return None
    pair = precision if isinstance(precision, tuple | list) else (precision,)
    try:
        (name,) = {_find_name(each) for each in pair}
    except ValueError:
        raise ValueError(
            "precision must be one `jax.lax.Precision` or `jax.lax.DotAlgorithmPreset`, or the "
            f"name of one ({', '.join(PRECISIONS)}); got {precision!r}."
        ) from None
    return name


def _find_name(precision: Any) -> str:
    """Convert a precision of `jax.lax.dot` to a name for `jax.default_matmul_precision`."""
    presets = jax.lax.DotAlgorithmPreset
    name = precision.name if isinstance(precision, presets | jax.lax.Precision) else str(precision)
    if name in presets.__members__ and name != presets.DEFAULT.name:
        return name
    return jax.lax.Precision(name.lower()).name.lower()


def set_precision(name: str | None) -> contextlib.AbstractContextManager:
    """Return a context manager that sets the precision of the matrix products in JAX.

    Args:
      name: Result of `validate_precision`. Nothing is set for None and for the names in `ROUNDED`:
        these round the inputs to 16 bits, and float32 represents each product of two of them.
    """
    if name is None or name in ROUNDED:
        return contextlib.nullcontext()
    return jax.default_matmul_precision(name)
