"""Classifier of texts or pairs of texts, based on a pre-trained encoder (Wang et al. 2022).

logits = W ReLU(h_CLS), where h_CLS is the output of the encoder at the first token          eq. 7
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Int

from distattn_jax.models.pretrained import PretrainedConfig, PretrainedEncoder
from distattn_jax.models.pretrained.encoder import normal_init
from distattn_jax.models.text_classifier import ClassifierOutput
from distattn_jax.modules import dropout
from distattn_jax.modules.dropout import Rate, Rngs


class PretrainedClassifier(nnx.Module):
    """Classifier that uses the output of a pre-trained encoder at the first token.

    The pooler of the encoder is not used. Remove it with `dataclasses.replace(config,
    pooler=False)`.

    Args:
      config: Configuration of the encoder.
      classes: Number of classes C.
      rngs: Random number generators. The stream `params` draws the parameters.
      **arguments: `variant`, `implementation`, `precision`, `dtype` and `remat` of
        `PretrainedEncoder`.
    """

    def __init__(self, config: PretrainedConfig, classes: int, *, rngs: nnx.Rngs, **arguments: Any):
        self.encoder = PretrainedEncoder(config, rngs=rngs, **arguments)
        self.classes = nnx.Linear(
            config.features, classes, use_bias=False, kernel_init=normal_init, rngs=rngs
        )

    def __call__(
        self,
        tokens: Int[Array, "B T"],
        lengths: Int[Array, " B"],
        types: Int[Array, "B T"] | None = None,
        *,
        dropout_rate: Rate | None = None,
        rngs: Rngs | None = None,
        received: bool = False,
        weights: bool = False,
    ) -> ClassifierOutput:
        """Return the logits of the classes for each text, in float32.

        Args:
          tokens: Token ids.
          lengths: Number of valid tokens of each text. The rest is padding.
          types: Token types. None means type 0 for all tokens.
          dropout_rate: Replaces every dropout rate of the configuration. May be traced.
          rngs: Random number generators of dropout. None disables dropout.
          received: If True, also return the attention weights of each key, summed over the queries,
            shape (B, L, N, S).
          weights: If True, also return the attention weights, shape (B, L, N, T, S).
        """
        encoded = self.encoder(
            tokens,
            lengths,
            types,
            dropout_rate=dropout_rate,
            rngs=rngs,
            received=received,
            weights=weights,
        )
        rate = self.encoder.config.classifier_dropout_rate if dropout_rate is None else dropout_rate
        first = jax.nn.relu(encoded.values[:, 0].astype(jnp.float32))
        logits = self.classes(dropout(first, rate, rngs))
        return ClassifierOutput(logits, encoded.received, encoded.weights)
