"""Sinusoids of positions (Vaswani et al. 2017, section 3.5), accurate at any length.

    sinusoid(t) = [sin(t f_0) .. sin(t f_w/2-1), cos(t f_0) .. cos(t f_w/2-1)],  f_c = 10000^(-2c/w)

In float32, the angle t f_c would have an error of 2e-3 at t = 32768. Here the angle is an integer
in units of 2⁻³² turns. Integer overflow then subtracts full turns, the error at t = 32768 is 3e-5,
and the arguments of sin and cos lie between -π and π.
"""

import math

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

BASE = 10_000.0


def sinusoid(position: Int[Array, " P"], width: int, dtype: DTypeLike) -> Float[Array, "P width"]:
    """Return the sinusoidal embedding of each position: width/2 sines, then width/2 cosines.

    Args:
      position: Integer positions, of any sign.
      width: Width of an embedding, even.
      dtype: float32 or float64.
    """
    if width % 2:
        raise ValueError(f"width must be even (sines and cosines); got {width}.")
    if not jnp.issubdtype(getattr(position, "dtype", object), jnp.integer):
        raise ValueError(f"position must be an array of integers; got {position!r}.")
    if jnp.dtype(dtype) not in (jnp.float32, jnp.float64):
        raise ValueError(f"dtype must be float32 or float64; got {dtype}.")
    phase = angles(position, width, dtype)
    return jnp.concatenate([jnp.sin(phase), jnp.cos(phase)], axis=-1)


def angles(position: Int[Array, " P"], width: int, dtype: DTypeLike) -> Float[Array, "P half"]:
    """Return the angle position * frequency for width/2 frequencies, modulo 2π, in [-π, π).

    Args:
      position: Integer positions, of any sign.
      width: Width of the sinusoidal embedding, even.
      dtype: float32 or float64.
    """
    turns = BASE ** (-np.arange(0, width, 2) / width) / (2 * math.pi)  # per position, less than 1
    return multiply_turns(position, turns, dtype)


def multiply_turns(
    position: Int[Array, "*P"], turns: np.ndarray, dtype: DTypeLike
) -> Float[Array, "*P frequencies"]:
    """Return the angle of position * turns, modulo 2π, in [-π, π).

    Args:
      position: Integer positions, of any sign.
      turns: Turns per position for each frequency, at least 0 and less than 1. They are rounded to
        a multiple of 2⁻³², or of 2⁻⁶⁴ if the dtype is float64.
      dtype: float32 or float64.
    """
    integer = jnp.int64 if dtype == jnp.float64 else jnp.int32
    bits = jnp.iinfo(integer).bits
    whole = np.round(np.ldexp(turns, bits)).astype(np.uint64).astype(np.dtype(f"uint{bits}"))
    whole = jnp.expand_dims(whole.astype(integer), range(position.ndim))
    phase = position.astype(integer)[..., None] * whole
    return phase.astype(dtype) * (2 * math.pi / 2.0**bits)
