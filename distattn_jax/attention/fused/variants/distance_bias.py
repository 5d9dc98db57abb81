"""Biases that depend on the relative position, in the kernels.

ALiBi is a linear function of the distance. The bias of T5 is constant at large distances, so that
it is a bias of clipped relations (see `relations`). Any other function is stored in tables.
"""

import jax
import jax.numpy as jnp

from distattn_jax.attention.fused.distance_functions import LINEAR, LOG2E, Coefficients
from distattn_jax.attention.fused.kernel_view import KernelForm, KernelView, register
from distattn_jax.attention.fused.position_tables import (
    count_parameters,
    make_tables,
    unsupported_parameters_reason,
)
from distattn_jax.attention.fused.relations import unsupported_distance_reason
from distattn_jax.attention.fused.scoring import DistanceScoring, RelationScoring, TableScoring
from distattn_jax.attention.variants import DistanceBias, T5Buckets, alibi


@register(DistanceBias)
class DistanceBiasView(KernelView):
    """`KernelView` of dot-product attention plus a bias that depends on the relative position."""

    def make_form(self, variant, block):
        scale, parameters = block.scale, variant.parameters
        if _is_alibi(variant):
            zero = jnp.zeros_like(parameters)
            coefficients = Coefficients(-parameters, zero, jnp.full_like(zero, LOG2E), far=zero)
            scoring = DistanceScoring(scale, LINEAR, is_additive=True)
            return KernelForm(scoring, block.query, block.key, block.per_head(coefficients))
        if isinstance(variant.function, T5Buckets):
            distance = variant.function.max_distance
            relative_positions = jnp.arange(distance, -distance - 1, -1)
            bias = jax.vmap(variant.function, (None, 0))(relative_positions, parameters)
            scoring = RelationScoring(
                scale, distance, has_relation_products=True, has_relation_weights=False
            )
            return KernelForm(scoring, block.query, block.key, relation_bias=bias / scale)
        scoring = TableScoring(scale, is_additive=True, parameters=count_parameters(variant))
        tables = make_tables(DistanceBias.bias, variant, block, LOG2E)
        return KernelForm(scoring, block.query, block.key, *tables)

    def unsupported_reason(self, variant, block, chip):
        if isinstance(variant.function, T5Buckets):
            return unsupported_distance_reason(variant.function.max_distance)
        return None if _is_alibi(variant) else unsupported_parameters_reason(variant)


def _is_alibi(variant: DistanceBias) -> bool:
    """Return True for ALiBi with one slope per head."""
    return variant.function is alibi and jnp.ndim(variant.parameters) == 1
