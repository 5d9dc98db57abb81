"""Distance-aware attention in the kernels.

A mapping turns the distance |i - j| into the factor or summand of a score. Each mapping of the
paper is written as height · f, where the distance function f depends on |i - j| and on two
coefficients, slope and shift. Any other mapping is stored in a table: see `position_tables`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from distattn_jax.attention.fused.distance_functions import (
    CLIPPED,
    EXPONENTIAL,
    LINEAR,
    LOG2E,
    SIGMOID,
    Coefficients,
    DistanceFunction,
    select_shift_share,
)
from distattn_jax.attention.fused.kernel_view import Block, KernelForm, KernelView, register
from distattn_jax.attention.fused.position_tables import bound_table, make_table
from distattn_jax.attention.fused.scoring import DistanceScoring, TableScoring
from distattn_jax.attention.variants import DistanceAware, early_add, early_multiply, mappings

MIN_V = -80.0  # of a learnable sigmoid, so that e^v does not underflow
DEFAULT_TOLERANCE = 2.0**-10  # about the rounding error of a score from 16-bit inputs
MIN_SATURATED_LENGTH = 1024  # shorter maps have too few tiles for skipping to pay off


class _MappingForm(NamedTuple):
    """Mapping of the paper, written as height times a distance function f.

    Attributes:
      function: Distance function f.
      coefficients: Computes slope, shift and height from the fields `weight` and `shape` of
        `DistanceAware`: the distance weight w, and further parameters of the mapping.
    """

    function: DistanceFunction
    coefficients: Callable[[Array, Any], tuple[Array, Array, Array]]


def _learnable_sigmoid(weight, shape):
    v = jnp.clip(shape, MIN_V, mappings.LARGEST_EXPONENT)
    return weight, -v, 1 + jnp.exp(v)


def _sigmoid(weight, shape):
    return weight, jnp.zeros_like(weight), jnp.ones_like(weight)


def _exponent(weight, shape):
    largest_exponent = jnp.full_like(weight, mappings.LARGEST_EXPONENT * LOG2E)
    return weight * LOG2E, largest_exponent, jnp.ones_like(weight)


def _linear(weight, shape):
    slope, intercept = shape
    return slope * weight, intercept, jnp.ones_like(weight)


def _clip(weight, shape):
    return weight, jax.lax.stop_gradient(shape), jnp.ones_like(weight)


MAPPING_FORMS: dict[Any, _MappingForm] = {
    mappings.learnable_sigmoid: _MappingForm(SIGMOID, _learnable_sigmoid),
    mappings.sigmoid: _MappingForm(SIGMOID, _sigmoid),
    mappings.exponent: _MappingForm(EXPONENTIAL, _exponent),
    mappings.linear: _MappingForm(LINEAR, _linear),
    mappings.clip: _MappingForm(CLIPPED, _clip),
}


@register(DistanceAware)
class DistanceAwareView(KernelView):
    """`KernelView` of distance-aware attention that adjusts scores before the softmax."""

    def make_form(self, variant, block):
        is_additive = variant.adjust == early_add
        factor = LOG2E if is_additive else LOG2E * block.scale
        tolerance = select_tolerance(variant.tolerance, block)
        if variant.mapping in MAPPING_FORMS:
            function = MAPPING_FORMS[variant.mapping].function
            return KernelForm(
                DistanceScoring(block.scale, function, is_additive),
                block.query,
                block.key,
                coefficients=block.per_head(_make_coefficients(variant, block, factor)),
                tolerance=tolerance,
            )
        arguments = (DistanceAware.coefficients, variant, block, factor)
        table = make_table(*arguments)
        if is_additive:
            scoring = TableScoring(block.scale, has_factor=False, has_bias=True, is_rectified=False)
            return KernelForm(scoring, block.query, block.key, bias_table=table)
        return KernelForm(
            TableScoring(block.scale, has_factor=True, has_bias=False, is_rectified=True),
            block.query,
            block.key,
            factor_table=table,
            factor_bound=None if tolerance is None else bound_table(*arguments),
            tolerance=tolerance,
        )

    def unsupported_reason(self, variant, block, chip):
        if variant.adjust not in (early_multiply, early_add):
            return "it cannot adjust weights after the softmax: adjust must be early"
        return None if variant.score_bias is None else "it cannot add a score_bias"

    def may_be_local(self, variant):
        return variant.adjust == early_multiply and variant.mapping in MAPPING_FORMS

    def may_lose_digits(self, variant):
        """Return True for the mapping `exponent`, which may multiply scores by e⁶⁰.

        Kernels do not store weights. In the backward pass, they compute the scores again and
        subtract the logsumexp. The rounding error of such a large score may exceed the largest
        exponent of a float32, so that gradients may not be finite.
        """
        return variant.mapping == mappings.exponent


def _make_coefficients(variant: DistanceAware, block: Block, factor: float) -> Coefficients:
    """Return the coefficients of the distance function f of each head.

    Args:
      variant: Attention variant with a mapping of the paper.
      block: Arrays of the call.
      factor: Factor by which the height is multiplied.
    """
    mapping: Any = variant.mapping
    slope, shift, height = MAPPING_FORMS[mapping].coefficients(variant.weight, variant.shape)
    # f at a distance beyond all others, rounded exactly as the mapping rounds it.
    longest = block.query.shape[1] + block.key.shape[1]
    far = jax.lax.stop_gradient(mapping(variant.weight * longest, variant.shape) / height)
    share = jnp.zeros_like(far)
    if mapping is mappings.learnable_sigmoid:
        share = jax.lax.stop_gradient(select_shift_share(shift, far))
    return Coefficients(slope, shift, height * factor, far, share)


def select_tolerance(tolerance: float | None, block: Block) -> float | None:
    """Return the largest allowed error: see `KernelForm.tolerance`.

    The default is 2^-10 for 16-bit values, and 0 for float32. If there are fewer than 1,024 queries
    and fewer than 1,024 keys, return None: replacing f by a constant then saves no time. A positive
    tolerance is always returned.

    Args:
      tolerance: Field `tolerance` of a variant. None means the default.
      block: Arrays of the call.
    """
    if tolerance is None:
        tolerance = DEFAULT_TOLERANCE if block.value.dtype.itemsize <= 2 else 0.0
    elif tolerance > 0:
        return tolerance
    longest = max(block.query.shape[1], block.key.shape[1])
    return tolerance if longest >= MIN_SATURATED_LENGTH else None
