"""Metrics of classification, by hand and by scikit-learn."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from distattn_jax.models import ClassifierOutput
from distattn_jax.tasks.classification import macro_f, macro_precision, macro_recall
from tests.train import tiny


def test_macro_metrics_by_hand():
    # Rows are true classes and columns predicted ones. The third class is predicted once.
    confusion = np.asarray([[3.0, 1, 0, 0], [2, 1, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0]])
    assert macro_precision(confusion) == pytest.approx((3 / 5 + 1 / 2 + 0 + 0) / 4)
    assert macro_recall(confusion) == pytest.approx((3 / 4 + 1 / 4 + 0 + 0) / 4)
    assert macro_f(confusion) == pytest.approx((6 / 9 + 2 / 6 + 0 + 0) / 4)
    assert macro_f(np.eye(3)) == 1


def test_macro_metrics_equal_those_of_scikit_learn():
    from sklearn.metrics import precision_recall_fscore_support  # A slow import, for one test.

    draw = np.random.default_rng(0)
    true, predicted = draw.integers(0, 3, 50), draw.integers(0, 3, 50)
    confusion = np.zeros((3, 3))
    np.add.at(confusion, (true, predicted), 1)
    found = macro_precision(confusion), macro_recall(confusion), macro_f(confusion)
    expected = precision_recall_fscore_support(true, predicted, average="macro")[:3]
    assert found == pytest.approx(expected)


def test_counts_leave_out_examples_of_weight_0():
    task = tiny.make_task()
    logits = jnp.asarray([[2.0, 1, 0], [0, 2, 1], [0, 2, 1], [2, 0, 1], [0, 0, 9]])
    labels, weight = jnp.asarray([0, 1, 0, 0, 2]), jnp.asarray([1.0, 1, 1, 1, 0])
    counts = task.counts(ClassifierOutput(logits), {"label": labels, "weight": weight})
    np.testing.assert_array_equal(counts["confusion"], [[2, 1, 0], [0, 1, 0], [0, 0, 0]])
    # F of the classes: 2·2 / (3 + 2), 2·1 / (1 + 2), and 0 without examples and predictions.
    expected = {"accuracy": 3 / 4, "macro_f": (4 / 5 + 2 / 3 + 0) / 3}
    assert task.metrics(jax.device_get(counts)) == pytest.approx(expected)


def test_the_baseline_is_the_most_frequent_label_of_the_training_set():
    def make_table(*labels):
        table = tiny.make_table([1] * len(labels))
        return dataclasses.replace(table, columns={**table.columns, "label": np.asarray(labels)})

    baseline = tiny.make_task().baseline(make_table(1, 1, 2), make_table(0, 1, 2, 2))
    assert baseline == {"accuracy": 1 / 4}


def test_a_prediction_is_the_most_probable_label_and_its_probability():
    logits = jnp.log(jnp.asarray([[1.0, 2.0, 5.0], [6.0, 3.0, 1.0]]))
    lines = tiny.make_task().format_predictions(ClassifierOutput(logits))
    assert lines == ["c\t0.6250", "a\t0.6000"]
