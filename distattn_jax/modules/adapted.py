"""Parameters of the adapted Transformer's attention (TENER): two biases."""

from typing import Any

import jax.numpy as jnp
from flax import nnx

from distattn_jax import attention
from distattn_jax.modules.initializers import Initializer, bias_init


class Adapted(nnx.Module):
    """Biases of adapted attention (TENER). Calling the module returns `attention.Adapted`.

    The paper projects neither keys nor outputs. To follow the paper, use `MultiHeadAttention(...,
    project_key=False, project_out=False)`.

    Args:
      num_heads: Number of attention heads N.
      head_features: Width H of each head. Must be even.
      shared: Share one pair of biases between all heads. Otherwise each head has its own pair.
      bias_init: Initializer of both biases.
      param_dtype: Dtype of the parameters.
      rngs: Random number generators. The stream `params` draws the parameters.
    """

    def __init__(
        self,
        num_heads: int,
        head_features: int,
        *,
        shared: bool = False,
        bias_init: Initializer = bias_init,
        param_dtype: Any = jnp.float32,
        rngs: nnx.Rngs,
    ):
        shape = (1 if shared else num_heads, head_features)
        self.content_bias = nnx.Param(bias_init(rngs.params(), shape, param_dtype))
        self.position_bias = nnx.Param(bias_init(rngs.params(), shape, param_dtype))

    def __call__(self) -> attention.Adapted:
        """Return the attention variant with the current biases."""
        return attention.Adapted(self.content_bias[...], self.position_bias[...])
