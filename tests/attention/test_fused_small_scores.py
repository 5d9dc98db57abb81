"""Heads with small scores: their bound, and the forward kernel without a maximum."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from distattn_jax.attention import DistanceAware, DotProduct, attention
from distattn_jax.attention.fused import small_scores
from distattn_jax.attention.fused.kernels import Plan
from distattn_jax.attention.fused.operands import Operands
from distattn_jax.attention.fused.scoring import DotProductScoring
from distattn_jax.attention.fused.visible_columns import Window
from tests.attention.cases import TOLERANCE, Sizes, inputs, needs_kernels
from tests.evaluation import interpreted

LOCAL_AND_DISTANT = jnp.asarray([-0.5, 0.5]), jnp.asarray([1.0, -0.5])  # w and v of two heads


def find_small_scores(query: jax.Array, key: jax.Array):
    """Return the result of the library for the dot product with scale 1."""
    lengths = jnp.zeros(1, jnp.int32)
    operands = Operands(query, key, key, jnp.zeros((1, 2, 0)), lengths, lengths, lengths)
    plan = Plan(DotProductScoring(1.0), Window(), received=False, logsumexp=False, tolerance=None)
    return small_scores.find_small_scores(plan, operands)


@pytest.mark.parametrize(("factor", "is_small"), [(0.99, True), (1.01, False), (np.nan, False)])
def test_norms_bound_the_scores(factor, is_small):
    """The largest score of the first head is `factor` times the limit, that of the second is 0."""
    key = jnp.zeros((1, small_scores.MIN_LENGTH, 2, 4)).at[0, 5, 0, 0].set(8.0)
    largest = small_scores.LIMIT * np.log(2) / 8
    query = jnp.zeros_like(key).at[0, 7, 0].set(factor * largest / 2)  # four equal numbers
    found = find_small_scores(query.astype(jnp.bfloat16), key.astype(jnp.bfloat16))
    np.testing.assert_array_equal(found, [[is_small, True]])


@pytest.mark.parametrize(("dtype", "shorter"), [("float16", 0), ("float32", 0), ("bfloat16", 1)])
def test_other_dtypes_and_short_sequences_have_no_bound(dtype, shorter):
    x = jnp.zeros((1, small_scores.MIN_LENGTH - shorter, 2, 4), dtype)
    assert find_small_scores(x, x) is None


@needs_kernels
@pytest.mark.parametrize("variant", [DotProduct(), DistanceAware(*LOCAL_AND_DISTANT)])
def test_only_heads_with_large_scores_need_a_maximum(variant, monkeypatch):
    """One head has scores around 150, the other one has scores around 1."""
    monkeypatch.setattr(small_scores, "MIN_LENGTH", 1)
    monkeypatch.setattr("distattn_jax.attention.fused.gpu.tile_configs.MIN_LONG_LENGTH", 1)
    sizes = Sizes(batch=1, queries=192, keys=256, heads=2, width=16, value_width=16)
    query, key, value = inputs(sizes, "bfloat16")
    query = query * jnp.asarray([1, 150], query.dtype)[None, None, :, None]
    exact = [x.astype(jnp.float32) for x in (query, key, value)]
    expected = attention(*exact, variant, implementation="reference", logsumexp=True)
    with interpreted():
        fused = attention(query, key, value, variant, implementation="pallas", logsumexp=True)
    assert fused.logsumexp[0, 1].max() > 300
    for actual, desired in ((fused.values, expected.values), (fused.logsumexp, expected.logsumexp)):
        error = jnp.abs(actual.astype(jnp.float32) - desired).max() / jnp.abs(desired).max()
        assert error <= TOLERANCE["bfloat16"]
