"""Position-wise feed-forward network of a Transformer layer.

FFN(x) = activation(x W₁ + b₁) W₂ + b₂                        DA-Transformer eq. 4, with ReLU
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from distattn_jax.modules.dropout import Rate, Rngs, dropout
from distattn_jax.modules.initializers import Initializer


class FeedForward(nnx.Module):
    """Two dense layers with an activation in between, applied to each position.

    Args:
      features: Width D of inputs and outputs.
      hidden_features: Width between the two dense layers.
      activation: Function applied to the hidden units.
      kernel_init: Initializer of both kernels.
      dtype: Dtype of the computation. None uses the promoted dtype of inputs and parameters.
      param_dtype: Dtype of the parameters.
      rngs: Random number generators. The stream `params` draws the parameters.
    """

    def __init__(
        self,
        features: int,
        hidden_features: int,
        *,
        activation: Callable[[Array], Array] = jax.nn.relu,
        kernel_init: Initializer = jax.nn.initializers.lecun_normal(),
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        rngs: nnx.Rngs,
    ):
        dense = {
            "kernel_init": kernel_init,
            "dtype": dtype,
            "param_dtype": param_dtype,
            "rngs": rngs,
        }
        self.activation = activation
        self.hidden = nnx.Linear(features, hidden_features, **dense)
        self.out = nnx.Linear(hidden_features, features, **dense)

    def __call__(
        self, x: Float[Array, "B T D"], *, dropout_rate: Rate = 0.0, rngs: Rngs | None = None
    ) -> Float[Array, "B T D"]:
        """Apply the network to each position. The output is sharded like the input.

        Args:
          x: Inputs, shape (B, T, D).
          dropout_rate: Dropout rate of the hidden units. May be traced.
          rngs: Random number generators of dropout. None disables dropout.
        """
        hidden = dropout(self.activation(self.hidden(x)), dropout_rate, rngs)
        return self.out(hidden, out_sharding=jax.typeof(x).sharding)
