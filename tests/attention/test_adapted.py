"""Adapted attention at large positions."""

import jax.numpy as jnp
import numpy as np
import pytest

from distattn_jax.attention import Adapted, attention
from tests import oracles
from tests.attention.cases import Sizes, inputs, random_arrays

pytestmark = pytest.mark.usefixtures("optimised")
LENGTH = 32768


def test_scores_at_position_32768_equal_scores_at_small_positions():
    """The expansion of sin(i-j) must keep its accuracy where i and j are large and i-j is small."""
    biases = random_arrays(0, (1, 16), (1, 16), dtype="float32")
    sizes = Sizes(batch=1, queries=2, keys=LENGTH, heads=1, width=16, value_width=2)
    query, key, value = inputs(sizes, "float32")
    near = slice(LENGTH - 4, LENGTH)
    mask = jnp.zeros((1, 1, 1, LENGTH), bool).at[..., near].set(True)
    actual = attention(
        query,
        key,
        value,
        Adapted(*biases),
        mask=mask,
        query_offset=LENGTH - 2,
        implementation="xla",
    )
    expected, *_ = oracles.attend(
        query, key[:, near], value[:, near], **oracles.adapted(*biases), query_offset=2
    )
    np.testing.assert_allclose(actual.values, expected, atol=2e-3)
