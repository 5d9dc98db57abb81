"""Saturation radius: the distance from which on the distance function f is treated as constant.

At distances R >= radius, the kernels replace f(R) by its limit f(∞). The radius is the smallest
distance for which this replacement changes scores, and their derivatives with respect to the slope,
by at most the tolerance:

    Q · K · height · max(|f(R) - f(∞)|, |∂f(R)/∂slope|)  <=  tolerance      for all R >= radius

Q and K are the largest norms of a query and of a key of the head, and height is the factor that
scales f. This is the formula for scores that are multiplied by f. For scores to which f is added, Q
and K are left out.

If scores are multiplied by f and Q · K · height · |f(∞)| is also at most the tolerance, all scores
of the head beyond the radius are treated as 0 (see `skipped_tiles`).

With `TableScoring`, the scores of a head are treated as 0 beyond a radius for which

    Q · K · max(|f(R)|, |∂f(R)/∂θ|)  <=  tolerance      for all R >= radius and all parameters θ

If there is no such radius, kernels read f from its table at all distances. Reading f takes no
longer than reading a constant. Each side of the query has its own radius. With a bias G, the scores
beyond the radius are treated as G, and |G| must not exceed `LARGEST_FAR_BIAS` there. Kernels visit
the tiles beyond the radius, but need no products q · k. They skip these tiles if the radius also
satisfies

    max(|G(R) - G∞|, |∂G(R)/∂θ - ∂G∞/∂θ|)  <=  tolerance      for all R >= radius and all θ

where G∞ is the bias at the largest distance on the same side. The scores beyond the radius are then
treated as G∞. This is so for a bias with one constant for each side, for example.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from distattn_jax.attention.fused.distance_functions import (
    LOG2E,
    DistanceFunction,
    Distances,
    FunctionCotangent,
    unstack_coefficients,
)
from distattn_jax.attention.fused.operands import Operands
from distattn_jax.attention.fused.visible_columns import UNBOUNDED

# Largest |G| beyond the radius, to base 2. Kernels compute 2^G before they know the other scores.
LARGEST_FAR_BIAS = 64.0


def find_function_radius(
    function: DistanceFunction, operands: Operands, tolerance: float, *, is_additive: bool
) -> tuple[Int[Array, "B N"], Bool[Array, "B N"]]:
    """Compute the saturation radius of each head.

    At distances of at least the radius, the kernels treat the distance function f as constant.

    Args:
      function: Distance function f.
      operands: Arrays of the call.
      tolerance: Largest allowed error of a score.
      is_additive: True if f is added to scores, False if scores are multiplied by f.

    Returns:
      The radius of each head, and a mask that is True for heads whose scores beyond the radius are
      all treated as 0. The radius is `UNBOUNDED` if f does not become constant.
    """
    query, key, stacked = (
        jax.lax.stop_gradient(x) for x in (operands.query, operands.key, operands.coefficients)
    )
    scanned = query.shape[1] + key.shape[1]
    distance = jnp.arange(scanned, dtype=jnp.float32)[None, None, :]
    coefficients = unstack_coefficients(stacked[:, :, None, :])  # each (1, N, 1)
    largest_factor = coefficients.height / LOG2E
    if not is_additive:
        largest_factor *= largest_product(query, key)[..., None]
    distances = Distances(lambda: distance)
    f = function.evaluate(distances, coefficients)
    cotangent = FunctionCotangent(lambda: jnp.ones_like(f), lambda: f)
    slope_derivative: Any = function.gradients(cotangent, distances, f, coefficients)[0]
    change = jnp.maximum(jnp.abs(f - coefficients.far), jnp.abs(slope_derivative))
    # A bound that is NaN fails the comparison, so its distance counts as near.
    near = jnp.where(largest_factor * change <= tolerance, 0, distance + 1)
    is_zero = (largest_factor * jnp.abs(coefficients.far) <= tolerance) & (not is_additive)
    radius = near.max(axis=-1).astype(jnp.int32)
    # If f does not saturate within the scanned range, never treat it as constant: with an offset,
    # distances may be larger than this range.
    radius = jnp.where(radius == scanned, UNBOUNDED, radius)
    shape = query.shape[0], query.shape[2]
    return jnp.broadcast_to(radius, shape), jnp.broadcast_to(is_zero[..., 0], shape)


def find_table_radius(
    operands: Operands, tolerance: float
) -> tuple[Int[Array, "B N 2"], Bool[Array, "B N"]]:
    """Compute the radius of each head, for `TableScoring` with scores φ(q · k) f + G.

    At distances of at least the radius, the kernels treat all scores of the head as the bias G, or
    as 0 without a bias. With `Operands.bias_change`, they treat G as the constant G∞ there.

    Args:
      operands: Arrays of the call, with the bound `Operands.factor_bound` of f and its derivatives,
        and with `Operands.bias_change` if the bias must be constant beyond the radius.
      tolerance: Largest allowed error of a score.

    Returns:
      The radius of each head for keys before and for keys after the query, and a mask that is True
      for heads that have a radius on a side. Without a radius, the result is `UNBOUNDED`.
    """
    operands = jax.lax.stop_gradient(operands)
    distance, bound = operands.table_distances, operands.factor_bound
    assert bound is not None, "a radius needs a bound"
    # A bound that is NaN fails the comparison, so its distance counts as near.
    largest = largest_product(operands.query, operands.key)[..., None]
    is_far = bound / LOG2E * largest <= tolerance
    if operands.bias_table is not None:
        is_far &= jnp.abs(operands.bias_table) <= LARGEST_FAR_BIAS
    if operands.bias_change is not None:
        is_far &= operands.bias_change / LOG2E <= tolerance
    sides = []
    for is_side in (operands.table_positions >= 0, operands.table_positions < 0):
        radius = jnp.where(is_far | ~is_side, 0, distance + 1).max(axis=-1)
        is_reached = radius <= jnp.where(is_side, distance, 0).max(axis=-1)
        sides.append(jnp.where(is_reached, radius, UNBOUNDED))
    radius = jnp.stack(sides, axis=-1)
    return radius, (radius < UNBOUNDED).any(axis=-1)


def largest_product(
    query: Float[Array, "B T N H"], key: Float[Array, "B S K H"]
) -> Float[Array, "B N"]:
    """Return an upper bound of |q · k| for each head.

    The bound is the largest norm of a query times the largest norm of a key.
    """
    group_size = query.shape[2] // key.shape[2]
    return _largest_norm(query) * jnp.repeat(_largest_norm(key), group_size, axis=1)


def _largest_norm(x: Float[Array, "B L N W"]) -> Float[Array, "B N"]:
    """Return the largest Euclidean norm of the L vectors of each head."""
    squares = jnp.square(x.astype(jnp.float32)).sum(axis=-1)
    return jnp.sqrt(squares.max(axis=1))
