"""Macro precision, recall and F by hand, and by scikit-learn."""

import numpy as np
import pytest
from sklearn.metrics import precision_recall_fscore_support

from distattn_jax.train.classification import macro_f, macro_precision, macro_recall


def test_macro_metrics_by_hand():
    # Rows are true, columns guessed; the third class is guessed once, and never true.
    confusion = np.asarray([[3.0, 1, 0, 0], [2, 1, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0]])
    assert macro_precision(confusion) == pytest.approx((3 / 5 + 1 / 2 + 0 + 0) / 4)
    assert macro_recall(confusion) == pytest.approx((3 / 4 + 1 / 4 + 0 + 0) / 4)
    assert macro_f(confusion) == pytest.approx((6 / 9 + 2 / 6 + 0 + 0) / 4)


def test_scikit_learn_finds_the_same():
    draw = np.random.default_rng(0)
    true, guessed = draw.integers(0, 3, 50), draw.integers(0, 3, 50)
    confusion = np.zeros((3, 3))
    np.add.at(confusion, (true, guessed), 1)
    found = macro_precision(confusion), macro_recall(confusion), macro_f(confusion)
    expected = precision_recall_fscore_support(true, guessed, average="macro")[:3]
    assert found == pytest.approx(expected)
