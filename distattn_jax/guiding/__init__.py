"""What is asked of the attention itself: pure losses, one number per example, and their targets."""

from distattn_jax.guiding.patterns import delimiter, first, following, period, previous
from distattn_jax.guiding.received import map_discrimination, pattern_decorrelation
from distattn_jax.guiding.relations import Pmi, dependency, pmi, word_similarity
from distattn_jax.guiding.target import Target, pattern_loss, shared

__all__ = [
    "Pmi",
    "Target",
    "delimiter",
    "dependency",
    "first",
    "following",
    "map_discrimination",
    "pattern_decorrelation",
    "pattern_loss",
    "period",
    "pmi",
    "previous",
    "shared",
    "word_similarity",
]
