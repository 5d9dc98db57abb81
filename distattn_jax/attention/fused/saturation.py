"""Distances at which f is constant, and prefix sums that replace the far tiles of a head.

From the distance `radius` on, f is treated as its limit. The radius is the smallest for which no
score changes by more than the tolerance, and no derivative of a score by the slope is larger:

    |q|max |k|max height max(|f(R) - f(∞)|, |∂f(R)/∂slope|)  <=  tolerance      for all R >= radius

If the limit itself is below this bound, all far scores count as 0. Each far key then has the weight
2^-z_i, where z_i is the logsumexp of query i to base 2: the head averages distant keys. Such a head
skips its far tiles, and prefix sums over the rows of the tiles give their contribution:

    forward           Σ_j V_j and the number of keys
    key gradient      Σ_i 2^-z_i dO_i
    received          Σ_i 2^-z_i
    attention given   Σ_j g_j
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from distattn_jax.attention.fused.distance_functions import (
    LOG2E,
    Distances,
    FunctionCotangent,
    unstack_coefficients,
)
from distattn_jax.attention.fused.operands import Operands
from distattn_jax.attention.fused.schedule import INFINITE_RADIUS
from distattn_jax.attention.fused.scoring import DistanceScoring


def compute_radius(
    scoring: DistanceScoring, operands: Operands, tolerance: float
) -> tuple[Int[Array, "B N"], Bool[Array, "B N"]]:
    """Return the saturation radius of each head, and True if its scores beyond it are all 0.

    From its radius on, a head treats the distance function as constant.

    Args:
      scoring: Scoring with the distance function f.
      operands: Arrays of the call. Queries, keys and coefficients determine the radius.
      tolerance: Largest error of a score.
    """
    query, key, stacked = (
        jax.lax.stop_gradient(x) for x in (operands.query, operands.key, operands.coefficients)
    )
    scanned = query.shape[1] + key.shape[1]
    distance = jnp.arange(scanned, dtype=jnp.float32)[None, None, :]
    coefficients = unstack_coefficients(stacked[:, :, None, :])  # each (B, N, 1)
    largest_factor = coefficients.height / LOG2E
    if not scoring.is_additive:
        largest_factor *= (_largest_norm(query) * _largest_norm(key))[..., None]
    distances = Distances(lambda: distance)
    f = scoring.evaluate(distances, coefficients)
    cotangent = FunctionCotangent(lambda: jnp.ones_like(f), lambda: f)
    slope_derivative: Any = scoring.function.gradients(cotangent, distances, f, coefficients)[0]
    change = jnp.maximum(jnp.abs(f - coefficients.far), jnp.abs(slope_derivative))
    # A bound that is NaN fails the comparison, so its distance counts as near.
    near = jnp.where(largest_factor * change <= tolerance, 0, distance + 1)
    is_zero = (largest_factor * jnp.abs(coefficients.far) <= tolerance) & (not scoring.is_additive)
    radius = near.max(axis=-1).astype(jnp.int32)
    # If f does not saturate within the scanned range, never treat it as constant: with an offset,
    # distances may be larger than this range.
    return jnp.where(radius == scanned, INFINITE_RADIUS, radius), is_zero[..., 0]


def _largest_norm(x: Float[Array, "B L N W"]) -> Float[Array, "B N"]:
    """Return the largest Euclidean norm among the L rows of each head."""
    squares = jnp.square(x.astype(jnp.float32)).sum(axis=-1)
    return jnp.sqrt(squares.max(axis=1))


def sum_skipped_rows(
    x: Float[Array, "B L N W"],
    bounds: Int[Array, "B N blocks bounds"],
    skips_far_tiles: Bool[Array, "B N"],
    tile_columns: int,
    *,
    before: bool,
    after: bool,
) -> Float[Array, "B N blocks W"]:
    """Sum the rows of x over the tiles that each block skips. Heads that skip no tiles get 0.

    Args:
      x: One row for each column of the score map.
      bounds: Tile indices of a schedule. The first bound of a block is its first visited tile, the
        last bound is one past its last visited tile.
      skips_far_tiles: True for heads that skip far tiles.
      tile_columns: Number of rows of x in a tile.
      before: Include the tiles before the first visited tile.
      after: Include the tiles after the last visited tile.
    """
    prefix_sums = _prefix_sums(x, tile_columns)

    def sum_until(tile: Array) -> Array:
        return jnp.take_along_axis(prefix_sums, tile[..., None], axis=2)

    total = jnp.zeros((*bounds.shape[:3], x.shape[-1]), jnp.float32)
    if before:
        total += sum_until(bounds[..., 0])
    if after:
        total += prefix_sums[:, :, -1:] - sum_until(bounds[..., -1])
    return jnp.where(skips_far_tiles[:, :, None, None], total, 0)


def _prefix_sums(x: Float[Array, "B L N W"], tile_columns: int) -> Float[Array, "B N tiles W"]:
    """Return the sum of the rows before each tile of `tile_columns` rows, and last of all rows."""
    length = x.shape[1]
    padded = jnp.pad(x.astype(jnp.float32), ((0, 0), (0, -length % tile_columns), (0, 0), (0, 0)))
    tiles = padded.reshape(x.shape[0], -1, tile_columns, *x.shape[2:]).sum(axis=2)
    sums = jnp.pad(jnp.cumsum(tiles, axis=1), ((0, 0), (1, 0), (0, 0), (0, 0)))
    return jnp.moveaxis(sums, 1, 2)
