"""Attention guides: auxiliary losses on attention weights, and target weights for these losses.

Each loss function returns an array with one loss for each example.
"""

from distattn_jax.guiding.patterns import delimiter, first_token, next_token, period, previous_token
from distattn_jax.guiding.received import map_discrimination, pattern_decorrelation
from distattn_jax.guiding.relations import PmiTable, dependency, pmi, word_similarity
from distattn_jax.guiding.target import Target, make_target, pattern_loss

__all__ = [
    "PmiTable",
    "Target",
    "delimiter",
    "dependency",
    "first_token",
    "make_target",
    "map_discrimination",
    "next_token",
    "pattern_decorrelation",
    "pattern_loss",
    "period",
    "pmi",
    "previous_token",
    "word_similarity",
]
