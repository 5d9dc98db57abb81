"""Parameters of distance-aware attention.

By default, each head has two parameters: its distance weight w and the shape v of its sigmoid.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from distattn_jax import attention
from distattn_jax.attention import (
    Adjustment,
    Mapping,
    clip,
    early_multiply,
    exponent,
    learnable_sigmoid,
    linear,
    sigmoid,
)
from distattn_jax.modules.initializers import Initializer, alternating_signs

# Default initial parameters of each mapping.
INITIAL_SHAPES: dict[Mapping, Any] = {
    learnable_sigmoid: 0.0,
    sigmoid: (),
    exponent: (),
    linear: (1.0, 1.0),
    clip: 1.0,
}


class DistanceAware(nnx.Module):
    """Parameters of distance-aware attention. Calling the module returns `attention.DistanceAware`.

    Args:
      num_heads: Number of attention heads N.
      mapping: Mapping f from weighted distances w |i - j| to coefficients, e.g.
        `attention.learnable_sigmoid`.
      adjust: Rule that combines the coefficients with the attention scores, e.g.
        `attention.early_multiply`.
      shape: Initial parameters of the mapping, each a number or an array of shape (N,). None uses
        the default of the mapping. These parameters are trained, except for the threshold of
        `attention.clip`.
      weight_init: Initializer of the distance weights w, one for each head, shape (N,).
      tolerance: Fused kernels may treat f as constant at large distances if this changes no
        attention score by more than `tolerance`. None lets the implementation choose.
      param_dtype: Dtype of the parameters.
      rngs: Random number generators. The stream `params` draws the parameters.
    """

    def __init__(
        self,
        num_heads: int,
        *,
        mapping: Mapping = learnable_sigmoid,
        adjust: Adjustment = early_multiply,
        shape: Any = None,
        weight_init: Initializer = alternating_signs(),
        tolerance: float | None = None,
        param_dtype: Any = jnp.float32,
        rngs: nnx.Rngs,
    ):
        if shape is None:
            if mapping not in INITIAL_SHAPES:
                raise ValueError(
                    f"shape must be given for a custom mapping; got None for {mapping}."
                )
            shape = INITIAL_SHAPES[mapping]
        self.mapping, self.adjust, self.tolerance = mapping, adjust, tolerance
        self.weight = nnx.Param(weight_init(rngs.params(), (num_heads,), param_dtype))
        self.threshold = shape if mapping is clip else None
        trained = () if mapping is clip else shape
        self.shape = nnx.data(
            jax.tree.map(lambda x: nnx.Param(jnp.full((num_heads,), x, param_dtype)), trained)
        )

    def __call__(self) -> attention.DistanceAware:
        """Return the attention variant with the current parameters."""
        if self.threshold is not None:
            shape = jnp.full((1,), self.threshold)
        else:
            shape = jax.tree.map(
                lambda param: param[...],
                self.shape,
                is_leaf=lambda node: isinstance(node, nnx.Param),
            )
        return attention.DistanceAware(
            self.weight[...], shape, self.mapping, self.adjust, self.tolerance
        )
