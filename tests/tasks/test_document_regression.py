"""Regression of ratings: errors by hand, and the mean rating as baseline and as initial bias."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from distattn_jax.data import Nested, Ragged, Table
from distattn_jax.models import RegressionOutput
from distattn_jax.tasks import DocumentData, DocumentRegression, DocumentRegressionConfig, prepare
from tests.train import tiny


def make_table(*ratings):
    words = Ragged(np.full(len(ratings), 2, np.int32), np.arange(len(ratings) + 1))
    text = Nested.from_counts(words, [1] * len(ratings), 1)
    return Table({"text": text, "rating": np.asarray(ratings, np.float32)})


@pytest.fixture
def task():
    return DocumentRegression(DocumentRegressionConfig(), tokenizer=tiny.TOKENIZER)


def test_errors_are_means_over_the_examples_with_a_weight(task):
    outputs = RegressionOutput(jnp.asarray([4.0, 1.0, 9.0]))
    batch = {
        "rating": jnp.asarray([5.0, 3.0, 1.0]),
        "weight": jnp.asarray([1.0, 1.0, 0.0]),  # The last example only fills up the batch.
    }
    np.testing.assert_allclose(task.loss(outputs, batch), [1, 4, 64])
    counts = {name: np.asarray(count) for name, count in task.counts(outputs, batch).items()}
    assert task.metrics(counts) == {"rmse": pytest.approx(2.5**0.5), "mae": pytest.approx(1.5)}


def test_the_baseline_predicts_the_mean_rating_of_the_training_set(task):
    baseline = task.baseline(make_table(1, 4, 4), make_table(3, 5))  # It predicts 3 for both.
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
