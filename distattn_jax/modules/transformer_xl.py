"""Module with the parameters of Transformer-XL attention: a projection and two bias vectors."""

from typing import Any

import jax.numpy as jnp
from flax import nnx

from distattn_jax import attention
from distattn_jax.modules.initializers import Initializer, bias_init, projection_init


class TransformerXL(nnx.Module):
    """Parameters of Transformer-XL attention. Calling the module returns `attention.TransformerXL`.

    Args:
      num_heads: Number of attention heads N.
      head_features: Width H of each head.
      features: Width D of the sinusoidal position encodings. Must be even. The paper uses the width
        of the model.
      shared: If True, all heads share one pair of biases. If False, each head has its own pair.
      projection_init: Initializer of the matrices that project position encodings to the width of a
        head, shape (N, D, H).
      bias_init: Initializer of the content bias and of the position bias.
      param_dtype: Dtype of the parameters.
      rngs: Random number generators. The stream `params` draws the parameters.
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
        """Return the attention variant with the current parameters."""
        return attention.TransformerXL(
            self.projection[...], self.content_bias[...], self.position_bias[...]
        )
