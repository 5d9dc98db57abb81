"""Tests of BM25."""

import math

import numpy as np

from distattn_jax.datasets import Bm25


def test_scores_equal_hand_computed_values():
    index = Bm25(["Masks, masks work", "a virus", ""])
    # The texts have 3, 2 and 0 words, 5/3 on average. One text has "masks" twice, one "virus" once.
    idf = math.log(1 + 2.5 / 1.5)
    first = idf * 2.5 * 2 / (2 + 1.5 * (0.25 + 0.75 * 3 * 3 / 5))
    second = idf * 2.5 * 1 / (1 + 1.5 * (0.25 + 0.75 * 2 * 3 / 5))
    np.testing.assert_allclose(index.scores("Do MASKS stop a-virus? masks"), [first, 2 * second, 0])
    np.testing.assert_array_equal(index.scores("unheard of"), [0, 0, 0])


def test_nearest_texts_are_sorted_by_score_then_number():
    texts = ["bats", "cats and dogs", "cats", "cats", "dogs"]
    index = Bm25(texts)
    np.testing.assert_array_equal(index.nearest("cats", 3), [2, 3, 1])
    np.testing.assert_array_equal(index.nearest("cats", 2, without=[2]), [3, 1])
    np.testing.assert_array_equal(index.nearest("cats", 9, without={0, 4}), [2, 3, 1])
    np.testing.assert_array_equal(index.nearest("cats", 4), [2, 3, 1, 0])
    assert len(index.nearest("cats", 3, without=range(5))) == 0
