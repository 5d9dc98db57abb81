"""Parameters of Transformer-XL's attention: the projection of positions, and two biases."""

from typing import Any

import jax.numpy as jnp
from flax import nnx

from distattn_jax import attention
from distattn_jax.modules.initializers import Initializer, bias_init, projection_init


class TransformerXL(nnx.Module):
    """Owns projection and biases; calling it builds `attention.TransformerXL`.

    Args:
      num_heads: N.
      head_features: H, the width of a head.
      features: D (even), the width of the sinusoids; the model's width in the paper.
      shared: one pair of biases for all heads instead of one each.
      projection_init: initial projection, with the signature of `jax.nn.initializers`.
      bias_init: initial biases, likewise.
      param_dtype: dtype of the parameters.
      rngs: draws from the stream `params`.
    """

    def __init__(
        self,
        num_heads: int,
        head_features: int,
        features: int,
        *,
        shared: bool = False,
        projection_init: Initializer = projection_init,
        bias_init: Initializer = bias_init,
        param_dtype: Any = jnp.float32,
        rngs: nnx.Rngs,
    ):
        biases = (1 if shared else num_heads, head_features)
        projection = (num_heads, features, head_features)
        self.projection = nnx.Param(projection_init(rngs.params(), projection, param_dtype))
        self.content_bias = nnx.Param(bias_init(rngs.params(), biases, param_dtype))
        self.position_bias = nnx.Param(bias_init(rngs.params(), biases, param_dtype))

    def __call__(self) -> attention.TransformerXL:
        return attention.TransformerXL(
            self.projection[...], self.content_bias[...], self.position_bias[...]
        )
