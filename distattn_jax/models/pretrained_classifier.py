"""Texts or pairs to classes, on a pre-trained encoder ("Paying More Attention to Self-attention").

logits = W ReLU(h_CLS)                                                                      eq. 7
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Int

from distattn_jax.models.pretrained import PretrainedConfig, PretrainedEncoder
from distattn_jax.models.pretrained.encoder import initial
from distattn_jax.models.text_classifier import ClassifierOutput
from distattn_jax.modules import dropout
from distattn_jax.modules.dropout import Rate, Rngs


class PretrainedClassifier(nnx.Module):
    """Classifies what stands in `tokens`, by the last layer's values of the first of them.

    Args:
      config: of the encoder. Its pooler is not used: `dataclasses.replace(config, pooler=False)`
        leaves it out.
      classes: C.
      rngs: draws the parameters.
      **arguments: `variant`, `implementation`, `dtype` and `remat`, as in `PretrainedEncoder`.
    """

    def __init__(self, config: PretrainedConfig, classes: int, *, rngs: nnx.Rngs, **arguments: Any):
        self.encoder = PretrainedEncoder(config, rngs=rngs, **arguments)
        self.classes = nnx.Linear(
            config.features, classes, use_bias=False, kernel_init=initial, rngs=rngs
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
        """The logits, float32; arguments as in `PretrainedEncoder`."""
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
