"""Module with the parameters of `attention.DistanceBias`, such as the slopes of ALiBi."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from distattn_jax import attention
from distattn_jax.attention import BiasFunction, alibi, init_bias_parameters


class DistanceBias(nnx.Module):
    """Parameters of attention with a bias that is a function of the relative position.

    Calling the module returns `attention.DistanceBias`.

    Args:
      num_heads: Number of attention heads N.
      function: Function of (i - j, parameters of one head), e.g. `attention.alibi`,
        `attention.kerple_log` or `attention.T5Buckets(...)`, or a name in
        `attention.BIAS_FUNCTIONS`.
      parameters: Initial parameters, a pytree of numbers and arrays. A number becomes an array of
        shape (N,). The first axis of an array must have size N, or 1 if all heads share the array.
        If None, `attention.init_bias_parameters` draws the parameters. A function of your own needs
        initial parameters.
      param_dtype: Dtype of the parameters.
      rngs: Random number generators. The stream `params` draws the parameters.
    """

    def __init__(
        self,
        num_heads: int,
        *,
        function: BiasFunction | str = alibi,
        parameters: Any = None,
        param_dtype: Any = jnp.float32,
        rngs: nnx.Rngs,
    ):
        # The variant checks this argument, and looks up names.
        self.function = attention.DistanceBias((), function).function
        if parameters is None:
            parameters = init_bias_parameters(
                function, num_heads, key=rngs.params(), dtype=param_dtype
            )

        def as_parameter(x: Any) -> nnx.Param:
            x = x if isinstance(x, jax.Array) else np.asarray(x)
            if x.shape and x.shape[0] not in (1, num_heads):
                raise ValueError(
                    "parameters must contain numbers, and arrays with a leading head axis of size "
                    f"{num_heads} or 1; got an array of shape {x.shape}."
                )
            x = x if x.shape else jnp.full(num_heads, x)
            return nnx.Param(jnp.asarray(x, param_dtype))

        self.parameters = nnx.data(jax.tree.map(as_parameter, parameters))

    def __call__(self) -> attention.DistanceBias:
        """Return the attention variant with the current parameters."""
        parameters = jax.tree.map(
            lambda param: param[...],
            self.parameters,
            is_leaf=lambda node: isinstance(node, nnx.Param),
        )
        return attention.DistanceBias(parameters, self.function)
