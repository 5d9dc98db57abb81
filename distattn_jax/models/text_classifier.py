"""Texts to classes: a text encoder, and one Dense (Wu et al. 2021: AG, SST)."""

from typing import Any, NamedTuple

from flax import nnx
from jaxtyping import Array, Float, Int

from distattn_jax.models.text_encoder import TextEncoder


class ClassifierOutput(NamedTuple):
    """The logits, and what of the attention was asked for."""

    logits: Float[Array, "B C"]
    received: Float[Array, "B L N S"] | None = None
    weights: Float[Array, "B L N T S"] | None = None


class TextClassifier(nnx.Module):
    """Classifies texts; any of `METHODS` attends.

    Args:
      vocabulary: V; token 0 is padding.
      classes: C.
      rngs: draws the parameters.
      **arguments: `method`, `sizes`, `implementation` and `dtype`, as in `SequenceEncoder`.
    """

    def __init__(self, vocabulary: int, classes: int, *, rngs: nnx.Rngs, **arguments: Any):
        self.text = TextEncoder(vocabulary, rngs=rngs, **arguments)
        self.classes = nnx.Linear(self.text.project.out_features, classes, rngs=rngs)

    def __call__(
        self, tokens: Int[Array, "B T"], lengths: Int[Array, " B"], **arguments: Any
    ) -> ClassifierOutput:
        """The logits, float32.

        Args:
          tokens: ids, padded on the right.
          lengths: how many of a text's tokens are its own.
          **arguments: `dropout_rate`, `rngs`, `received` and `weights`, as in `SequenceEncoder`.
        """
        vector, *extras = self.text(tokens, lengths, **arguments)
        return ClassifierOutput(self.classes(vector), *extras)
