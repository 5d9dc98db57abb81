"""Rotary positions, RoPE (Su et al. 2021): queries and keys, rotated by their positions.

The first W numbers of a query or key are W/2 pairs. At position t, pair c is rotated by the angle
t f_c:

    (a, b) -> (a cos(t f_c) - b sin(t f_c), b cos(t f_c) + a sin(t f_c)),    f_c = base^(-2c/W)

The dot product of a rotated query at position i and a rotated key at position j depends on i and j
only by i - j. Values are not rotated. The rotation comes before the attention, so that every
attention variant, and every kernel for it, takes rotated queries and keys.

In float32, the angle t f_c would have an error of 2e-3 at t = 32768. Here, as in `sinusoid`, the
angle is an integer in units of 2⁻³² turns. The part of f_c below this unit is added in float32, so
that the error of an angle is below 1e-6 at all positions.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from distattn_jax.attention.variants import promote
from distattn_jax.attention.variants.sinusoid import multiply_turns


@dataclasses.dataclass(frozen=True)
class Rotary:
    """Options of rotary positions. They are Python numbers, and there are no parameters.

    A model that was trained on shorter texts can be applied to texts that are s times as long with
    `linear_factor=s` (Chen et al. 2023) or with `ntk_factor=s`, which changes low frequencies most.

    Attributes:
      base: Base of the frequencies, above 0: 10,000 in the paper and in Llama 2.
      share: Share of the head width that is rotated, above 0 and at most 1. W = int(share * H) must
        be even. The other H - W numbers keep their values.
      interleaved: If True, a pair is two neighbours, numbers 2c and 2c + 1, as in the paper and in
        GPT-J. If False, it is the numbers c and c + W/2, as in Llama and GPT-NeoX.
      linear_factor: Divisor of all positions.
      ntk_factor: Factor s that replaces the base by base * s^(W/(W-2)). The highest frequency stays
        the same, and the lowest one is divided by s.
    """

    base: float = 10_000.0
    share: float = 1.0
    interleaved: bool = False
    linear_factor: float = 1.0
    ntk_factor: float = 1.0

    def __post_init__(self) -> None:
        for name in ("base", "share", "linear_factor", "ntk_factor"):
            value = getattr(self, name)
            is_number = isinstance(value, int | float | np.integer | np.floating)
            if not is_number or isinstance(value, bool) or not 0 < value < math.inf:
                raise ValueError(f"Rotary.{name} must be a Python number above 0; got {value!r}.")
        if self.share > 1:
            raise ValueError(f"Rotary.share must be above 0 and at most 1; got {self.share}.")
        if not isinstance(self.interleaved, bool | np.bool_):
            raise TypeError(f"Rotary.interleaved must be True or False; got {self.interleaved!r}.")

    def rotated_width(self, width: int) -> int:
        """Return the number W of rotated numbers in a head. Raise a ValueError if it is not even.

        Args:
          width: Width H of a head.
        """
        rotated = int(self.share * width)  # rounded down, as in Hugging Face
        if rotated % 2 or not rotated:
            raise ValueError(
                f"Rotary.share ({self.share}) must rotate an even number of the {width} numbers of "
                f"a head, at least 2, because numbers are rotated in pairs; got {rotated}."
            )
        if rotated == 2 and self.ntk_factor != 1:
            raise ValueError(
                "Rotary.ntk_factor must be 1 if only 2 numbers of a head are rotated: their one "
                f"frequency does not depend on the base; got {self.ntk_factor}."
            )
        return rotated

    def frequencies(self, width: int) -> np.ndarray:
        """Return the angle between neighbouring positions for each of the W/2 pairs, in float64.

        Args:
          width: Width H of a head.
        """
        rotated = self.rotated_width(width)
        base = float(self.base)
        if self.ntk_factor != 1:
            base *= self.ntk_factor ** (rotated / (rotated - 2))
        return base ** (-np.arange(0, rotated, 2) / rotated) / self.linear_factor


def rotate(
    x: Float[Array, "*batch T N H"], rotary: Rotary, positions: int | Int[Array, "..."] = 0
) -> Float[Array, "*batch T N H"]:
    """Rotate queries or keys by their positions. The result has the dtype of the input.

    Only differences of positions matter, so that positions may count from any origin, the same for
    queries and keys. If several sequences are packed into a row, the positions in the row give the
    same scores as the positions in each sequence.

    Example:
      >>> x = jnp.ones((1, 5, 2, 8))
      >>> query, key = rotate(x, Rotary()), rotate(x, Rotary())
      >>> attention(query, key, x, DotProduct()).values.shape
      (1, 5, 2, 8)

    Args:
      x: Queries or keys, shape (..., T, N, H).
      rotary: Options of the rotation.
      positions: Position of the first of the T queries or keys, an integer for all examples or an
        array with one integer per example, shape (...). An array with one axis more, of shape
        (..., T), has the position of each of them. All axes may also have size 1. May be traced.
    """
    if jnp.ndim(x) < 3 or not jnp.issubdtype(jnp.result_type(x), jnp.floating):
        raise ValueError(
            "x must be an array of floating point numbers of shape (..., length, heads, width); "
            f"got shape {jnp.shape(x)}, dtype {jnp.result_type(x)}."
        )
    check_rotary(rotary, x.shape[-1])
    x, positions = jnp.asarray(x), _expand_positions(positions, jnp.shape(x)[:-2])
    dtype = promote(x.dtype)
    angle = _find_angles(positions, rotary.frequencies(x.shape[-1]), dtype)
    sine, cosine = jnp.sin(angle)[..., None, :], jnp.cos(angle)[..., None, :]  # (..., T, 1, W/2)
    width = 2 * angle.shape[-1]
    pairs, rest = x[..., :width].astype(dtype), x[..., width:]
    if rotary.interleaved:
        a, b = pairs[..., 0::2], pairs[..., 1::2]
    else:
        a, b = jnp.split(pairs, 2, axis=-1)
    rotated = (a * cosine - b * sine, b * cosine + a * sine)
    if rotary.interleaved:
        pairs = jnp.stack(rotated, axis=-1).reshape(pairs.shape)
    else:
        pairs = jnp.concatenate(rotated, axis=-1)
    return jnp.concatenate([pairs.astype(x.dtype), rest], axis=-1)


def check_rotary(rotary: Any, width: int) -> None:
    """Raise an error unless `rotary` is a `Rotary` that can rotate heads of this width."""
    if not isinstance(rotary, Rotary):
        raise TypeError(f"rotary must be a Rotary such as Rotary(); got {rotary!r}.")
    rotary.rotated_width(width)


def check_self_attention(queries: int, keys: int, query_offset: Any) -> None:
    """Raise a ValueError if T queries and S keys, with this offset, look like cross-attention.

    In cross-attention, queries and keys belong to different texts, so that the difference of their
    positions means nothing. As many queries as keys, or a given offset, pass the check.
    """
    if queries != keys and isinstance(query_offset, int) and query_offset == 0:
        raise ValueError(
            "rotary must be None for cross-attention, whose queries and keys have no common "
            f"positions; got {queries} queries and {keys} keys. If the queries are some of the "
            "positions of the keys, pass query_offset, the position of the first query, as an "
            "array such as jnp.asarray(0)."
        )


def _find_angles(
    positions: Int[Array, "*axes"], frequencies: np.ndarray, dtype: DTypeLike
) -> Float[Array, "*axes pairs"]:
    """Return the angle position * frequency of each position and each pair, modulo 2π.

    Args:
      positions: Integer positions.
      frequencies: Angle between neighbouring positions for each pair.
      dtype: float32 or float64.
    """
    # Positions are integers, so that whole turns between neighbours change nothing.
    turns = np.mod(frequencies / (2 * math.pi), 1.0)
    bits = 8 * jnp.dtype(dtype).itemsize
    below_unit = 2 * math.pi * (turns - np.ldexp(np.round(np.ldexp(turns, bits)), -bits))
    rest = jnp.expand_dims(jnp.asarray(below_unit, dtype), range(positions.ndim))
    return multiply_turns(positions, turns, dtype) + positions[..., None].astype(dtype) * rest


def _expand_positions(positions: Any, shape: tuple[int, ...]) -> Int[Array, "..."]:
    """Return the position of each token, an int32 array with as many axes as `shape`.

    Args:
      positions: Argument of `rotate`.
      shape: Sizes of the batch axes, and the number of tokens T: (..., T). An axis of the result
        may also have size 1.
    """
    is_array = isinstance(positions, int | float | np.generic | np.ndarray | jax.Array)
    if not is_array or not jnp.issubdtype(jnp.result_type(positions), jnp.integer):
        raise ValueError(
            f"positions must be an integer or an array of integers; got {positions!r}."
        )
    given = jnp.shape(positions)
    wanted = shape if len(given) == len(shape) else shape[:-1]
    pairs = zip(given[::-1], wanted[::-1], strict=False)  # Leading axes may be missing.
    if len(given) > len(wanted) or any(size not in (1, full) for size, full in pairs):
        raise ValueError(
            f"positions must broadcast to {shape[:-1]}, one first position per example, or to "
            f"{shape}, one position per token; got {given}."
        )
    positions = jnp.asarray(positions, jnp.int32)
    if len(given) < len(shape):
        count = jnp.arange(shape[-1], dtype=jnp.int32)
        positions = positions[..., None] + jnp.expand_dims(count, range(positions.ndim))
    return jnp.expand_dims(positions, range(len(shape) - positions.ndim))
