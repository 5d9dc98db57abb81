"""Sequences to vectors: the part that all models share, and into which any attention is put."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from distattn_jax.models.methods import Sizes, method_of
from distattn_jax.modules import AdditivePooling, Encoder, add_positions, dropout
from distattn_jax.modules.dropout import Rate, Rngs


class PooledOutput(NamedTuple):
    """A vector for each sequence, and what of the attention was asked for."""

    vector: Float[Array, "B D"]
    received: Float[Array, "B L N S"] | None = None
    weights: Float[Array, "B L N T S"] | None = None


class SequenceEncoder(nnx.Module):
    """Vectors to one vector: encoder and additive pooling.

    Args:
      method: name of the attention, of `METHODS`; the vanilla one adds sinusoids.
      sizes: of encoder, variant and pooling.
      implementation: as in `attention`.
      dtype: dtype of the computation (None: that of the parameters, float32).
      rngs: draws the parameters.
    """

    def __init__(
        self,
        *,
        method: str,
        sizes: Sizes,
        implementation: str | None = None,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        chosen = method_of(method)
        self.positions = chosen.positions
        self.encoder = Encoder(
            sizes.layers,
            sizes.features,
            sizes.heads,
            head_features=sizes.head_features,
            hidden_features=sizes.hidden_features,
            variant=chosen.of(sizes),
            implementation=implementation,
            dtype=dtype,
            rngs=rngs,
            **chosen.layer_arguments,
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
        """The pooled vectors, float32; 0 for a sequence of length 0.

        Args:
          x: the vectors, padded on the right.
          lengths: how many of them are a sequence's own.
          dropout_rate: of encoder and pooled vector; may be traced.
          rngs: generator of the dropout; None: no dropout.
          received, weights: also return these of every layer, as `Encoder` does.
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
    """Tokens to one vector: embedding, one Dense, `SequenceEncoder` (Wu et al. 2021).

    Args:
      vocabulary: V; token 0 is padding.
      method, sizes, implementation, dtype, rngs: as in `SequenceEncoder`.
    """

    def __init__(
        self,
        vocabulary: int,
        *,
        method: str,
        sizes: Sizes,
        implementation: str | None = None,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        width = sizes.embedding_features
        self.embedding = nnx.Embed(vocabulary, width, dtype=dtype, rngs=rngs)
        self.project = nnx.Linear(width, sizes.features, dtype=dtype, rngs=rngs)
        self.sequence = SequenceEncoder(
            method=method, sizes=sizes, implementation=implementation, dtype=dtype, rngs=rngs
        )

    def __call__(
        self,
        tokens: Int[Array, "B T"],
        lengths: Int[Array, " B"],
        *,
        dropout_rate: Rate = 0.0,
        rngs: Rngs | None = None,
        **extras: bool,
    ) -> PooledOutput:
        """As `SequenceEncoder`, with dropout of the embeddings too."""
        x = self.project(dropout(self.embedding(tokens), dropout_rate, rngs))
        return self.sequence(x, lengths, dropout_rate=dropout_rate, rngs=rngs, **extras)
