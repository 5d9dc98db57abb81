"""Scores of each variant in the form of the fused kernels.

A scoring tells the kernels how to compute scores from products q · k. Coefficients or tables
contain the parameters of its function of the position.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from distattn_jax.attention import fused, position_tables
from distattn_jax.attention.arguments import AttentionCall
from distattn_jax.attention.variants import (
    DistanceAware,
    DistanceBias,
    DotProduct,
    RelativePosition,
    T5Buckets,
    TransformerXL,
    Variant,
    alibi,
    early_add,
    early_multiply,
    mappings,
)

MIN_V = -80.0  # of a learnable sigmoid, so that e^v does not underflow
DEFAULT_TOLERANCE = 2.0**-10  # about the rounding error of a score from 16-bit inputs
MIN_SATURATED_LENGTH = 1024  # shorter maps have too few tiles for skipping to pay off


class _KernelMapping(NamedTuple):
    """Mapping of distance-aware attention, written as height times a distance function f.

    Attributes:
      function: Distance function f.
      coefficients: Computes slope, shift and height from the distance weight w and the parameters
        `shape` of the mapping.
    """

    function: fused.DistanceFunction
    coefficients: Callable[[Array, Any], tuple[Array, Array, Array]]


def _learnable_sigmoid_coefficients(weight, shape):
    v = jnp.clip(shape, MIN_V, mappings.LARGEST_EXPONENT)
    return weight, -v, 1 + jnp.exp(v)


def _sigmoid_coefficients(weight, shape):
    return weight, jnp.zeros_like(weight), jnp.ones_like(weight)


def _exponent_coefficients(weight, shape):
    largest_exponent = jnp.full_like(weight, mappings.LARGEST_EXPONENT * fused.LOG2E)
    return weight * fused.LOG2E, largest_exponent, jnp.ones_like(weight)


def _linear_coefficients(weight, shape):
    slope, intercept = shape
    return slope * weight, intercept, jnp.ones_like(weight)


def _clip_coefficients(weight, shape):
    return weight, jax.lax.stop_gradient(shape), jnp.ones_like(weight)


KERNEL_MAPPINGS: dict[Any, _KernelMapping] = {
    mappings.learnable_sigmoid: _KernelMapping(fused.SIGMOID, _learnable_sigmoid_coefficients),
    mappings.sigmoid: _KernelMapping(fused.SIGMOID, _sigmoid_coefficients),
    mappings.exponent: _KernelMapping(fused.EXPONENTIAL, _exponent_coefficients),
    mappings.linear: _KernelMapping(fused.LINEAR, _linear_coefficients),
    mappings.clip: _KernelMapping(fused.CLIPPED, _clip_coefficients),
}


def uses_tables(variant: Variant) -> bool:
    """Return True if the function of the relative position and its derivatives need tables."""
    if isinstance(variant, DistanceAware):
        return variant.mapping not in KERNEL_MAPPINGS
    return isinstance(variant, DistanceBias) and not (_is_alibi(variant) or is_t5(variant))


def _is_alibi(variant: Variant) -> bool:
    """Return True for ALiBi, whose bias is a linear function of the distance."""
    return (
        isinstance(variant, DistanceBias)
        and variant.function is alibi
        and jnp.ndim(variant.parameters) == 1
    )


def make_scoring(call: AttentionCall) -> fused.Scoring:
    """Return the scoring of a variant: how the kernels compute scores from products q · k."""
    variant, scale = call.variant, call.options.scale
    if clip_distances(variant):
        # Relations that are clipped at 0 equal relations with repeated vectors that are clipped
        # at 1. The two tables of a call are resized to the larger one in the same way.
        clip_distance = max(1, *clip_distances(variant))
        has_products = not isinstance(variant, RelativePosition) or variant.keys is not None
        has_weights = isinstance(variant, RelativePosition) and variant.values is not None
        return fused.RelationScoring(scale, clip_distance, has_products, has_weights)
    if isinstance(variant, DotProduct | RelativePosition):
        return fused.DotProductScoring(scale)
    if isinstance(variant, TransformerXL):
        return fused.PositionScoring(scale)
    is_additive = not isinstance(variant, DistanceAware) or variant.adjust == early_add
    if uses_tables(variant):
        return fused.TableScoring(scale, is_additive, position_tables.count_parameters(variant))
    function = fused.LINEAR  # of ALiBi
    if isinstance(variant, DistanceAware):
        function = KERNEL_MAPPINGS[variant.mapping].function
    return fused.DistanceScoring(scale, function, is_additive)


def is_t5(variant: Variant) -> bool:
    """Return True for the buckets of T5, a bias that is constant at large distances."""
    return isinstance(variant, DistanceBias) and isinstance(variant.function, T5Buckets)


def clip_distances(variant: Variant) -> list[int]:
    """Return the distance k at which relations are clipped, for each table of 2k+1 relations.

    The list is empty for variants without relations.
    """
    if isinstance(variant, DistanceBias) and isinstance(variant.function, T5Buckets):
        return [variant.function.max_distance]
    if not isinstance(variant, RelativePosition):
        return []
    tables = (variant.keys, variant.values)
    return [table.shape[1] // 2 for table in tables if table is not None]


def select_tolerance(call: AttentionCall) -> float | None:
    """Return the largest error of a score from treating the distance function as constant.

    If the result is None, the kernels evaluate the distance function at all distances.
    """
    if not isinstance(call.variant, DistanceAware):
        return None
    tolerance = call.variant.tolerance
    if tolerance is None:
        tolerance = DEFAULT_TOLERANCE if call.value.dtype.itemsize <= 2 else 0.0
    elif tolerance > 0:
        return tolerance
    longest = max(call.query.shape[1], call.key.shape[1])
    return tolerance if longest >= MIN_SATURATED_LENGTH else None


def make_coefficients(call: AttentionCall) -> Float[Array, "B N C"]:
    """Return the stacked coefficients of the distance function.

    The C = 4 coefficients are slope, shift, height and far value. For the dot product, C is 0.
    """
    batch, queries, heads, _ = call.query.shape
    variant = call.variant
    if isinstance(variant, DistanceBias) and _is_alibi(variant):
        zero = jnp.zeros_like(variant.parameters)
        height = jnp.full_like(zero, fused.LOG2E)
        return stack(
            fused.Coefficients(-variant.parameters, zero, height, far=zero), (batch, heads)
        )
    if not isinstance(variant, DistanceAware):
        return jnp.zeros((batch, heads, 0), jnp.float32)
    mapping: Any = variant.mapping
    slope, shift, height = KERNEL_MAPPINGS[mapping].coefficients(variant.weight, variant.shape)
    # f at a distance beyond all others, rounded exactly as the mapping rounds it.
    longest = queries + call.key.shape[1]
    far = jax.lax.stop_gradient(mapping(variant.weight * longest, variant.shape) / height)
    factor = fused.LOG2E
    if variant.adjust == early_multiply:
        factor *= call.options.scale
    return stack(fused.Coefficients(slope, shift, height * factor, far), (batch, heads))


def make_tables(
    call: AttentionCall, queries: int, keys: int
) -> tuple[Float[Array, "B N C"], tuple[Float[Array, "B N D"], ...]]:
    """Return the parameters and the tables of the function of the relative position.

    Args:
      call: Arguments of attention.
      queries: Number of queries after padding.
      keys: Number of keys after padding.
    """
    coefficients, tables = position_tables.make_tables(call, queries, keys)
    factor = fused.LOG2E  # because the scores of the kernels are to base 2
    if isinstance(call.variant, DistanceAware) and call.variant.adjust == early_multiply:
        factor *= call.options.scale
    return coefficients, tuple(factor * table for table in tables)


def stack(arrays: tuple[Array, ...], shape: tuple[int, int]) -> Array:
    """Broadcast arrays of at most two axes to (batch, heads), and stack them on a new last axis.

    The stacked array is broadcast, so that a gradient needs one sum over the examples instead of
    one for each array.
    """
    padded = (array.reshape((1,) * (2 - array.ndim) + array.shape) for array in arrays)
    stacked = jnp.stack(jnp.broadcast_arrays(*padded), axis=-1)
    return jnp.broadcast_to(stacked, (*shape, len(arrays)))
