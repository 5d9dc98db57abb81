"""Initial values of the variants' parameters."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Initializer = Callable[..., Array]  # (key, shape, dtype), as those of jax.nn.initializers

per_head = {"in_axis": 1, "out_axis": 2, "batch_axis": 0}
table_init = jax.nn.initializers.glorot_uniform(**per_head)
projection_init = jax.nn.initializers.lecun_normal(**per_head)
bias_init = jax.nn.initializers.normal(0.02)


def both_signs(scale: float | Float[Array, ""] = 0.1) -> Initializer:
    """Even heads local (w < 0), odd heads global (w > 0), |w| between scale/2 and 3 scale/2.

    At w = 0 the shape gets no gradient, and half of the trained heads take either sign (Fig. 6).
    The signs alternate so that heads sharded over devices come in both kinds on each.
    """

    def init(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Float[Array, " N"]:
        size = jax.random.uniform(key, shape, dtype, scale / 2, 3 * scale / 2)
        return jnp.where(jnp.arange(shape[0]) % 2 == 0, -size, size)

    return init
