"""Module with the parameters of `attention.RelativePosition`: tables of position vectors."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from distattn_jax import attention
from distattn_jax.attention.dropout import is_real
from distattn_jax.modules.initializers import Initializer, table_init

Distance = float | int | Float[Array, ""] | Int[Array, ""]


class RelativePosition(nnx.Module):
    """Tables of position vectors for relative position attention (Shaw et al. 2018).

    Calling the module returns `attention.RelativePosition`.

    Args:
      num_heads: Number of attention heads N.
      head_features: Width H of each key and value.
      max_distance: Largest distance k. Relative positions j - i are clipped to the range from -k to
        k, and each of these 2 k + 1 relative positions has its own vector.
      keys: If True, add a position vector to each key.
      values: If True, add a position vector to each value.
      key_distance: Distance at which relative positions are clipped for the keys. -1 sets the
        position vectors of the keys to 0. None and distances above `max_distance` mean
        `max_distance`. The distance may be traced, so that one compiled program can run models with
        different distances. It is stored like a parameter, but never trained.
      value_distance: Like `key_distance`, but for the values.
      shared: If True, all heads share the tables. If False, each head has its own tables.
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
        key_distance: Distance | None = None,
        value_distance: Distance | None = None,
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
        self.key_distance = nnx.data(_as_parameter("key_distance", key_distance))
        self.value_distance = nnx.data(_as_parameter("value_distance", value_distance))

    def __call__(self) -> attention.RelativePosition:
        """Return the attention variant with the current tables."""
        return attention.RelativePosition(
            _clip_table(self.keys, self.key_distance), _clip_table(self.values, self.value_distance)
        )


def _as_parameter(name: str, distance: Distance | None) -> nnx.Param | None:
    """Convert a distance to an `nnx.Param`, so that it is stored with the other parameters.

    Raise ValueError unless the distance is None, traced, or an integer of at least -1. `name` is
    the name of the argument.
    """
    if distance is None:
        return None
    if not isinstance(distance, jax.core.Tracer):
        is_number = is_real(distance) and np.ndim(distance) == 0
        if not is_number or not float(distance) >= -1 or float(distance) % 1:
            raise ValueError(f"{name} must be None or an integer of at least -1; got {distance!r}.")
    return nnx.Param(jnp.asarray(distance, jnp.float32))


def _clip_table(
    table: nnx.Param | None, distance: nnx.Param | None
) -> Float[Array, "#N relations H"] | None:
    """Return the table with the vectors of relative positions beyond ±`distance` replaced.

    The table has one vector for each relative position from -k to k. Positions above `distance` get
    the vector of `distance`, and positions below -`distance` get the vector of -`distance`. If
    `distance` is -1, all vectors become 0. If it is None, the table is unchanged.
    """
    if table is None:
        return None
    if distance is None:
        return table[...]
    limit = jax.lax.stop_gradient(distance[...])
    k = table.shape[1] // 2
    rows = jnp.clip(jnp.arange(-k, k + 1), -jnp.maximum(limit, 0), jnp.maximum(limit, 0))
    return jnp.where(limit >= 0, table[...][:, rows.astype(jnp.int32) + k], 0)
