"""Ratings: what the task counts, against numbers worked out by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from distattn_jax.data import Nested, Ragged, Table
from distattn_jax.models import RegressionOutput
from distattn_jax.train.metrics import score
from distattn_jax.train.regression import DocumentRegression
from tests.train import tiny


def table(*ratings):
    words = Ragged(np.full(len(ratings), 2, np.int32), np.arange(len(ratings) + 1))
    text = Nested.from_counts(words, [1] * len(ratings), 1)
    return Table({"text": text, "rating": np.asarray(ratings, np.float32)})


@pytest.fixture
def task():
    tables = {"train": table(1, 4, 4), "test": table(3, 5)}
    return DocumentRegression(
        "distance_aware", tiny.MODEL, labels=(), tokenizer=tiny.TOKENIZER, tables=tables
    )


def test_errors_are_means_over_examples_that_count(task):
    outputs = RegressionOutput(jnp.asarray([4.0, 1.0, 9.0]))
    batch = {
        "rating": jnp.asarray([5.0, 3.0, 1.0]),
        "weight": jnp.asarray([1.0, 1.0, 0.0]),  # the last only fills up
    }
    np.testing.assert_allclose(task.loss(outputs, batch), [1, 4, 64])
    counts = {name: np.asarray(count) for name, count in task.counts(outputs, batch).items()}
    assert task.metrics(counts) == {"rmse": pytest.approx(2.5**0.5), "mae": pytest.approx(1.5)}


def test_without_a_model_the_mean_rating_of_the_training_set_is_the_guess(task):
    baseline = task.baseline("test")  # 3 and 5, each taken for 3
    assert baseline == {"rmse": pytest.approx(2**0.5), "mae": pytest.approx(1)}
    assert task.initial()["rating", "bias"] == 3


def test_an_error_is_better_when_it_is_lower():
    assert score("rmse", 0.5) > score("rmse", 0.7)
    assert score("accuracy", 0.7) > score("accuracy", 0.5)
