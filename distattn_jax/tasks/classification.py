"""Classification: the loss, the metrics and the predictions that all classifiers share."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from distattn_jax.data import TextBuilder
from distattn_jax.tasks.preparation import read_labels
from distattn_jax.tasks.text_task import PredictingTask, Prediction
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

    def make_predictions(self, rows: Sequence[Mapping[str, Any]], outputs: Any) -> list[Prediction]:
        """Return the labels with their probabilities, the most probable label first.

        The columns are the most probable label, its probability, the other labels with their
        probabilities, and the text.
        """
        predictions = []
        for row, one in zip(rows, np.asarray(jax.nn.softmax(outputs.logits)), strict=False):
            first, *others = [(self.labels[i], one[i]) for i in np.argsort(-one, kind="stable")]
            label, summary = first[0], f"{first[0]}\t{first[1]:.4f}"
            rest = ", ".join(f"{name} {probability:.4f}" for name, probability in others)
            probabilities = {name: float(probability) for name, probability in (first, *others)}
            predictions.append(
                Prediction(
                    {**row, "label": label, "probabilities": probabilities},
                    summary,
                    self.join_columns(row, summary, rest),
                )
            )
        return predictions


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
