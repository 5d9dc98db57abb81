"""Tests of the PMI of tokens against hand-computed values and plain loops."""

import math

import numpy as np
import pytest

from distattn_jax.data import Ragged, count_pmi


def make_ragged(rows):
    values = np.asarray([token for row in rows for token in row], np.int32)
    return Ragged(values, np.cumsum([0, *map(len, rows)], dtype=np.int64))


def test_pmi_equals_hand_computed_values():
    # There are 4 examples. Token 9 is in 4, 1 in 2, 2 in 3, 5 in 1, and 1 and 2 together in 2.
    found = count_pmi(make_ragged([[9, 1, 2], [9, 2, 1, 1], [9, 2, 2, 9], [9, 5]]), 10)
    assert found.row_of_token.tolist() == [-1, 0, 1, -1, -1, 2, -1, -1, -1, 3]
    expected = np.zeros((4, 4))
    expected[0, 1] = expected[1, 0] = math.log(4 * 2 / (2 * 3))
    expected[0, 0] = math.log(4 * 1 / (2 * 2))  # twice in one example
    np.testing.assert_allclose(found.values, expected, atol=1e-6)
    assert found.values.dtype == np.float32


def test_pmi_equals_that_of_plain_loops():
    generator = np.random.default_rng(0)
    rows = [generator.zipf(1.3, generator.integers(0, 12)).clip(max=30).tolist() for _ in range(80)]
    found = count_pmi(make_ragged(rows), 32)
    frequency = [sum(a in row for row in rows) for a in range(32)]
    for a in range(32):
        for b in range(32):
            both = sum(row.count(a) > 1 if a == b else a in row and b in row for row in rows)
            value = math.log(len(rows) * both / (frequency[a] * frequency[b])) if both else 0
            i, j = found.row_of_token[[a, b]]
            if frequency[a] and frequency[b]:
                assert found.values[i, j] == pytest.approx(max(value, 0), abs=1e-5)
            else:
                assert min(i, j) == -1


def test_only_the_most_frequent_tokens_are_kept():
    found = count_pmi(make_ragged([[3, 7], [3, 7, 5], [7, 2], [2]]), 8, size=2)
    assert found.row_of_token.tolist() == [-1, -1, 0, -1, -1, -1, -1, 1]  # 2 and 3 are tied
    assert found.values.shape == (2, 2)


def test_a_token_id_outside_the_vocabulary_is_an_error():
    with pytest.raises(ValueError, match=r"tokens must be ids from 0 to 3; got 1 to 4"):
        count_pmi(make_ragged([[1, 4]]), 4)
