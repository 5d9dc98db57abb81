"""Heads with small scores, whose softmax needs no maximum.

A softmax divides 2^(e_j - m) by the sum of these powers, where e_j are the scores to base 2. The
result is the same for every number m. The largest score as m makes sure that no power overflows,
but a kernel spends many instructions on it: it compares all scores, and rescales its sums whenever
it finds a larger one.

If no score of a head is larger than `LIMIT` in absolute value, m = 0 is safe as well. The sum of
2^20 powers times values up to 2^10 is below 2^127, and no power is below 2^-126. This holds for
bfloat16, which has the range of float32, but not for float16. Larger values are not detected.

The norms of queries and keys bound the scores: |q · k| <= |q| |k|. Their computation pays only for
long sequences.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from distattn_jax.attention.fused.distance_functions import evaluate_at, unstack_coefficients
from distattn_jax.attention.fused.operands import Operands, Plan
from distattn_jax.attention.fused.product_bounds import largest_product
from distattn_jax.attention.fused.scoring import DistanceScoring, DotProductScoring

LIMIT = 96.0  # largest absolute score, to base 2
MIN_LENGTH = 1024  # of queries and of keys


def find_small_scores(plan: Plan, operands: Operands) -> Bool[Array, "B N"] | None:
    """Return True for each head whose scores are all small.

    Return None for scorings without a simple bound, for dtypes that need a maximum, and for short
    sequences.
    """
    scoring = plan.scoring
    is_short = min(operands.query.shape[1], operands.key.shape[1]) < MIN_LENGTH
    if is_short or operands.query.dtype != jnp.bfloat16:
        return None
    query, key, coefficients = jax.lax.stop_gradient(
        (operands.query, operands.key, operands.coefficients)
    )
    largest: Float[Array, "B N"] | float
    if isinstance(scoring, DotProductScoring) and scoring.is_dot_product:
        largest = abs(scoring.score_multiplier(None))
    elif isinstance(scoring, DistanceScoring) and not scoring.is_additive:
        largest = _largest_factor(scoring, coefficients, query.shape[1] + key.shape[1])
    else:
        return None
    return largest * largest_product(query, key) <= LIMIT  # False for NaN


def _largest_factor(
    scoring: DistanceScoring, stacked: Float[Array, "B N 4"], distances: int
) -> Float[Array, "B N"]:
    """Return the largest absolute value of height · f, by which ReLU(q · k) is multiplied.

    Args:
      scoring: Scoring with the distance function f.
      stacked: Coefficients of f.
      distances: Number of distances. The far value of f belongs to all distances beyond them.
    """
    distance = jnp.arange(distances, dtype=jnp.float32)[None, None, :]
    f = evaluate_at(scoring.function, distance, stacked)
    coefficients = unstack_coefficients(stacked)
    largest = jnp.maximum(jnp.abs(f).max(axis=-1), jnp.abs(coefficients.far))
    return largest * jnp.abs(coefficients.height)
