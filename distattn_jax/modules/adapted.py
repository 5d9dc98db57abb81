"""Module with the parameters of adapted attention (TENER): two bias vectors."""

from typing import Any

import jax.numpy as jnp
from flax import nnx

from distattn_jax import attention
from distattn_jax.modules.initializers import Initializer, bias_init


class Adapted(nnx.Module):
    """Parameters of adapted attention (TENER). Calling the module returns `attention.Adapted`.

    The parameters are two vectors, `content_bias` and `position_bias`. The paper applies a dense
    layer neither to the keys nor to the output. To follow the paper, pass project_key=False and
    project_out=False to `MultiHeadAttention`.

    Args:
      num_heads: Number of attention heads N.
      head_features: Width H of each head. Must be even.
      shared: If True, all heads share one pair of biases. If False, each head has its own pair.
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
        """Return the attention variant with the current parameters."""
        return attention.Adapted(self.content_bias[...], self.position_bias[...])
