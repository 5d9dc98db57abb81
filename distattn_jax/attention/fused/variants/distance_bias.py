"""Biases that depend on the relative position, in the kernels.

ALiBi is a linear function of the distance. Any other function is stored in a table, which has one
number for each relative position: see `position_tables`.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from distattn_jax.attention.fused.distance_functions import LINEAR, LOG2E, Coefficients
from distattn_jax.attention.fused.kernel_view import KernelForm, KernelView, register
from distattn_jax.attention.fused.position_tables import make_table
from distattn_jax.attention.fused.scoring import DistanceScoring, TableScoring
from distattn_jax.attention.variants import (
    DistanceBias,
    T5Buckets,
    alibi,
    kerple_log,
    kerple_power,
)


@register(DistanceBias)
class DistanceBiasView(KernelView):
    """`KernelView` of dot-product attention plus a bias that depends on the relative position."""

    def make_form(self, variant, block):
        scale, parameters = block.scale, variant.parameters
        if _is_alibi(variant):
            zero = jnp.zeros_like(parameters)
            height = jnp.full_like(zero, LOG2E)
            coefficients = Coefficients(-parameters, zero, height, far=zero, shift_share=zero)
            scoring = DistanceScoring(scale, LINEAR, is_additive=True)
            return KernelForm(scoring, block.query, block.key, block.per_head(coefficients))
        evaluate = (
            _evaluate_buckets if isinstance(variant.function, T5Buckets) else DistanceBias.bias
        )
        scoring = TableScoring(scale, has_factor=False, has_bias=True, is_rectified=False)
        joins = variant.function in (kerple_log, kerple_power)
        table = make_table(evaluate, variant, block, LOG2E, joins_gradients=joins)
        return KernelForm(scoring, block.query, block.key, bias_table=table)


def _is_alibi(variant: DistanceBias) -> bool:
    """Return True for ALiBi with one slope per head."""
    return variant.function is alibi and jnp.ndim(variant.parameters) == 1


def _evaluate_buckets(
    variant: DistanceBias, relative_positions: Int[Array, "T S"]
) -> Float[Array, "T S"]:
    function: Any = variant.function
    return select_buckets(function, relative_positions, variant.parameters)


def select_buckets(
    function: T5Buckets, relative_positions: Int[Array, "T S"], parameters: Float[Array, " buckets"]
) -> Float[Array, "T S"]:
    """Return the bias of T5 for one head, as a matrix product.

    The gradient of a matrix product is a matrix product, which adds up the numbers of a bucket in a
    fixed order. The gradient of an indexing operation has no fixed order on a GPU.
    """
    buckets = jax.nn.one_hot(function.find_buckets(relative_positions), function.num_buckets)
    return jnp.matmul(buckets, parameters, precision=jax.lax.Precision.HIGHEST)
