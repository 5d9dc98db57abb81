"""Sinusoidal position embeddings."""

import jax.numpy as jnp
import numpy as np
import pytest

from distattn_jax.attention import sinusoid
from tests import oracles

pytestmark = pytest.mark.usefixtures("optimised")


@pytest.mark.parametrize("first", [0, 1000, 32768, -32768])
def test_sinusoids_are_accurate_at_any_position(first):
    positions = jnp.arange(first, first + 5, dtype=jnp.int32)
    expected = np.stack([oracles.sinusoid(int(t), 64) for t in positions])
    np.testing.assert_allclose(sinusoid(positions, 64, jnp.float32), expected, atol=3e-5)
