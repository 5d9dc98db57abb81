"""Pairs of sentences to classes (Wu et al. 2021: SNLI).

Both sentences go through one encoder, a and b, which the classes are read from:

    max(0, [a, b, |a - b|, a b] W₁ + b₁) W₂ + b₂

The paper does not say how it puts a pair together. One sequence of both would need something that
tells the first from the second, and the sixth row of every comparison knows no positions at all.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Int

from distattn_jax.models.text_classifier import ClassifierOutput
from distattn_jax.models.text_encoder import TextEncoder
from distattn_jax.modules import dropout
from distattn_jax.modules.dropout import Rate, Rngs


class PairClassifier(nnx.Module):
    """Classifies pairs; any of `METHODS` attends.

    Args:
      vocabulary: V; token 0 is padding.
      classes: C.
      rngs: draws the parameters.
      **arguments: `method`, `sizes`, `implementation` and `dtype`, as in `SequenceEncoder`.
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
        """The logits, float32.

        Args:
          first, second: ids of the sentences, padded on the right to one length.
          first_lengths, second_lengths: how many of their tokens are their own.
          dropout_rate: of the encoder, and before the classes; may be traced.
          rngs: generator of the dropout; None: no dropout.
        """
        both = self.text(
            jnp.concatenate([first, second]),
            jnp.concatenate([first_lengths, second_lengths]),
            dropout_rate=dropout_rate,
            rngs=rngs,
        )
        a, b = jnp.split(both.vector, 2)
        compared = jnp.concatenate([a, b, jnp.abs(a - b), a * b], axis=-1)
        hidden = jax.nn.relu(self.hidden(compared))
        return ClassifierOutput(self.classes(dropout(hidden, dropout_rate, rngs)))
