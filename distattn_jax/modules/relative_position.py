"""Parameters of Shaw's attention: a vector per relation, for keys, values or both."""

from typing import Any

import jax.numpy as jnp
from flax import nnx

from distattn_jax import attention
from distattn_jax.modules.initializers import Initializer, table_init


class RelativePosition(nnx.Module):
    """Owns the tables; calling it builds `attention.RelativePosition`.

    Args:
      num_heads: N.
      head_features: H, the width of a key, and of a value.
      max_distance: k; relations beyond ±k are the same. 0 is legal.
      keys: whether there is a table for the keys.
      values: whether there is a table for the values.
      shared: one table for all heads instead of one each.
      init: initial tables, with the signature of `jax.nn.initializers`.
      param_dtype: dtype of the parameters.
      rngs: draws the tables from the stream `params`.
    """

    def __init__(
        self,
        num_heads: int,
        head_features: int,
        max_distance: int,
        *,
        keys: bool = True,
        values: bool = True,
        shared: bool = False,
        init: Initializer = table_init,
        param_dtype: Any = jnp.float32,
        rngs: nnx.Rngs,
    ):
        if max_distance < 0:
            raise ValueError(f"max_distance must be at least 0; got {max_distance}.")
        shape = (1 if shared else num_heads, 2 * max_distance + 1, head_features)

        def table(wanted: bool) -> nnx.Param | None:
            return nnx.Param(init(rngs.params(), shape, param_dtype)) if wanted else None

        self.keys = nnx.data(table(keys))
        self.values = nnx.data(table(values))

    def __call__(self) -> attention.RelativePosition:
        return attention.RelativePosition(
            None if self.keys is None else self.keys[...],
            None if self.values is None else self.values[...],
        )
