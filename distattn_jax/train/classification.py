"""Texts, pairs of texts and documents, each with its class, as tasks."""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from distattn_jax.models import ClassifierOutput, DocumentClassifier, PairClassifier, TextClassifier
from distattn_jax.train.documents import Documents
from distattn_jax.train.losses import cross_entropy
from distattn_jax.train.members import Setting
from distattn_jax.train.task import Batch
from distattn_jax.train.text_task import TextTask


class Classification(TextTask):
    """Which class an example belongs to."""

    criterion: ClassVar[str] = "accuracy"

    def loss(self, outputs: ClassifierOutput, batch: Batch) -> Float[Array, " B"]:
        return cross_entropy(outputs.logits, batch["label"])

    def counts(self, outputs: ClassifierOutput, batch: Batch) -> dict[str, Array]:
        """How often each class (rows) was taken for each (columns)."""
        classes = outputs.logits.shape[-1]
        true = jax.nn.one_hot(batch["label"], classes) * batch["weight"][:, None]
        guessed = jax.nn.one_hot(outputs.logits.argmax(axis=-1), classes)
        return {"confusion": jnp.einsum("bi,bj->ij", true, guessed)}

    def metrics(self, counts: Mapping[str, np.ndarray]) -> dict[str, float]:
        confusion = np.asarray(counts["confusion"], np.float64)
        return {
            "accuracy": float(np.trace(confusion) / confusion.sum()),
            "macro_f": macro_f(confusion),
        }

    def baseline(self, split: str) -> dict[str, float]:
        """The share of the label that is most frequent in the training set."""
        most = np.bincount(self.tables["train"].columns["label"]).argmax()
        return {"accuracy": float(np.mean(self.tables[split].columns["label"] == most))}

    def said(self, outputs: ClassifierOutput) -> list[str]:
        chances = np.asarray(jax.nn.softmax(outputs.logits))
        best = chances.argmax(axis=-1)
        return [f"{self.labels[i]}\t{row[i]:.4f}" for i, row in zip(best, chances, strict=True)]


class TextClassification(Classification):
    """Which class a text belongs to."""

    by = ("text",)
    embedding = ("text", "embedding", "embedding")

    def model(self, setting: Setting, *, rngs: nnx.Rngs) -> TextClassifier:
        return TextClassifier(classes=len(self.labels), rngs=rngs, **self.arguments(setting))

    def outputs(self, model: TextClassifier, batch: Batch, **dropout: Any) -> ClassifierOutput:
        return model(batch["text"], batch["text_length"], received=bool(self.guides), **dropout)


class PairClassification(Classification):
    """Which class a pair of sentences belongs to."""

    fields = ("premise", "hypothesis")
    by = fields
    embedding = ("text", "embedding", "embedding")

    def model(self, setting: Setting, *, rngs: nnx.Rngs) -> PairClassifier:
        return PairClassifier(classes=len(self.labels), rngs=rngs, **self.arguments(setting))

    def outputs(self, model: PairClassifier, batch: Batch, **dropout: Any) -> ClassifierOutput:
        pair = (batch[name] for field in self.fields for name in (field, f"{field}_length"))
        return model(*pair, **dropout)


class DocumentClassification(Documents, Classification):
    """Which class a document belongs to."""

    def model(self, setting: Setting, *, rngs: nnx.Rngs) -> DocumentClassifier:
        return DocumentClassifier(classes=len(self.labels), rngs=rngs, **self.arguments(setting))


def macro_precision(confusion: Float[np.ndarray, "C C"]) -> float:
    """The mean over classes of hits / guessed; 0 for a class never guessed."""
    return _mean_share(np.diag(confusion), confusion.sum(axis=0))


def macro_recall(confusion: Float[np.ndarray, "C C"]) -> float:
    """The mean over classes of hits / true; 0 for a class never seen."""
    return _mean_share(np.diag(confusion), confusion.sum(axis=1))


def macro_f(confusion: Float[np.ndarray, "C C"]) -> float:
    """The mean over classes of 2 hits / (true + guessed); 0 for a class never seen nor guessed."""
    return _mean_share(2 * np.diag(confusion), confusion.sum(axis=0) + confusion.sum(axis=1))


def _mean_share(parts: Float[np.ndarray, " C"], wholes: Float[np.ndarray, " C"]) -> float:
    return float(np.mean(parts / np.where(wholes > 0, wholes, 1)))
