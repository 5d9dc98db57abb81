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
    """Return an initializer of the distance weights w of distance-aware attention, one per head.

    Heads with an even index get w < 0, and heads with an odd index get w > 0. |w| is drawn
    uniformly between scale/2 and 3 scale/2. It is not near 0, because at w = 0 the parameters of
    the mapping would have no gradient. In the paper, about half of the heads have w < 0 after
    training (Wu et al. 2021, Fig. 6). The signs alternate so that, when the heads are sharded,
    every device has heads of both signs.

    Args:
      scale: Mean of |w|. May be traced.
    """

    def init(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Float[Array, " N"]:
        magnitude = jax.random.uniform(key, shape, dtype, scale / 2, 3 * scale / 2)
        return jnp.where(jnp.arange(shape[0]) % 2 == 0, -magnitude, magnitude)

    return init
