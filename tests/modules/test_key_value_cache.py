"""Cache of keys and values: appending per example, overflow."""

import jax.numpy as jnp
import numpy as np
import pytest

from distattn_jax.modules import KeyValueCache


def make_tokens(*numbers):
    """Return keys of shape (B, T, 1, 1) that contain these numbers."""
    return jnp.asarray(numbers, jnp.float32)[..., None, None]


def test_every_example_has_its_own_number_of_tokens():
    cache = KeyValueCache.empty(2, 4, 1, 1, jnp.float32)
    cache = cache.append(
        make_tokens([1, 2], [3, 0]), make_tokens([5, 6], [7, 0]), jnp.array([2, 1])
    )
    np.testing.assert_array_equal(cache.lengths, [2, 1])
    cache = cache.append(make_tokens([8], [9]), make_tokens([8], [9]))
    np.testing.assert_array_equal(cache.lengths, [3, 2])
    np.testing.assert_array_equal(cache.key[..., 0, 0], [[1, 2, 8, 0], [3, 9, 0, 0]])
    np.testing.assert_array_equal(cache.value[..., 0, 0], [[5, 6, 8, 0], [7, 9, 0, 0]])


def test_an_example_that_overflows_is_nan():
    cache = KeyValueCache.empty(2, 2, 1, 1, jnp.float32)
    cache = cache.append(
        make_tokens([1, 2], [3, 0]), make_tokens([1, 2], [3, 0]), jnp.array([2, 1])
    )
    cache = cache.append(make_tokens([4], [5]), make_tokens([4], [5]))
    assert jnp.isnan(cache.key[0]).all()
    np.testing.assert_array_equal(cache.key[1, :, 0, 0], [3, 5])


def test_more_tokens_than_room_are_refused():
    cache = KeyValueCache.empty(1, 2, 1, 1, jnp.float32)
    with pytest.raises(ValueError, match="key must have at most 2 tokens"):
        cache.append(make_tokens([1, 2, 3]), make_tokens([1, 2, 3]))
