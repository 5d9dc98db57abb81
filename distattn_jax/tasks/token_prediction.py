"""Loss and metrics of tasks that predict tokens one after the other."""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from distattn_jax.tasks.text_task import TextTask
from distattn_jax.train import Batch, token_cross_entropy


class TokenPrediction(TextTask):
    """Predict each token of a text from the tokens before it.

    The loss of an example is the mean over its predicted tokens, with label smoothing. The loss of
    a batch and of a split is the mean over all predicted tokens. Perplexity and accuracy are
    computed without label smoothing.

    Attributes:
      predicted: Name of the column of the predicted tokens.
    """

    criterion: ClassVar[str] = "loss"
    predicted: ClassVar[str]

    @property
    def label_smoothing(self) -> float:
        """Probability that is moved from the right token to all tokens, in the loss."""
        return 0.0

    def loss(self, outputs: Any, batch: Batch) -> Float[Array, " B"]:
        losses = token_cross_entropy(
            outputs.logits, batch[self.predicted], smoothing=self.label_smoothing
        )
        total = jnp.where(self._mask(batch), losses, 0).sum(axis=-1)
        return total / jnp.maximum(self._lengths(batch), 1)

    def example_weights(self, batch: Batch) -> Float[Array, " B"]:
        return batch["weight"] * self._lengths(batch)

    def counts(self, outputs: Any, batch: Batch) -> dict[str, Array]:
        tokens = batch[self.predicted]
        counted = self._mask(batch) & (batch["weight"] > 0)[:, None]
        right = outputs.logits.argmax(axis=-1) == tokens
        return {
            "log_loss": jnp.where(counted, token_cross_entropy(outputs.logits, tokens), 0).sum(),
            "right": (counted & right).sum().astype(jnp.float32),
            "tokens": counted.sum().astype(jnp.float32),
        }

    def metrics(self, counts: Mapping[str, np.ndarray]) -> dict[str, float]:
        return {
            "perplexity": float(np.exp(counts["log_loss"] / counts["tokens"])),
            "accuracy": float(counts["right"] / counts["tokens"]),
        }

    def _lengths(self, batch: Batch) -> Array:
        return batch[f"{self.predicted}_length"]

    def _mask(self, batch: Batch) -> Bool[Array, "B T"]:
        """Return a mask that is True for predicted tokens and False for padding."""
        positions = jnp.arange(batch[self.predicted].shape[1])
        return positions[None, :] < self._lengths(batch)[:, None]
