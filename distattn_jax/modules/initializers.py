"""Initializers of the parameters of attention variants."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Initializer = Callable[..., Array]  # called as (key, shape, dtype), like jax.nn.initializers

_per_head = {"in_axis": 1, "out_axis": 2, "batch_axis": 0}
table_init = jax.nn.initializers.glorot_uniform(**_per_head)
projection_init = jax.nn.initializers.lecun_normal(**_per_head)
bias_init = jax.nn.initializers.normal(0.02)


def alternating_signs(scale: float | Float[Array, ""] = 0.1) -> Initializer:
    """Return an initializer with negative values for even heads and positive ones for odd heads.

    It initializes the weights w of distance-aware attention. |w| is uniform from scale/2 to
    3 scale/2. At w = 0 the parameters of the mapping would have no gradient. Trained heads have
    either sign in about equal numbers (Wu et al. 2021, Fig. 6). Signs alternate so that each device
    has both when heads are sharded.

    Args:
      scale: Mean of |w|. May be traced.
    """

    def init(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Float[Array, " N"]:
        magnitude = jax.random.uniform(key, shape, dtype, scale / 2, 3 * scale / 2)
        return jnp.where(jnp.arange(shape[0]) % 2 == 0, -magnitude, magnitude)

    return init
