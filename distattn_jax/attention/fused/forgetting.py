"""Forgetting: the distance beyond which kernels leave out all keys of a head.

A bias that falls without end gives distant keys no weight. Let s_i be a lower bound of the score of
query i and its own key, the key at the same position. The weight of another key j is at most
exp(score_ij - s_i). For the scores φ(p) f + g of `TableScoring`, with p = q · k / √H, the kernels
leave out all keys beyond a distance R on one side of the query if

    L exp(M |f| + g - s) max(1, |∂g/∂θ|, M |∂f/∂θ|)  <=  tolerance      for all distances beyond R

L is the larger one of the numbers of queries and keys, M is an upper bound of |p|, and θ are the
parameters of f and g. The largest possible change of an output, or of a derivative by a parameter,
is thus about the tolerance. If the tolerance is 0, only keys whose weight is 0 in float32 are left
out. The smallest such R is the reach of the head on this side.

All this holds only if each query sees its own key. A query whose near keys are hidden must still
see its distant keys. A mask of keys or of pairs therefore disables forgetting. So does an offset or
a length for which some query of the example has no own key. A causal mask, windows and segments
leave the own key visible.

Skipped keys have no weight, so that the kernels need no sums over them. This is the difference to
`saturation`: a head whose factor falls to 0, without a bias, averages distant keys.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from distattn_jax.attention.fused.distance_functions import LOG2E
from distattn_jax.attention.fused.operands import Operands
from distattn_jax.attention.fused.saturation import largest_product
from distattn_jax.attention.fused.visible_columns import UNBOUNDED

SMALLEST_EXPONENT = -150.0  # 2^-150 is rounded to 0 in float32


def find_reach(
    operands: Operands, tolerance: float, *, scale: float, is_rectified: bool
) -> Int[Array, "B N 2"] | None:
    """Return the largest distance of a key that a query may not leave out, for each side.

    Index 0 is for keys before the query, and index 1 is for keys after the query. The reach is
    `UNBOUNDED` if a query of the example does not see its own key. Return None if no head may leave
    out keys.

    Args:
      operands: Arrays of the call, with a table of biases, and with the bounds of its tables.
      tolerance: Largest allowed sum of the weights of all skipped keys of a query.
      scale: Factor of the products q · k, if there is no table of factors.
      is_rectified: True if φ is ReLU, False if φ is the identity.
    """
    if operands.bias_bound is None or operands.key_mask is not None or operands.mask is not None:
        return None
    operands = jax.lax.stop_gradient(operands)
    relative, excess = operands.table_positions, _bound_excess(operands, scale, is_rectified)
    if tolerance > 0:
        length = max(operands.query.shape[1], operands.key.shape[1])
        limit = math.log2(tolerance / length)
        excess += jnp.log2(jnp.maximum(_bound_derivatives(operands), 1.0))
    else:
        limit = SMALLEST_EXPONENT
    # A bound that is NaN fails the comparison, so its distance is not left out.
    distance = jnp.where(excess <= limit, 0, jnp.abs(relative))
    sides = [
        jnp.where(is_side, distance, 0).max(axis=-1) for is_side in (relative > 0, relative < 0)
    ]
    sees_own_key = _sees_own_key(operands)[:, None, None]
    return jnp.where(sees_own_key, jnp.stack(sides, axis=-1), UNBOUNDED)


def _bound_excess(operands: Operands, scale: float, is_rectified: bool) -> Float[Array, "B N D"]:
    """Return an upper bound of the score minus the score of the own key, to base 2.

    The result has one number for each relative position.
    """
    bias, factor = operands.bias_table, operands.factor_table
    assert bias is not None, "only a bias lets a head forget"
    if factor is None:
        factor = jnp.full_like(bias, scale * LOG2E)
    products = largest_product(operands.query, operands.key)[..., None] * factor
    above, below = jnp.abs(products), jnp.abs(products)
    if is_rectified:
        above, below = jnp.maximum(products, 0.0), jnp.maximum(-products, 0.0)
    is_own = operands.table_positions == 0
    own = jnp.where(is_own, bias - below, 0.0).sum(axis=-1, keepdims=True)
    return bias + above - own


def _bound_derivatives(operands: Operands) -> Float[Array, "#B N D"]:
    """Return an upper bound of the derivatives of a score by the parameters of f and g."""
    bound = operands.bias_bound
    assert bound is not None, "forgetting needs a bound"
    if operands.factor_bound is None:
        return bound
    product = largest_product(operands.query, operands.key)[..., None]
    return jnp.maximum(bound, product * operands.factor_bound)


def _sees_own_key(operands: Operands) -> Bool[Array, "#B"]:
    """Return True for each example in which every query sees the key at its own position."""
    offset = operands.offset
    sees = (offset >= 0) & (offset + operands.query_lengths <= operands.key_lengths)
    if operands.query_segments is None or operands.key_segments is None:
        return sees
    query = jnp.arange(operands.query.shape[1], dtype=jnp.int32)[None, :]
    own_key = jnp.clip(query + offset[:, None], 0, operands.key.shape[1] - 1)
    own_key = jnp.broadcast_to(own_key, operands.query_segments.shape)
    own_segment = jnp.take_along_axis(operands.key_segments, own_key, axis=1)
    is_padding = query >= operands.query_lengths[:, None]
    return sees & ((own_segment == operands.query_segments) | is_padding).all(axis=1)
