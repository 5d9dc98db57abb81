"""Conversion between arrays by relative position and arrays by key."""

import jax
import numpy as np
import pytest

from distattn_jax.attention.variants.skew import skew, unskew
from tests.attention.cases import random_arrays

SIZES = [(1, 1), (1, 5), (4, 1), (3, 7), (7, 3), (5, 5)]


@pytest.mark.parametrize(("queries", "keys"), SIZES)
def test_skew_equals_a_gather(queries, keys):
    (entries,) = random_arrays(0, (queries, queries + keys), dtype="float32")
    row, column = np.indices((queries, keys))
    np.testing.assert_array_equal(skew(entries), entries[row, queries - 1 - row + column])


@pytest.mark.parametrize(("queries", "keys"), SIZES)
def test_unskew_is_the_transpose_of_skew(queries, keys):
    (entries,) = random_arrays(0, (queries, keys), dtype="float32")
    by_position = jax.ShapeDtypeStruct((queries, queries + keys), entries.dtype)
    (expected,) = jax.linear_transpose(skew, by_position)(entries)
    np.testing.assert_array_equal(unskew(entries), expected)
