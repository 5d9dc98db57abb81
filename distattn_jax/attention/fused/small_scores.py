"""Heads with small scores, whose softmax needs no maximum.

A softmax divides 2^(e_j - m) by the sum of these powers, where e_j are the scores to base 2. The
result is the same for every number m. If m is the largest score, no power overflows. But the search
for the largest score costs many instructions: a kernel compares all scores, and rescales its sums
whenever it finds a larger score.

If no score of a head is larger than `LIMIT` in absolute value, m = 0 is safe as well. The sum of
2^20 powers times values up to 2^10 is below 2^127, and no power is below 2^-126. This holds for
bfloat16, which has the range of float32, but not for float16. Larger values are not detected.

The norms of queries and keys bound the scores: |q · k| <= |q| |k|. A bias is added to this bound.
Computing the norms saves time for long sequences only.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from distattn_jax.attention.fused.kernels import Plan
from distattn_jax.attention.fused.operands import Operands
from distattn_jax.attention.fused.saturation import largest_product

LIMIT = 96.0  # largest absolute score, to base 2
MIN_LENGTH = 1024  # of queries and of keys


def find_small_scores(plan: Plan, operands: Operands) -> Bool[Array, "B N"] | None:
    """Return a mask that is True for each head whose scores are all small.

    A score to base 2 is small if its absolute value is at most `LIMIT`. The softmax of small scores
    needs no maximum. Return None if the scoring has no simple bound of its scores, if the dtype is
    not bfloat16, or if there are fewer than `MIN_LENGTH` queries or keys.
    """
    is_short = min(operands.query.shape[1], operands.key.shape[1]) < MIN_LENGTH
    if is_short or operands.query.dtype != jnp.bfloat16:
        return None
    operands = jax.lax.stop_gradient(operands)
    largest = plan.scoring.largest_factor(operands)
    if largest is None:
        return None
    largest *= largest_product(operands.query, operands.key)
    return largest + plan.scoring.largest_bias(operands) <= LIMIT  # False for NaN
