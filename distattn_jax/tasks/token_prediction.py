"""Base classes of tasks that predict a tag or a token at every position of a text."""

import contextlib
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
import tokenizers
from etils import epath
from jaxtyping import Array, Bool, Float
from tokenizers import Tokenizer

from distattn_jax.data import DataError, TextBuilder, load_tokenizer, train_byte_level_bpe
from distattn_jax.tasks.preparation import iterate_training_texts
from distattn_jax.tasks.text_task import TextTask
from distattn_jax.token_scores import TokenScores, score_logits, score_tokens
from distattn_jax.train import Batch, Setting, option, weighted_sum
from distattn_jax.train.losses import length_mask, masked_mean
from distattn_jax.train.run_files import write_atomically


def norm_option(default: str) -> Any:
    """Return the dataclass field of the option `norm` of a model."""
    return option(
        default,
        "place of the layer norms: after or before attention and feed-forward networks",
        choices=("after", "before"),
    )


def inner_dropout_option() -> Any:
    """Return the dataclass field of the option `inner_dropout` of a model."""
    return option(
        True,
        "whether dropout is also applied to attention weights and to the hidden units of the "
        "feed-forward networks, besides embeddings and residual sums",
    )


class TokenTask(TextTask):
    """Task with one prediction for each token, such as the tag of a word or the next token.

    The loss of an example is the mean over its predictions, with label smoothing. The loss of a
    batch and of a split is the mean over all predictions. Batches never truncate an example, so
    `read_table` must apply the option `longest`.

    Attributes:
      predicted: Name of the column that the model predicts.
    """

    predicted: ClassVar[str]

    @property
    def label_smoothing(self) -> float:
        """Probability that label smoothing moves from the correct class to all classes equally."""
        return 0.0

    def score(self, outputs: Any, batch: Batch) -> TokenScores:
        """Return the scores of all predictions."""
        return score_logits(outputs.logits, batch[self.predicted])

    def loss(self, outputs: Any, batch: Batch) -> Float[Array, " B"]:
        return self.mean_loss(self.score(outputs, batch), batch)

    def mean_loss(self, scores: TokenScores, batch: Batch) -> Float[Array, " B"]:
        """Return the mean loss over the predictions of every example."""
        return masked_mean(scores.loss(self.label_smoothing), length_mask(batch, self.predicted))

    def example_weights(self, batch: Batch) -> Float[Array, " B"]:
        return batch["weight"] * batch[f"{self.predicted}_length"]

    def find_counted(self, batch: Batch) -> Bool[Array, "B T"]:
        """Return a mask that is True for predictions to count in metrics, and False for padding."""
        return length_mask(batch, self.predicted) & (batch["weight"] > 0)[:, None]


class TokenPrediction(TokenTask):
    """Predict each token of a text from the tokens before it.

    Perplexity and accuracy are computed without label smoothing. Neither training nor evaluation
    computes the logits of all tokens at once, unless they are small: see `score_tokens`.
    """

    criterion: ClassVar[str] = "loss"

    def model_arguments(self, setting: Setting) -> dict[str, Any]:
        return {**super().model_arguments(setting), "norm": self.config.model.norm}

    def score(self, outputs: Any, batch: Batch) -> TokenScores:
        return score_tokens(outputs.features, outputs.table, batch[self.predicted])

    def counts(self, outputs: Any, batch: Batch) -> dict[str, Array]:
        scores = self.score(outputs, batch)  # computed once, for the loss and the metrics
        loss = weighted_sum(self.mean_loss(scores, batch), self.example_weights(batch))
        return {"loss": loss, **self.count_scores(scores, batch)}

    def count_scores(self, scores: TokenScores, batch: Batch) -> dict[str, Array]:
        """Return the sums over all predictions from which `metrics` computes the metrics."""
        counted = self.find_counted(batch)
        return {
            "log_loss": jnp.where(counted, scores.cross_entropy, 0).sum(),
            "right": (counted & scores.right).sum().astype(jnp.float32),
            "tokens": counted.sum().astype(jnp.float32),
        }

    def metrics(self, counts: Mapping[str, np.ndarray]) -> dict[str, float]:
        return {
            "perplexity": float(np.exp(counts["log_loss"] / counts["tokens"])),
            "accuracy": float(counts["right"] / counts["tokens"]),
        }

    @classmethod
    def make_tokenizer(cls, config: Any, dataset: TextBuilder) -> Tokenizer:
        """Return a tokenizer of subwords that is trained on the training set."""
        fields = cls.find_fields(config, dataset)
        return load_or_train_tokenizer(dataset, fields, size=config.vocabulary)

    @classmethod
    def find_fields(cls, config: Any, dataset: TextBuilder) -> Sequence[str]:
        """Return the names of the text fields of an example."""
        return cls.fields


def load_or_train_tokenizer(dataset: TextBuilder, fields: Sequence[str], *, size: int) -> Tokenizer:
    """Return a tokenizer of subwords that is trained on the training set of a data set.

    The tokenizer is stored beside the prepared examples, in a folder whose name is a digest of the
    raw files. The name of the file is a hash of all other inputs of the training. If the file is
    missing or damaged, the tokenizer is trained and stored again.

    Args:
      dataset: Builder of the data set.
      fields: Names of the text fields of an example.
      size: Largest number of subwords.
    """
    key = [dataset.name, str(dataset.version), *fields, size, tokenizers.__version__]
    name = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]
    path = epath.Path(dataset.root / dataset.digest / "tokenizers" / f"{name}.json")
    with contextlib.suppress(DataError, OSError):
        return load_tokenizer(path)
    texts = iterate_training_texts(dataset, fields)
    tokenizer = train_byte_level_bpe(texts, size=size, end=True)
    with contextlib.suppress(OSError):  # The folder may be read-only. The file only saves time.
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, tokenizer.to_str(pretty=True))
    return tokenizer
