"""Attention variants. Each file implements the equation of one variant for one head."""

from distattn_jax.attention.variants.adapted import Adapted
from distattn_jax.attention.variants.bias_functions import (
    BIAS_FUNCTIONS,
    BIAS_PARAMETER_NAMES,
    BiasFunction,
    T5Buckets,
    alibi,
    alibi_slopes,
    constant,
    init_bias_parameters,
    kerple_log,
    kerple_power,
    t5_buckets,
)
from distattn_jax.attention.variants.distance_aware import (
    ADJUSTMENTS,
    Adjustment,
    DistanceAware,
    early_add,
    early_multiply,
    late_add,
    late_multiply,
)
from distattn_jax.attention.variants.distance_bias import DistanceBias
from distattn_jax.attention.variants.dot_product import DotProduct
from distattn_jax.attention.variants.mappings import (
    MAPPING_PARAMETER_NAMES,
    MAPPINGS,
    MappingFunction,
    clip,
    exponent,
    learnable_sigmoid,
    linear,
    sigmoid,
)
from distattn_jax.attention.variants.relative_position import RelativePosition
from distattn_jax.attention.variants.sinusoid import sinusoid
from distattn_jax.attention.variants.transformer_xl import TransformerXL
from distattn_jax.attention.variants.two_sided import SIDES, TwoSided
from distattn_jax.attention.variants.variant import Variant, product, promote, static, variant
from distattn_jax.attention.variants.variant import (
    compute_relative_positions as compute_relative_positions,
)

__all__ = [
    "ADJUSTMENTS",
    "BIAS_FUNCTIONS",
    "BIAS_PARAMETER_NAMES",
    "MAPPINGS",
    "MAPPING_PARAMETER_NAMES",
    "SIDES",
    "Adapted",
    "Adjustment",
    "BiasFunction",
    "DistanceAware",
    "DistanceBias",
    "DotProduct",
    "MappingFunction",
    "RelativePosition",
    "T5Buckets",
    "TransformerXL",
    "TwoSided",
    "Variant",
    "alibi",
    "alibi_slopes",
    "clip",
    "constant",
    "early_add",
    "early_multiply",
    "exponent",
    "init_bias_parameters",
    "kerple_log",
    "kerple_power",
    "late_add",
    "late_multiply",
    "learnable_sigmoid",
    "linear",
    "product",
    "promote",
    "sigmoid",
    "sinusoid",
    "static",
    "t5_buckets",
    "variant",
]
