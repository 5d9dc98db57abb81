"""Evaluation of whole tables: the metrics do not depend on how the work is divided."""

import dataclasses

import numpy as np
import pytest

from distattn_jax import sharding
from distattn_jax.tasks import TextClassificationData
from distattn_jax.train import evaluate
from distattn_jax.train.results import score
from tests.train import tiny

CONFIG = tiny.make_config(seeds=2)
LENGTHS = [6, 3, 5, 1, 2, 2, 4, 6, 1, 5, 3]  # The number of rows is no multiple of a batch size.


def test_metrics_depend_neither_on_the_batch_size_nor_on_the_number_of_models_at_once():
    params = tiny.make_state(tiny.make_task(CONFIG)).state.params
    table, mesh = tiny.make_table(LENGTHS), sharding.make_mesh(1, 1)
    metrics = []
    for size, models_at_once in ((3, 0), (4, 0), (7, 1)):
        data = TextClassificationData(batch_size=size, buckets=1)
        config = dataclasses.replace(CONFIG, data=data, models_at_once=models_at_once)
        metrics.append(evaluate(tiny.make_task(config), params, table, mesh))
    for other in metrics[1:]:
        assert other.keys() == {"loss", "accuracy", "macro_f"}
        for name in ("accuracy", "macro_f"):
            np.testing.assert_array_equal(other[name], metrics[0][name])
        np.testing.assert_allclose(other["loss"], metrics[0]["loss"], rtol=1e-6)
    assert all((value * 11) % 1 == pytest.approx(0) for value in metrics[0]["accuracy"])


def test_the_score_is_higher_for_lower_errors_and_for_higher_accuracies():
    assert score("rmse", 0.5) > score("rmse", 0.7)
    assert score("accuracy", 0.7) > score("accuracy", 0.5)
