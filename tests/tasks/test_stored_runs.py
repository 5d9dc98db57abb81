"""Runs that commit fb69e8f wrote: they load, and their models predict as they did."""

import json
import tarfile
from pathlib import Path

import jax
import numpy as np
import pytest

from distattn_jax.data import Table
from distattn_jax.tasks import TASKS, load, read_split
from distattn_jax.tasks.text_task import PredictingTask
from distattn_jax.train.run import config_to_json

STORED = Path(__file__).parent / "stored_runs"
ROWS = 3  # examples whose outputs are stored


def make_batch(task, texts):
    """Return the columns of a few examples: of texts that a user enters, or of the test set."""
    table = read_split(task, "test") if texts is None else Table(task.encode(texts))
    return table.take(np.arange(ROWS), int(table.lengths(task.length_columns)[:ROWS].max()))


def compute_outputs(task, model, batch, texts):
    """Return the logits of the model, or else its first output, and the predictions for texts."""
    outputs = jax.jit(task.apply)(model, batch)
    first = np.asarray(getattr(outputs, "logits", outputs[0]))
    if not isinstance(task, PredictingTask):
        return first, None
    found = task.make_predictions(texts, outputs)
    return first, [prediction.summary for prediction in found]


@pytest.mark.parametrize("name", [task.config_class.task for task in TASKS])
def test_a_stored_run_loads_and_predicts_as_before(name, tmp_path):
    with tarfile.open(STORED / f"{name}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    loaded = load(tmp_path)
    assert loaded.config.task == name
    config = json.loads((tmp_path / "config.json").read_text())
    assert config_to_json(loaded.config).items() >= config.items()

    expected = json.loads((tmp_path / "expected.json").read_text())
    batch = {key: np.asarray(column) for key, column in expected["batch"].items()}
    batch = {key: x.astype("f4" if x.dtype.kind == "f" else "i4") for key, x in batch.items()}
    if expected["texts"] is not None:
        encoded = make_batch(loaded.task, expected["texts"])
        assert encoded.keys() == batch.keys()
        assert all(np.array_equal(encoded[key], batch[key]) for key in batch)
    outputs, predictions = compute_outputs(loaded.task, loaded.model, batch, expected["texts"])
    np.testing.assert_allclose(outputs.ravel(), expected["outputs"], rtol=1e-5, atol=1e-5)
    assert predictions == expected["predictions"]
