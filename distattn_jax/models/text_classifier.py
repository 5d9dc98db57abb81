"""Text classifier: a text encoder followed by one dense layer (Wu et al. 2021)."""

from typing import Any, NamedTuple

from flax import nnx
from jaxtyping import Array, Float, Int

from distattn_jax.models.text_encoder import TextEncoder


class ClassifierOutput(NamedTuple):
    """Output of a classifier. Fields that were not requested are None.

    Attributes:
      logits: Unnormalized log probability of each class.
      received: Attention that each key receives in each layer and head.
      weights: Attention weights of each layer and head.
    """

    logits: Float[Array, "B C"]
    received: Float[Array, "B L N S"] | None = None
    weights: Float[Array, "B L N T S"] | None = None


class TextClassifier(nnx.Module):
    """Classify texts.

    Args:
      vocabulary: Size V of the vocabulary. Token id 0 is padding.
      classes: Number of classes C.
      rngs: Random number generators. The stream `params` draws the parameters.
      **arguments: `method`, `sizes`, `implementation` and `dtype` of `TextEncoder`.
    """

    def __init__(self, vocabulary: int, classes: int, *, rngs: nnx.Rngs, **arguments: Any):
        self.text = TextEncoder(vocabulary, rngs=rngs, **arguments)
        self.classes = nnx.Linear(self.text.project.out_features, classes, rngs=rngs)

    def __call__(
        self, tokens: Int[Array, "B T"], lengths: Int[Array, " B"], **arguments: Any
    ) -> ClassifierOutput:
        """Return the logits in float32.

        Args:
          tokens: Token ids.
          lengths: Number of valid tokens of each text. The rest is padding.
          **arguments: `dropout_rate`, `rngs`, `received` and `weights` of `TextEncoder.__call__`.
        """
        encoded = self.text(tokens, lengths, **arguments)
        return ClassifierOutput(self.classes(encoded.vector), encoded.received, encoded.weights)
