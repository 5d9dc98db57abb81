"""Sinusoids of positions (Vaswani et al. 2017, section 3.5), exact at any length.

    sinusoid(t) = [sin(t f_0) .. sin(t f_w/2-1), cos(t f_0) .. cos(t f_w/2-1)],  f_c = 10000^(-2c/w)

t f_c in float32 is off by 2e-3 at t = 32768. Here it is counted in turns, as an integer that
overflows: multiplication modulo 2³² is multiplication modulo one full turn. That leaves 3e-5 there,
and hands sin and cos an angle between -π and π.
"""

import math

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

BASE = 10_000.0


def sinusoid(position: Int[Array, " P"], width: int, dtype: DTypeLike) -> Float[Array, "P width"]:
    """[sin, cos] of every position, `width` (even) wide, in float32 or float64."""
    phase = angles(position, width, dtype)
    return jnp.concatenate([jnp.sin(phase), jnp.cos(phase)], axis=-1)


def angles(position: Int[Array, " P"], width: int, dtype: DTypeLike) -> Float[Array, "P half"]:
    """t f_c modulo one turn, in [-π, π), for the width/2 frequencies."""
    integer = jnp.int64 if dtype == jnp.float64 else jnp.int32
    bits = jnp.iinfo(integer).bits
    turns = BASE ** (-np.arange(0, width, 2) / width) / (2 * math.pi)  # per position, below 1
    whole = np.round(np.ldexp(turns, bits)).astype(np.uint64).astype(np.dtype(f"uint{bits}"))
    phase = position.astype(integer)[:, None] * jnp.asarray(whole.astype(integer))[None, :]
    return phase.astype(dtype) * (2 * math.pi / 2.0**bits)
