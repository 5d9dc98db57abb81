"""Transformer-XL attention: the skew."""

import numpy as np
import pytest

from distattn_jax.attention.variants.transformer_xl import skew
from tests.attention.cases import random_arrays


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 5), (4, 1), (3, 7), (7, 3), (5, 5)])
def test_skew_equals_a_gather(queries, keys):
    (entries,) = random_arrays(0, (queries, queries + keys), dtype="float32")
    row, column = np.indices((queries, keys))
    np.testing.assert_array_equal(skew(entries), entries[row, queries - 1 - row + column])
