"""Documents: words to sentences, sentences to a document (Wu et al. 2021: Amazon)."""

from typing import Any, NamedTuple

from flax import nnx
from jaxtyping import Array, Float, Int

from distattn_jax.models.methods import Sizes
from distattn_jax.models.text_classifier import ClassifierOutput
from distattn_jax.models.text_encoder import SequenceEncoder, TextEncoder


class DocumentEncoder(nnx.Module):
    """A vector for each document: one attention over words, another over sentences.

    Args:
      vocabulary: V; token 0 is padding.
      rngs: draws the parameters.
      **arguments: `method`, `sizes`, `implementation` and `dtype`, as in `SequenceEncoder`.
    """

    def __init__(self, vocabulary: int, *, rngs: nnx.Rngs, **arguments: Any):
        self.words = TextEncoder(vocabulary, rngs=rngs, **arguments)
        self.sentences = SequenceEncoder(rngs=rngs, **arguments)

    def __call__(
        self,
        tokens: Int[Array, "B S T"],
        words: Int[Array, "B S"],
        sentences: Int[Array, " B"],
        **arguments: Any,
    ) -> Float[Array, "B D"]:
        """The vectors, float32.

        Args:
          tokens: ids of T words of S sentences, padded on the right.
          words: how many words of a sentence are its own.
          sentences: how many sentences of a document are its own.
          **arguments: `dropout_rate` and `rngs`, as in `SequenceEncoder`.
        """
        batch, count, length = tokens.shape
        vectors = self.words(tokens.reshape(-1, length), words.reshape(-1), **arguments).vector
        return self.sentences(vectors.reshape(batch, count, -1), sentences, **arguments).vector


class DocumentClassifier(nnx.Module):
    """Classifies documents; any of `METHODS` attends. Arguments as in `TextClassifier`."""

    def __init__(
        self, vocabulary: int, classes: int, *, sizes: Sizes, rngs: nnx.Rngs, **arguments: Any
    ):
        self.document = DocumentEncoder(vocabulary, sizes=sizes, rngs=rngs, **arguments)
        self.classes = nnx.Linear(sizes.features, classes, rngs=rngs)

    def __call__(self, *document: Array, **arguments: Any) -> ClassifierOutput:
        """The logits, float32; arguments as in `DocumentEncoder`."""
        return ClassifierOutput(self.classes(self.document(*document, **arguments)))


class RegressionOutput(NamedTuple):
    """A number for each document."""

    rating: Float[Array, " B"]


class DocumentRegressor(nnx.Module):
    """Rates documents; any of `METHODS` attends. Arguments as in `DocumentEncoder`."""

    def __init__(self, vocabulary: int, *, sizes: Sizes, rngs: nnx.Rngs, **arguments: Any):
        self.document = DocumentEncoder(vocabulary, sizes=sizes, rngs=rngs, **arguments)
        self.rating = nnx.Linear(sizes.features, 1, rngs=rngs)

    def __call__(self, *document: Array, **arguments: Any) -> RegressionOutput:
        """The ratings, float32; arguments as in `DocumentEncoder`."""
        return RegressionOutput(self.rating(self.document(*document, **arguments))[:, 0])
