"""Fused attention: kernels that compute scores, softmax and values tile by tile.

This package holds what the kernels of every chip share. Import the kernels of a chip from its own
package, for example `distattn_jax.attention.fused.gpu`: importing Pallas takes a while.
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
from distattn_jax.attention.fused.operands import BackwardOperands, Operands, Plan
from distattn_jax.attention.fused.scoring import DistanceScoring, DotProductScoring, Scoring

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
    "Scoring",
]
