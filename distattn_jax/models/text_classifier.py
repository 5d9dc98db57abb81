"""Classifiers of texts and of sentence pairs (Wu et al. 2021).

A text classifier is a text encoder followed by one dense layer. A classifier of pairs, e.g. for the
data set SNLI, converts the first sentence to a vector a and the second to a vector b with the same
encoder. The logits are

    max(0, [a, b, |a - b|, a ⊙ b] W₁ + c₁) W₂ + c₂

with trained matrices W and biases c, where ⊙ is the elementwise product. The paper does not say how
it combines two sentences. Here they are encoded separately: if they were concatenated, the
method `no_positions` could not distinguish the first sentence from the second.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from distattn_jax.models.text_encoder import TextEncoder
from distattn_jax.modules.dropout import Rate, Rngs, dropout


class ClassifierOutput(NamedTuple):
    """Output of a classifier. Fields that were not requested are None.

    Attributes:
      logits: Logits of the classes.
      received: Attention weights of each key, summed over the queries, for each layer and head.
      weights: Attention weights, for each layer and head.
    """

    logits: Float[Array, "B C"]
    received: Float[Array, "B L N S"] | None = None
    weights: Float[Array, "B L N T S"] | None = None


class TextClassifier(nnx.Module):
    """Classifier of texts: a `TextEncoder` and a dense layer.

    Args:
      vocabulary: Size V of the vocabulary. Token id 0 is padding.
      classes: Number of classes C.
      rngs: Random number generators. The stream `params` draws the parameters.
      **arguments: `method`, `sizes`, `implementation`, `precision`, `dtype` and `remat` of
        `TextEncoder`.
    """

    def __init__(self, vocabulary: int, classes: int, *, rngs: nnx.Rngs, **arguments: Any):
        self.text = TextEncoder(vocabulary, rngs=rngs, **arguments)
        self.classes = nnx.Linear(self.text.project.out_features, classes, rngs=rngs)

    def __call__(
        self,
        tokens: Int[Array, "B T"],
        lengths: Int[Array, " B"],
        *,
        dropout_rate: Rate = 0.0,
        rngs: Rngs | None = None,
        received: bool = False,
        weights: bool = False,
    ) -> ClassifierOutput:
        """Return the logits of the classes for each text, in float32.

        Args:
          tokens: Token ids.
          lengths: Number of valid tokens of each text. The rest is padding.
          dropout_rate: Dropout rate of the whole model. May be traced.
          rngs: Random number generators of dropout. None disables dropout.
          received: If True, also return the attention weights of each key, summed over the queries,
            shape (B, L, N, S).
          weights: If True, also return the attention weights, shape (B, L, N, T, S).
        """
        encoded = self.text(
            tokens,
            lengths,
            dropout_rate=dropout_rate,
            rngs=rngs,
            received=received,
            weights=weights,
        )
        return ClassifierOutput(self.classes(encoded.vector), encoded.received, encoded.weights)


class PairClassifier(nnx.Module):
    """Classifier of pairs of sentences. A `TextEncoder` encodes both sentences separately.

    Args:
      vocabulary: Size V of the vocabulary. Token id 0 is padding.
      classes: Number of classes C.
      rngs: Random number generators. The stream `params` draws the parameters.
      **arguments: `method`, `sizes`, `implementation`, `precision`, `dtype` and `remat` of
        `TextEncoder`.
    """

    def __init__(self, vocabulary: int, classes: int, *, rngs: nnx.Rngs, **arguments: Any):
        self.text = TextEncoder(vocabulary, rngs=rngs, **arguments)
        features = self.text.project.out_features
        self.hidden = nnx.Linear(4 * features, features, rngs=rngs)
        self.classes = nnx.Linear(features, classes, rngs=rngs)

    def __call__(
        self,
        first: Int[Array, "B T"],
        first_lengths: Int[Array, " B"],
        second: Int[Array, "B T"],
        second_lengths: Int[Array, " B"],
        *,
        dropout_rate: Rate = 0.0,
        rngs: Rngs | None = None,
    ) -> ClassifierOutput:
        """Return the logits of the classes for each pair, in float32.

        Args:
          first: Token ids of the first sentences.
          first_lengths: Number of valid tokens of each first sentence. The rest is padding.
          second: Token ids of the second sentences.
          second_lengths: Number of valid tokens of each second sentence. The rest is padding.
          dropout_rate: Dropout rate of the whole model. May be traced.
          rngs: Random number generators of dropout. None disables dropout.
        """
        encoded = self.text(
            jnp.concatenate([first, second]),
            jnp.concatenate([first_lengths, second_lengths]),
            dropout_rate=dropout_rate,
            rngs=rngs,
        )
        a, b = jnp.split(encoded.vector, 2)
        combined = jnp.concatenate([a, b, jnp.abs(a - b), a * b], axis=-1)
        hidden = jax.nn.relu(self.hidden(combined))
        return ClassifierOutput(self.classes(dropout(hidden, dropout_rate, rngs)))
