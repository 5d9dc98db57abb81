"""Classification: the loss, the metrics and the predictions that all classifiers share."""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from distattn_jax.data import TextBuilder
from distattn_jax.tasks.preparation import read_labels
from distattn_jax.tasks.text_task import PredictingTask
from distattn_jax.train import Batch, Setting, cross_entropy


class Classification(PredictingTask):
    """Assign one class to each example. The model must return an output with `logits` (B, C)."""

    criterion: ClassVar[str] = "accuracy"

    def model_arguments(self, setting: Setting) -> dict[str, Any]:
        return {**super().model_arguments(setting), "classes": len(self.labels)}

    @property
    def max_length(self) -> int | None:
        return self.config.data.longest

    @classmethod
    def list_labels(cls, dataset: TextBuilder) -> tuple[str, ...]:
        return read_labels(dataset)

    def loss(self, outputs: Any, batch: Batch) -> Float[Array, " B"]:
        return cross_entropy(outputs.logits, batch["label"])

    def counts(self, outputs: Any, batch: Batch) -> dict[str, Array]:
        return {"confusion": confusion_matrix(outputs.logits, batch["label"], batch["weight"])}

    def metrics(self, counts: Mapping[str, np.ndarray]) -> dict[str, float]:
        confusion = np.asarray(counts["confusion"], np.float64)
        return {
            "accuracy": float(np.trace(confusion) / confusion.sum()),
            "macro_f": macro_f(confusion),
        }

    def baseline(self, train_table: Any, table: Any) -> dict[str, float]:
        """Return the accuracy of always predicting the most frequent label of the training set."""
        most_frequent = np.bincount(train_table.columns["label"]).argmax()
        return {"accuracy": float(np.mean(table.columns["label"] == most_frequent))}

    def format_predictions(self, outputs: Any) -> list[str]:
        """Return one line for each example: the most probable label, a tab, and its probability."""
        probabilities = np.asarray(jax.nn.softmax(outputs.logits))
        best = probabilities.argmax(axis=-1)
        return [
            f"{self.labels[i]}\t{row[i]:.4f}" for i, row in zip(best, probabilities, strict=True)
        ]


def confusion_matrix(
    logits: Float[Array, "B C"], labels: Array, weight: Float[Array, " B"]
) -> Float[Array, "C C"]:
    """Return the sum of `weight` for each pair of true class (row) and predicted class (column)."""
    classes = logits.shape[-1]
    true = jax.nn.one_hot(labels, classes) * weight[:, None]
    predicted = jax.nn.one_hot(logits.argmax(axis=-1), classes)
    return jnp.einsum("bi,bj->ij", true, predicted)


def macro_precision(confusion: Float[np.ndarray, "C C"]) -> float:
    """Return the mean precision over classes. The precision of a class without predictions is 0.

    Args:
      confusion: Number of examples of each true class (row) and predicted class (column).
    """
    return _mean_ratio(np.diag(confusion), confusion.sum(axis=0))


def macro_recall(confusion: Float[np.ndarray, "C C"]) -> float:
    """Return the mean recall over classes. The recall of a class without examples is 0.

    Args:
      confusion: Number of examples of each true class (row) and predicted class (column).
    """
    return _mean_ratio(np.diag(confusion), confusion.sum(axis=1))


def macro_f(confusion: Float[np.ndarray, "C C"]) -> float:
    """Return the mean F1 score over classes.

    The score of a class with neither examples nor predictions is 0.

    Args:
      confusion: Number of examples of each true class (row) and predicted class (column).
    """
    return _mean_ratio(2 * np.diag(confusion), confusion.sum(axis=0) + confusion.sum(axis=1))


def _mean_ratio(parts: Float[np.ndarray, " C"], totals: Float[np.ndarray, " C"]) -> float:
    return float(np.mean(parts / np.where(totals > 0, totals, 1)))
