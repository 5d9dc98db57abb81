"""Metrics of classification and of regression, by hand."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from distattn_jax.data import Nested, Ragged, Table
from distattn_jax.models import ClassifierOutput, RegressionOutput
from distattn_jax.tasks import DocumentData, DocumentRegression, DocumentRegressionConfig, prepare
from distattn_jax.tasks.classification import macro_f, macro_precision, macro_recall
from tests.train import tiny


def test_macro_metrics_by_hand():
    # Rows are true classes and columns predicted ones. The third class is predicted once.
    confusion = np.asarray([[3.0, 1, 0, 0], [2, 1, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0]])
    assert macro_precision(confusion) == pytest.approx((3 / 5 + 1 / 2 + 0 + 0) / 4)
    assert macro_recall(confusion) == pytest.approx((3 / 4 + 1 / 4 + 0 + 0) / 4)
    assert macro_f(confusion) == pytest.approx((6 / 9 + 2 / 6 + 0 + 0) / 4)
    assert macro_f(np.eye(3)) == 1


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


def test_a_prediction_is_the_most_probable_label_and_the_probabilities():
    logits = jnp.log(jnp.asarray([[1.0, 2.0, 5.0], [6.0, 3.0, 1.0], [1.0, 1.0, 1.0]]))
    rows = [{"text": "one"}, {"text": "two\ttabs"}]  # The third example is padding.
    found = tiny.make_task().make_predictions(rows, ClassifierOutput(logits))
    assert [one.summary for one in found] == ["c\t0.6250", "a\t0.6000"]
    assert [one.lines for one in found] == [
        "c\t0.6250\tb 0.2500, a 0.1250\tone",
        "a\t0.6000\tb 0.3000, c 0.1000\ttwo tabs",
    ]
    assert found[1].values["label"] == "a"
    assert found[1].values["text"] == "two\ttabs"
    assert found[1].values["probabilities"] == pytest.approx({"a": 0.6, "b": 0.3, "c": 0.1})


REGRESSION = DocumentRegression(DocumentRegressionConfig(), tokenizer=tiny.TOKENIZER)


def make_ratings(*ratings):
    words = Ragged(np.full(len(ratings), 2, np.int32), np.arange(len(ratings) + 1))
    text = Nested.from_counts(words, [1] * len(ratings), 1)
    return Table({"text": text, "rating": np.asarray(ratings, np.float32)})


def test_errors_are_means_over_the_examples_with_a_weight():
    outputs = RegressionOutput(jnp.asarray([4.0, 1.0, 9.0]))
    batch = {
        "rating": jnp.asarray([5.0, 3.0, 1.0]),
        "weight": jnp.asarray([1.0, 1.0, 0.0]),  # The last example only fills up the batch.
    }
    np.testing.assert_allclose(REGRESSION.loss(outputs, batch), [1, 4, 64])
    counts = {name: np.asarray(count) for name, count in REGRESSION.counts(outputs, batch).items()}
    assert REGRESSION.metrics(counts) == {
        "rmse": pytest.approx(2.5**0.5),
        "mae": pytest.approx(1.5),
    }


def test_the_baseline_predicts_the_mean_rating_of_the_training_set():
    baseline = REGRESSION.baseline(
        make_ratings(1, 4, 4), make_ratings(3, 5)
    )  # It predicts 3 for both.
    assert baseline == {"rmse": pytest.approx(2**0.5), "mae": pytest.approx(1)}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Reviews of two sentences, of which at most three tokens are read."""
    folder = tmp_path_factory.mktemp("reviews")
    with (folder / "reviews_Electronics_5.json").open("w") as file:
        for i in range(60):
            text = "good. plain but good."
            row = {"overall": float(i % 5 + 1), "reviewText": text, "helpful": [0, 1]}
            file.write(json.dumps(row) + "\n")
    data = DocumentData(directory=str(folder / "prepared"), manual_dir=str(folder), longest=3)
    return prepare(DocumentRegressionConfig(data=data))


def test_the_longest_sequences_are_counted_after_truncation(prepared):
    assert prepared.about["longest_sequences"] == {"words": 3, "sentences": 2}


def test_the_bias_starts_at_the_mean_rating_of_the_training_set(prepared):
    ratings = prepared.tables["train"].columns["rating"]
    assert set(ratings) == {1, 2, 3, 4, 5}
    np.testing.assert_allclose(prepared.initial_parameters["rating", "bias"], [ratings.mean()])
