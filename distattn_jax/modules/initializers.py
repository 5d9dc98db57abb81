"""Initializers of the parameters of attention variants."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
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


def sign_combinations(scale: float | Float[Array, ""] = 0.1) -> Initializer:
    """Return an initializer of the distance weights w of `TwoSided`, one for each head and side.

    A head with w < 0 on a side prefers near keys there, and one with w > 0 prefers distant keys.
    The heads have all four combinations of signs, in groups of four:

        head              0       1       2       3       4       5     ...
        keys before       near    far     near    far     near    far   ...
        keys after        near    near    far     far     near    near  ...

    If both sides share w, shape (N, 1), the signs alternate as in `alternating_signs`. |w| is drawn
    as there, for each head and side separately.

    Args:
      scale: Mean of |w|. May be traced.
    """

    def init(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Float[Array, "N S"]:
        magnitude = jax.random.uniform(key, shape, dtype, scale / 2, 3 * scale / 2)
        head, side = np.indices(shape)
        is_far = head // 2**side % 2 == 1
        return jnp.where(is_far, magnitude, -magnitude)

    return init


def negative_weights(scale: float | Float[Array, ""] = 0.1) -> Initializer:
    """Return an initializer of distance weights w that are negative in all heads, and on all sides.

    All heads then start as local heads, whose fused kernels skip distant keys: their time is linear
    in the length of a text. |w| is drawn as in `alternating_signs`.

    Args:
      scale: Mean of |w|. May be traced.
    """

    def init(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Float[Array, "..."]:
        return -jax.random.uniform(key, shape, dtype, scale / 2, 3 * scale / 2)

    return init
