"""The same mathematics in one pass over the tiles: kernels for Hopper GPUs, in Pallas.

Import the kernels of a chip from their module: Pallas takes a while to import.
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
