"""Tagger: a Transformer encoder over words, and one dense layer for the tag of each word."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from distattn_jax.models.methods import Sizes, get_method
from distattn_jax.modules import Encoder, add_positions
from distattn_jax.modules.dropout import Rate, Rngs, dropout

BYTES = 257  # padding, and every byte plus 1


class TaggerOutput(NamedTuple):
    """Output of a tagger. Fields that were not requested are None.

    Attributes:
      logits: Logits of the tags, for each word.
      lengths: Number of words of each sentence. The rest is padding.
      received: Attention weights of each key, summed over the queries, for each layer and head.
      weights: Attention weights, for each layer and head.
    """

    logits: Float[Array, "B T C"]
    lengths: Int[Array, " B"]
    received: Float[Array, "B L N S"] | None = None
    weights: Float[Array, "B L N T S"] | None = None


class SpellingEncoder(nnx.Module):
    """Encoder of the spelling of each word: convolution of width 3 over its bytes, max pooling.

    Args:
      features: Width of the output.
      dtype: Dtype of the computation. None uses the dtype of the parameters, float32.
      rngs: Random number generators. The stream `params` draws the parameters.
    """

    def __init__(self, features: int, *, dtype: Any = None, rngs: nnx.Rngs):
        self.embedding = nnx.Embed(BYTES, features, dtype=dtype, rngs=rngs)
        self.convolution = nnx.Linear(3 * features, features, dtype=dtype, rngs=rngs)

    def __call__(
        self, spelling: Int[Array, "B T K"], lengths: Int[Array, "B T"]
    ) -> Float[Array, "B T F"]:
        """Return a vector for each word. A word without bytes has a vector of zeros.

        Args:
          spelling: The K bytes of each word. 1 is added to each byte, so that 0 is padding.
          lengths: Number of bytes of each word. The rest is padding.
        """
        valid = jnp.arange(spelling.shape[2])[None, None, :, None] < lengths[..., None, None]
        x = jnp.where(valid, self.embedding(spelling), 0)
        padded = jnp.pad(x, ((0, 0), (0, 0), (1, 1), (0, 0)))
        # A dense layer, unlike a convolution, stays one matrix product for models side by side.
        windows = jnp.concatenate([padded[:, :, :-2], x, padded[:, :, 2:]], axis=-1)
        return jnp.where(valid, jax.nn.relu(self.convolution(windows)), 0).max(axis=2)


class Tagger(nnx.Module):
    """Model that predicts a tag for each word of a sentence, with any attention method.

    A dense layer combines the embedding and the spelling vector of each word. A Transformer encoder
    follows, and then a dense layer that computes the logits of the tags.

    Args:
      vocabulary: Size V of the vocabulary. Token id 0 is padding.
      classes: Number of tags C.
      method: Name of the attention method, a key of `METHODS`.
      sizes: Sizes of the model.
      spelling_features: Width of the spelling vector of a word. 0 ignores the spelling.
      implementation: Implementation of `attention`, such as "xla". None selects the fastest.
      precision: Precision of the matrix products of attention layers, including their dense layers:
        see `attention`. None means the default of JAX.
      dtype: Dtype of the computation. None uses the dtype of the parameters, float32.
      remat: If True, the backward pass recomputes each layer instead of storing its residuals.
      rngs: Random number generators. The stream `params` draws the parameters.
    """

    def __init__(
        self,
        vocabulary: int,
        classes: int,
        *,
        method: str,
        sizes: Sizes,
        spelling_features: int = 0,
        implementation: str | None = None,
        precision: Any = None,
        dtype: Any = None,
        remat: bool = False,
        rngs: nnx.Rngs,
    ):
        selected = get_method(method)
        self.positions = selected.positions
        width = sizes.embedding_features
        self.embedding = nnx.Embed(vocabulary, width, dtype=dtype, rngs=rngs)
        self.spelling = (
            SpellingEncoder(spelling_features, dtype=dtype, rngs=rngs)
            if spelling_features
            else None
        )
        self.project = nnx.Linear(width + spelling_features, sizes.features, dtype=dtype, rngs=rngs)
        self.encoder = Encoder(
            **selected.stack_arguments(sizes),
            implementation=implementation,
            precision=precision,
            dtype=dtype,
            remat=remat,
            rngs=rngs,
        )
        self.classes = nnx.Linear(sizes.features, classes, rngs=rngs)

    def __call__(
        self,
        words: Int[Array, "B T"],
        lengths: Int[Array, " B"],
        spelling: Int[Array, "B T K"] | None = None,
        spelling_lengths: Int[Array, "B T"] | None = None,
        *,
        dropout_rate: Rate = 0.0,
        rngs: Rngs | None = None,
        received: bool = False,
        weights: bool = False,
    ) -> TaggerOutput:
        """Return the logits of the tags for each word, in float32.

        Args:
          words: Token ids, one for each word.
          lengths: Number of words of each sentence. The rest is padding.
          spelling: The K bytes of each word. 1 is added to each byte, so that 0 is padding. Ignored
            if `spelling_features` is 0.
          spelling_lengths: Number of bytes of each word.
          dropout_rate: Dropout rate of the whole model. May be traced.
          rngs: Random number generators of dropout. None disables dropout.
          received: If True, also return the attention weights of each key, summed over the queries,
            shape (B, L, N, S).
          weights: If True, also return the attention weights, shape (B, L, N, T, S).
        """
        x = self.embedding(words)
        if self.spelling is not None:
            if spelling is None or spelling_lengths is None:
                raise ValueError("spelling and spelling_lengths must be given; got None.")
            x = jnp.concatenate([x, self.spelling(spelling, spelling_lengths)], axis=-1)
        x = self.project(dropout(x, dropout_rate, rngs))
        encoded = self.encoder(
            add_positions(x) if self.positions else x,
            lengths=lengths,
            dropout_rate=dropout_rate,
            rngs=rngs,
            received=received,
            weights=weights,
        )
        logits = self.classes(dropout(encoded.values, dropout_rate, rngs).astype(jnp.float32))
        return TaggerOutput(logits, lengths, encoded.received, encoded.weights)
