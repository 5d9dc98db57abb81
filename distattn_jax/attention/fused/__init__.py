"""Fused attention: kernels that compute scores, softmax and values tile by tile.

This package contains the code that the kernels for all chips share. Import the kernels for one type
of chip from a subpackage, for example `distattn_jax.attention.fused.gpu`. These kernels are not
imported here, because importing Pallas takes a while.
"""

from distattn_jax.attention.fused.distance_functions import (
    CLIPPED,
    EXPONENTIAL,
    LINEAR,
    LOG2E,
    SIGMOID,
    Coefficients,
    DistanceFunction,
)
from distattn_jax.attention.fused.kernels import Plan
from distattn_jax.attention.fused.operands import BackwardOperands, Operands
from distattn_jax.attention.fused.relations import resize_table
from distattn_jax.attention.fused.scoring import (
    DistanceScoring,
    DotProductScoring,
    PositionScoring,
    RelationScoring,
    Scoring,
    TableScoring,
)

__all__ = [
    "CLIPPED",
    "EXPONENTIAL",
    "LINEAR",
    "LOG2E",
    "SIGMOID",
    "BackwardOperands",
    "Coefficients",
    "DistanceFunction",
    "DistanceScoring",
    "DotProductScoring",
    "Operands",
    "Plan",
    "PositionScoring",
    "RelationScoring",
    "Scoring",
    "TableScoring",
    "resize_table",
]
