"""Texts and their classes, as a task."""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float
from tokenizers import Tokenizer

from distattn_jax.data import Table
from distattn_jax.models import Classified, Sizes, TextClassifier
from distattn_jax.train.config import ModelConfig
from distattn_jax.train.losses import cross_entropy
from distattn_jax.train.members import Setting
from distattn_jax.train.task import Batch, Task


class TextClassification(Task):
    """Which class a text belongs to.

    Args:
      method: name of the attention.
      config: sizes of the model.
      labels: names of the classes.
      tokenizer: gives the size of the vocabulary.
      tables: `text` and `label` of the examples of each split; none to predict.
      vectors: initial embeddings (V, E), or None.
    """

    by: ClassVar[str] = "text"
    criterion: ClassVar[str] = "accuracy"

    def __init__(
        self,
        method: str,
        config: ModelConfig,
        *,
        labels: tuple[str, ...],
        tokenizer: Tokenizer,
        tables: Mapping[str, Table],
        vectors: Float[np.ndarray, "V E"] | None = None,
    ):
        self.method, self.config, self.vectors = method, config, vectors
        self.labels, self.tokenizer, self.tables = labels, tokenizer, tables

    def model(self, setting: Setting, *, rngs: nnx.Rngs) -> TextClassifier:
        config = self.config
        sizes = Sizes(
            config.heads,
            config.head_features,
            config.features,
            max_distance=config.max_distance,
            initial_weight=setting.initial_weight,
            initial_shape=setting.initial_shape,
        )
        return TextClassifier(
            self.tokenizer.get_vocab_size(),
            len(self.labels),
            method=self.method,
            sizes=sizes,
            layers=config.layers,
            embedding_features=config.embedding_features,
            hidden_features=config.hidden_features,
            pooling_features=config.pooling_features,
            implementation=config.implementation or None,
            dtype=jnp.dtype(config.dtype),
            rngs=rngs,
        )

    def initial(self) -> Mapping[tuple[str, ...], np.ndarray]:
        return {} if self.vectors is None else {("embedding", "embedding"): self.vectors}

    def outputs(
        self,
        model: TextClassifier,
        batch: Batch,
        *,
        dropout_rate: Any = 0.0,
        rngs: nnx.Rngs | None = None,
    ) -> Classified:
        return model(
            batch["text"],
            batch["text_length"],
            dropout_rate=dropout_rate,
            rngs=rngs,
            received=bool(self.guides),
        )

    def loss(self, outputs: Classified, batch: Batch) -> Float[Array, " B"]:
        return cross_entropy(outputs.logits, batch["label"])

    def counts(self, outputs: Classified, batch: Batch) -> dict[str, Array]:
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
        most = np.bincount(self._labels_of("train")).argmax()
        return {"accuracy": float(np.mean(self._labels_of(split) == most))}

    def _labels_of(self, split: str) -> np.ndarray:
        labels = self.tables[split].columns["label"]
        assert isinstance(labels, np.ndarray)
        return labels


def macro_f(confusion: Float[np.ndarray, "C C"]) -> float:
    """The mean over classes of 2 hits / (true + guessed); 0 for a class never seen nor guessed."""
    seen = confusion.sum(axis=0) + confusion.sum(axis=1)
    return float(np.mean(2 * np.diag(confusion) / np.where(seen > 0, seen, 1)))
