"""Where f has become a constant, and what the far entries of a map come to without looking at them.

From a distance `radius` on, f differs from its limit so little that no score changes by more than
the tolerance, and depends on w so little that no derivative of a score by w does either:

    |q|max |k|max height max(|f(R) - f(∞)|, |∂f(R)/∂w|)  ≤  tolerance      for all R ≥ radius

If the limit itself is as small, as for a head that looks near, far scores are all 0 and far weights
all 2^-z_i: such a head averages what is far. Then sums over all columns up to a tile, taken once,
stand for the tiles that are never seen:

    forward    Σ V_j and how many        of keys    Σ 2^-z_i dO_i
    received   Σ 2^-z_i                  given      Σ g_j
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from distattn_jax.attention.fused.operands import Operands
from distattn_jax.attention.fused.schedule import NEVER
from distattn_jax.attention.fused.scoring import LOG2E, Apart, Change, Distance


def radius_of(
    scoring: Distance, operands: Operands, tolerance: float
) -> tuple[Int[Array, "B N"], Bool[Array, "B N"]]:
    """The radius of each head of each example, and whether beyond it every score is 0."""
    query, key, coefficients = (
        jax.lax.stop_gradient(x) for x in (operands.query, operands.key, operands.coefficients)
    )
    furthest = query.shape[1] + key.shape[1]
    distance = jnp.arange(furthest, dtype=jnp.float32)[None, None, :]
    numbers = tuple(jnp.moveaxis(coefficients, -1, 0)[..., None])  # each (B, N, 1)
    limit = numbers[-1]
    size = numbers[2] / LOG2E
    if not scoring.adds:
        size *= (_largest(query) * _largest(key))[..., None]
    apart = Apart(lambda: distance)
    f = scoring.value(apart, numbers)
    change = Change(lambda: jnp.ones_like(f), lambda: f)
    by_slope: Any = scoring.family.pull(change, apart, f, numbers[:2])[0]
    bound = size * jnp.maximum(jnp.abs(f - limit), jnp.abs(by_slope))
    counted = jnp.where(bound <= tolerance, 0, distance + 1)  # one whose bound is NaN counts
    is_nothing = (size * jnp.abs(limit) <= tolerance) & (not scoring.adds)
    radius = counted.max(axis=-1).astype(jnp.int32)
    # What has not become a constant as far as was looked may not be one with an offset beyond that.
    return jnp.where(radius == furthest, NEVER, radius), is_nothing[..., 0]


def _largest(x: Float[Array, "B L N W"]) -> Float[Array, "B N"]:
    """The norm of the longest row of each head."""
    squares = jnp.square(x.astype(jnp.float32)).sum(axis=-1)
    return jnp.sqrt(squares.max(axis=1))


def outside(
    x: Float[Array, "B L N W"],
    bounds: Int[Array, "B N blocks bounds"],
    columns: int,
    *,
    before: bool = True,
    after: bool = True,
) -> Float[Array, "B N blocks W"]:
    """Sums of the rows of x before the first tile of each block, and from its last one on."""
    sums = _sums_before(x, columns)

    def upto(tile: Array) -> Array:
        return jnp.take_along_axis(sums, tile[..., None], axis=2)

    total = jnp.zeros((*bounds.shape[:3], x.shape[-1]), jnp.float32)
    if before:
        total += upto(bounds[..., 0])
    if after:
        total += sums[:, :, -1:] - upto(bounds[..., -1])
    return total


def _sums_before(x: Float[Array, "B L N W"], columns: int) -> Float[Array, "B N tiles W"]:
    """Sums of the rows of x before each tile of so many columns, and last of all of them."""
    length = x.shape[1]
    padded = jnp.pad(x.astype(jnp.float32), ((0, 0), (0, -length % columns), (0, 0), (0, 0)))
    tiles = padded.reshape(x.shape[0], -1, columns, *x.shape[2:]).sum(axis=2)
    sums = jnp.pad(jnp.cumsum(tiles, axis=1), ((0, 0), (1, 0), (0, 0), (0, 0)))
    return jnp.moveaxis(sums, 1, 2)
