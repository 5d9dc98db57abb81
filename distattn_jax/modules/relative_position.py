"""Parameters of relative position attention (Shaw et al. 2018): tables of position vectors."""

from typing import Any

import jax.numpy as jnp
from flax import nnx

from distattn_jax import attention
from distattn_jax.modules.initializers import Initializer, table_init


class RelativePosition(nnx.Module):
    """Tables of position vectors for relative position attention (Shaw et al. 2018).

    Calling the module returns `attention.RelativePosition`.

    Args:
      num_heads: Number of attention heads N.
      head_features: Width H of each key and value.
      max_distance: Largest distance k with its own vector. Relative positions are clipped to ±k.
      keys: Add a position vector to the keys.
      values: Add a position vector to the values.
      shared: Share the tables between all heads. Otherwise each head has its own tables.
      init: Initializer of the tables, shape (N, 2 k + 1, H), or (1, 2 k + 1, H) if shared.
      param_dtype: Dtype of the parameters.
      rngs: Random number generators. The stream `params` draws the parameters.
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

        def make_table() -> nnx.Param:
            return nnx.Param(init(rngs.params(), shape, param_dtype))

        self.keys = nnx.data(make_table() if keys else None)
        self.values = nnx.data(make_table() if values else None)

    def __call__(self) -> attention.RelativePosition:
        """Return the attention variant with the current tables."""
        return attention.RelativePosition(
            None if self.keys is None else self.keys[...],
            None if self.values is None else self.values[...],
        )
