"""BM25 by hand, and the order of what is near."""

import math

import numpy as np

from distattn_jax.datasets import Bm25


def test_scores_by_hand():
    near = Bm25(["Masks, masks work", "a virus", ""])
    # 3, 2 and 0 words, 5/3 on average; "masks" twice in one of three texts, "virus" once in one.
    idf = math.log(1 + 2.5 / 1.5)
    first = idf * 2.5 * 2 / (2 + 1.5 * (0.25 + 0.75 * 3 * 3 / 5))
    second = idf * 2.5 * 1 / (1 + 1.5 * (0.25 + 0.75 * 2 * 3 / 5))
    np.testing.assert_allclose(near.scores("Do MASKS stop a-virus? masks"), [first, 2 * second, 0])
    np.testing.assert_array_equal(near.scores("unheard of"), [0, 0, 0])


def test_the_nearest_come_first_and_of_equals_the_first_given():
    texts = ["bats", "cats and dogs", "cats", "cats", "dogs"]
    near = Bm25(texts)
    np.testing.assert_array_equal(near.nearest("cats", 3), [2, 3, 1])
    np.testing.assert_array_equal(near.nearest("cats", 2, without=[2]), [3, 1])
    np.testing.assert_array_equal(near.nearest("cats", 9, without={0, 4}), [2, 3, 1])
    np.testing.assert_array_equal(near.nearest("cats", 4), [2, 3, 1, 0])
    assert len(near.nearest("cats", 3, without=range(5))) == 0
