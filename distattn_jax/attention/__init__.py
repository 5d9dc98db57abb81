"""Attention that knows distance: pure functions of arrays, five variants behind one call."""

from distattn_jax.attention.adapted import Adapted
from distattn_jax.attention.call import attention
from distattn_jax.attention.distance_aware import (
    ADJUSTMENTS,
    Adjustment,
    DistanceAware,
    early_add,
    early_multiply,
    late_add,
    late_multiply,
)
from distattn_jax.attention.dot_product import DotProduct
from distattn_jax.attention.head import Attended, masked_softmax
from distattn_jax.attention.implementations import IMPLEMENTATIONS
from distattn_jax.attention.mappings import (
    MAPPINGS,
    clip,
    exponent,
    learnable_sigmoid,
    linear,
    sigmoid,
)
from distattn_jax.attention.relative_position import RelativePosition
from distattn_jax.attention.sinusoid import sinusoid
from distattn_jax.attention.transformer_xl import TransformerXL
from distattn_jax.attention.variant import Variant, product, static, variant

__all__ = [
    "ADJUSTMENTS",
    "IMPLEMENTATIONS",
    "MAPPINGS",
    "Adapted",
    "Adjustment",
    "Attended",
    "DistanceAware",
    "DotProduct",
    "RelativePosition",
    "TransformerXL",
    "Variant",
    "attention",
    "clip",
    "early_add",
    "early_multiply",
    "exponent",
    "late_add",
    "late_multiply",
    "learnable_sigmoid",
    "linear",
    "masked_softmax",
    "product",
    "sigmoid",
    "sinusoid",
    "static",
    "variant",
]
