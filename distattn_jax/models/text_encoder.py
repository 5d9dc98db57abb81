"""Encoders of texts and of sequences of vectors, with any attention method."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from distattn_jax.models.methods import Sizes, get_method
from distattn_jax.modules import AdditivePooling, Encoder, add_positions
from distattn_jax.modules.dropout import Rate, Rngs, dropout


class PooledOutput(NamedTuple):
    """Output of an encoder with pooling. Fields that were not requested are None.

    Attributes:
      vector: Pooled vector of each sequence.
      received: Attention weights of each key, summed over the queries, for each layer and head.
      weights: Attention weights, for each layer and head.
    """

    vector: Float[Array, "B D"]
    received: Float[Array, "B L N S"] | None = None
    weights: Float[Array, "B L N T S"] | None = None


class SequenceEncoder(nnx.Module):
    """Encode a sequence of vectors as one vector, by a Transformer encoder and additive pooling.

    Args:
      method: Name of the attention method, a key of `METHODS`.
      sizes: Sizes of the model.
      implementation: Implementation of `attention`, such as "xla". None selects the fastest.
      precision: Precision of the matrix products of attention layers, including their dense layers:
        see `attention`. None means the default of JAX.
      dtype: Dtype of the computation. None uses the dtype of inputs and parameters.
      remat: If True, the backward pass recomputes each layer instead of storing its residuals.
      rngs: Random number generators. The stream `params` draws the parameters.
    """

    def __init__(
        self,
        *,
        method: str,
        sizes: Sizes,
        implementation: str | None = None,
        precision: Any = None,
        dtype: Any = None,
        remat: bool = False,
        rngs: nnx.Rngs,
    ):
        selected = get_method(method)
        self.positions = selected.positions
        self.encoder = Encoder(
            **selected.stack_arguments(sizes),
            implementation=implementation,
            precision=precision,
            dtype=dtype,
            remat=remat,
            rngs=rngs,
        )
        self.pooling = AdditivePooling(
            sizes.features, sizes.pooling_features, dtype=dtype, rngs=rngs
        )

    def __call__(
        self,
        x: Float[Array, "B T D"],
        lengths: Int[Array, " B"],
        *,
        dropout_rate: Rate = 0.0,
        rngs: Rngs | None = None,
        received: bool = False,
        weights: bool = False,
    ) -> PooledOutput:
        """Return one vector for each sequence, in float32. It is 0 for a sequence of length 0.

        Args:
          x: Vectors, shape (B, T, D).
          lengths: Number of valid vectors of each sequence. The rest is padding.
          dropout_rate: Dropout rate of the encoder and of the pooled vectors. May be traced.
          rngs: Random number generators of dropout. None disables dropout.
          received: If True, also return the attention weights of each key, summed over the queries,
            shape (B, L, N, S).
          weights: If True, also return the attention weights, shape (B, L, N, T, S).
        """
        encoded = self.encoder(
            add_positions(x) if self.positions else x,
            lengths=lengths,
            dropout_rate=dropout_rate,
            rngs=rngs,
            received=received,
            weights=weights,
        )
        vector = dropout(self.pooling(encoded.values, lengths=lengths), dropout_rate, rngs)
        return PooledOutput(vector.astype(jnp.float32), encoded.received, encoded.weights)


class TextEncoder(nnx.Module):
    """Encode a text as one vector (Wu et al. 2021).

    The model consists of token embeddings, a dense layer and a `SequenceEncoder`.

    Args:
      vocabulary: Size V of the vocabulary. Token id 0 is padding.
      sizes: Sizes of the model.
      dtype: Dtype of the computation. None uses the dtype of the parameters, float32.
      rngs: Random number generators. The stream `params` draws the parameters.
      **arguments: `method`, `implementation`, `precision` and `remat` of `SequenceEncoder`.
    """

    def __init__(
        self, vocabulary: int, *, sizes: Sizes, dtype: Any = None, rngs: nnx.Rngs, **arguments: Any
    ):
        width = sizes.embedding_features
        self.embedding = nnx.Embed(vocabulary, width, dtype=dtype, rngs=rngs)
        self.project = nnx.Linear(width, sizes.features, dtype=dtype, rngs=rngs)
        self.sequence = SequenceEncoder(sizes=sizes, dtype=dtype, rngs=rngs, **arguments)

    def __call__(
        self,
        tokens: Int[Array, "B T"],
        lengths: Int[Array, " B"],
        *,
        dropout_rate: Rate = 0.0,
        rngs: Rngs | None = None,
        received: bool = False,
        weights: bool = False,
    ) -> PooledOutput:
        """Return one vector for each text, in float32. It is 0 for a text of length 0.

        Args:
          tokens: Token ids.
          lengths: Number of valid tokens of each text. The rest is padding.
          dropout_rate: Dropout rate of embeddings, encoder and pooled vectors. May be traced.
          rngs: Random number generators of dropout. None disables dropout.
          received: If True, also return the attention weights of each key, summed over the queries,
            shape (B, L, N, S).
          weights: If True, also return the attention weights, shape (B, L, N, T, S).
        """
        x = self.project(dropout(self.embedding(tokens), dropout_rate, rngs))
        return self.sequence(
            x, lengths, dropout_rate=dropout_rate, rngs=rngs, received=received, weights=weights
        )
