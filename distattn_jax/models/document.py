"""Document encoder, classifier and regressor (Wu et al. 2021).

One encoder turns the words of each sentence into a sentence vector. A second encoder turns the
sentence vectors into a document vector.
"""

from typing import Any, NamedTuple

from flax import nnx
from jaxtyping import Array, Float, Int

from distattn_jax.models.methods import Sizes
from distattn_jax.models.text_classifier import ClassifierOutput
from distattn_jax.models.text_encoder import SequenceEncoder, TextEncoder
from distattn_jax.modules.dropout import Rate, Rngs


class DocumentEncoder(nnx.Module):
    """Encode a document as one vector, with an encoder over words and an encoder over sentences.

    Args:
      vocabulary: Size V of the vocabulary. Token id 0 is padding.
      rngs: Random number generators. The stream `params` draws the parameters.
      **arguments: `method`, `sizes`, `implementation`, `precision`, `dtype` and `remat` of
        `TextEncoder`.
    """

    def __init__(self, vocabulary: int, *, rngs: nnx.Rngs, **arguments: Any):
        self.words = TextEncoder(vocabulary, rngs=rngs, **arguments)
        self.sentences = SequenceEncoder(rngs=rngs, **arguments)

    def __call__(
        self,
        tokens: Int[Array, "B S T"],
        words: Int[Array, "B S"],
        sentences: Int[Array, " B"],
        *,
        dropout_rate: Rate = 0.0,
        rngs: Rngs | None = None,
    ) -> Float[Array, "B D"]:
        """Return one vector for each document, in float32.

        Args:
          tokens: Token ids of the S sentences of each document, with T words each.
          words: Number of valid words of each sentence. The rest is padding.
          sentences: Number of valid sentences of each document. The rest is padding.
          dropout_rate: Dropout rate of the whole model. May be traced.
          rngs: Random number generators of dropout. None disables dropout.
        """
        batch, count, length = tokens.shape
        vectors = self.words(
            tokens.reshape(-1, length), words.reshape(-1), dropout_rate=dropout_rate, rngs=rngs
        ).vector
        return self.sentences(
            vectors.reshape(batch, count, -1), sentences, dropout_rate=dropout_rate, rngs=rngs
        ).vector


class DocumentClassifier(nnx.Module):
    """Classifier of documents: a `DocumentEncoder` and a dense layer.

    Args:
      vocabulary: Size V of the vocabulary. Token id 0 is padding.
      classes: Number of classes C.
      sizes: Sizes of the model.
      rngs: Random number generators. The stream `params` draws the parameters.
      **arguments: `method`, `implementation`, `precision`, `dtype` and `remat` of `TextEncoder`.
    """

    def __init__(
        self, vocabulary: int, classes: int, *, sizes: Sizes, rngs: nnx.Rngs, **arguments: Any
    ):
        self.document = DocumentEncoder(vocabulary, sizes=sizes, rngs=rngs, **arguments)
        self.classes = nnx.Linear(sizes.features, classes, rngs=rngs)

    def __call__(
        self, *document: Array, dropout_rate: Rate = 0.0, rngs: Rngs | None = None
    ) -> ClassifierOutput:
        """Return the logits of the classes for each document, in float32.

        Args:
          *document: Arguments `tokens`, `words` and `sentences` of `DocumentEncoder.__call__`.
          dropout_rate: Dropout rate of the whole model. May be traced.
          rngs: Random number generators of dropout. None disables dropout.
        """
        return ClassifierOutput(
            self.classes(self.document(*document, dropout_rate=dropout_rate, rngs=rngs))
        )


class RegressionOutput(NamedTuple):
    """Output of a regression model.

    Attributes:
      rating: Predicted number for each document.
    """

    rating: Float[Array, " B"]


class DocumentRegressor(nnx.Module):
    """Model that predicts a number for each document, such as the rating of a review.

    Args:
      vocabulary: Size V of the vocabulary. Token id 0 is padding.
      sizes: Sizes of the model.
      rngs: Random number generators. The stream `params` draws the parameters.
      **arguments: `method`, `implementation`, `precision`, `dtype` and `remat` of `TextEncoder`.
    """

    def __init__(self, vocabulary: int, *, sizes: Sizes, rngs: nnx.Rngs, **arguments: Any):
        self.document = DocumentEncoder(vocabulary, sizes=sizes, rngs=rngs, **arguments)
        self.rating = nnx.Linear(sizes.features, 1, rngs=rngs)

    def __call__(
        self, *document: Array, dropout_rate: Rate = 0.0, rngs: Rngs | None = None
    ) -> RegressionOutput:
        """Return the predicted number for each document, in float32.

        Args:
          *document: Arguments `tokens`, `words` and `sentences` of `DocumentEncoder.__call__`.
          dropout_rate: Dropout rate of the whole model. May be traced.
          rngs: Random number generators of dropout. None disables dropout.
        """
        return RegressionOutput(
            self.rating(self.document(*document, dropout_rate=dropout_rate, rngs=rngs))[:, 0]
        )
