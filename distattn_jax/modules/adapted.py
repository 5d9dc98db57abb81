"""Parameters of the adapted (TENER) attention: two biases."""

from typing import Any

import jax.numpy as jnp
from flax import nnx

from distattn_jax import attention
from distattn_jax.modules.initializers import Initializer, bias_init


class Adapted(nnx.Module):
    """Owns the biases; calling it builds `attention.Adapted`.

    The paper projects neither keys nor outputs: `MultiHeadAttention(..., project_key=False,
    project_out=False)`.

    Args:
      num_heads: N.
      head_features: H (even), the width of a head.
      shared: one pair of biases for all heads instead of one each.
      bias_init: initial biases, with the signature of `jax.nn.initializers`.
      param_dtype: dtype of the parameters.
      rngs: draws from the stream `params`.
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
        return attention.Adapted(self.content_bias[...], self.position_bias[...])
