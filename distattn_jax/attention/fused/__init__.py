"""The same mathematics in one pass over the tiles: kernels for Hopper GPUs, in Pallas.

Import `attend` from its module: with it comes Pallas, which takes a while.
"""

from distattn_jax.attention.fused.operands import Operands, Plan
from distattn_jax.attention.fused.scoring import (
    LOG2E,
    Distance,
    Family,
    Plain,
    Scoring,
    bend,
    limit,
    line,
    power,
)

__all__ = [
    "LOG2E",
    "Distance",
    "Family",
    "Operands",
    "Plain",
    "Plan",
    "Scoring",
    "bend",
    "limit",
    "line",
    "power",
]
