"""Attention variants. Each file implements the equation of one variant for one head."""

from distattn_jax.attention.variants.adapted import Adapted
from distattn_jax.attention.variants.distance_aware import (
    ADJUSTMENTS,
    Adjustment,
    DistanceAware,
    early_add,
    early_multiply,
    late_add,
    late_multiply,
)
from distattn_jax.attention.variants.dot_product import DotProduct
from distattn_jax.attention.variants.mappings import (
    MAPPINGS,
    Mapping,
    clip,
    exponent,
    learnable_sigmoid,
    linear,
    sigmoid,
)
from distattn_jax.attention.variants.relative_position import RelativePosition
from distattn_jax.attention.variants.sinusoid import sinusoid
from distattn_jax.attention.variants.transformer_xl import TransformerXL
from distattn_jax.attention.variants.variant import (
    Variant,
    compute_relative_positions,
    product,
    promote,
    static,
    variant,
)

__all__ = [
    "ADJUSTMENTS",
    "MAPPINGS",
    "Adapted",
    "Adjustment",
    "DistanceAware",
    "DotProduct",
    "Mapping",
    "RelativePosition",
    "TransformerXL",
    "Variant",
    "clip",
    "compute_relative_positions",
    "early_add",
    "early_multiply",
    "exponent",
    "late_add",
    "late_multiply",
    "learnable_sigmoid",
    "linear",
    "product",
    "promote",
    "sigmoid",
    "sinusoid",
    "static",
    "variant",
]
