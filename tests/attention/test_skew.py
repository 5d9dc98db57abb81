"""Conversion between arrays by relative position and arrays by key."""

import jax
import numpy as np
import pytest

from distattn_jax.attention.variants.skew import skew, unskew
from tests.attention.cases import random_arrays

SIZES = [(1, 1), (1, 5), (4, 1), (3, 7), (7, 3), (5, 5)]


@pytest.mark.parametrize(("queries", "keys"), SIZES)
def test_skew_equals_a_gather_and_unskew_is_its_transpose(queries, keys):
    by_position, by_key = random_arrays(
        0, (queries, queries + keys), (queries, keys), dtype="float32"
    )
    row, column = np.indices((queries, keys))
    np.testing.assert_array_equal(skew(by_position), by_position[row, queries - 1 - row + column])
    (expected,) = jax.linear_transpose(skew, by_position)(by_key)
    np.testing.assert_array_equal(unskew(by_key), expected)
