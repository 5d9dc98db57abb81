"""Texts to classes: embedding, one Dense, encoder, additive pooling, classes (Wu et al. 2021)."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from distattn_jax.models.methods import METHODS, Sizes
from distattn_jax.modules import AdditivePooling, Encoder, add_positions, dropout
from distattn_jax.modules.dropout import Rate, Rngs


class Classified(NamedTuple):
    """The logits, and what of the attention was asked for."""

    logits: Float[Array, "B C"]
    received: Float[Array, "B L N S"] | None = None
    weights: Float[Array, "B L N T S"] | None = None


class TextClassifier(nnx.Module):
    """Classifies texts; any of `METHODS` attends.

    Args:
      vocabulary: V; token 0 is padding.
      classes: C.
      method: name of the attention, of `METHODS`.
      sizes: of the encoder and its variant.
      layers: L.
      embedding_features: width of the embeddings.
      hidden_features: width inside the feed-forward networks (default: 4 D).
      pooling_features: width of the pooling's tanh layer.
      implementation: as in `attention`.
      dtype: dtype of the computation (None: that of the parameters, float32).
      rngs: draws the parameters.
    """

    def __init__(
        self,
        vocabulary: int,
        classes: int,
        *,
        method: str,
        sizes: Sizes,
        layers: int = 1,
        embedding_features: int = 300,
        hidden_features: int | None = None,
        pooling_features: int = 200,
        implementation: str | None = None,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        if method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}; got {method!r}.")
        chosen, features = METHODS[method], sizes.features
        self.positions, self.dtype = chosen.positions, dtype
        self.embedding = nnx.Embed(vocabulary, embedding_features, dtype=dtype, rngs=rngs)
        self.project = nnx.Linear(embedding_features, features, dtype=dtype, rngs=rngs)
        self.encoder = Encoder(
            layers,
            features,
            sizes.heads,
            head_features=sizes.head_features,
            hidden_features=hidden_features,
            variant=chosen.of(sizes),
            implementation=implementation,
            dtype=dtype,
            rngs=rngs,
            **chosen.block,
        )
        self.pooling = AdditivePooling(features, pooling_features, dtype=dtype, rngs=rngs)
        self.classes = nnx.Linear(features, classes, rngs=rngs)

    def __call__(
        self,
        tokens: Int[Array, "B T"],
        lengths: Int[Array, " B"],
        *,
        dropout_rate: Rate = 0.0,
        rngs: Rngs | None = None,
        received: bool = False,
        weights: bool = False,
    ) -> Classified:
        """The logits, float32.

        Args:
          tokens: ids, padded on the right.
          lengths: how many of a text's tokens are its own.
          dropout_rate: of embeddings, encoder and pooled vector; may be traced.
          rngs: generator of the dropout; None: no dropout.
          received, weights: also return these of every layer, as `Encoder` does.
        """
        x = self.project(dropout(self.embedding(tokens), dropout_rate, rngs))
        encoded = self.encoder(
            add_positions(x) if self.positions else x,
            lengths=lengths,
            dropout_rate=dropout_rate,
            rngs=rngs,
            received=received,
            weights=weights,
        )
        if not (received or weights):
            return Classified(self._classify(encoded, lengths, dropout_rate, rngs))
        logits = self._classify(encoded.values, lengths, dropout_rate, rngs)
        return Classified(logits, encoded.received, encoded.weights)

    def _classify(self, x: Array, lengths: Array, rate: Rate, rngs: Rngs | None) -> Array:
        pooled = dropout(self.pooling(x, lengths=lengths), rate, rngs)
        return self.classes(pooled.astype(jnp.float32))
