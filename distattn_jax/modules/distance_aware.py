"""Parameters of distance-aware attention: w and the shape of the mapping, 2 numbers per head."""

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
from distattn_jax.modules.initializers import Initializer, both_signs

INITIAL_SHAPES: dict[Mapping, Any] = {
    learnable_sigmoid: 0.0,
    sigmoid: (),
    exponent: (),
    linear: (1.0, 1.0),
    clip: 1.0,
}


class DistanceAware(nnx.Module):
    """Owns w and the mapping's parameters; calling it builds `attention.DistanceAware`.

    Args:
      num_heads: N.
      mapping: f, see `attention.variants.mappings`.
      adjust: how f acts, see `attention.variants.distance_aware`.
      shape: the mapping's parameters at first, each a number or one per head. The threshold of
        `clip` is a constant, and stays what it is given as.
      weight_init: initial w, with the signature of `jax.nn.initializers`.
      tolerance: see `attention.DistanceAware`.
      param_dtype: dtype of the parameters.
      rngs: draws w from the stream `params`.
    """

    def __init__(
        self,
        num_heads: int,
        *,
        mapping: Mapping = learnable_sigmoid,
        adjust: Adjustment = early_multiply,
        shape: Any = None,
        weight_init: Initializer = both_signs(),
        tolerance: float | None = None,
        param_dtype: Any = jnp.float32,
        rngs: nnx.Rngs,
    ):
        if shape is None:
            if mapping not in INITIAL_SHAPES:
                raise ValueError(f"shape must be given for a mapping of your own; got {mapping}.")
            shape = INITIAL_SHAPES[mapping]
        self.mapping, self.adjust, self.tolerance = mapping, adjust, tolerance
        self.weight = nnx.Param(weight_init(rngs.params(), (num_heads,), param_dtype))
        self.threshold = shape if mapping is clip else None
        trained = () if mapping is clip else shape
        self.shape = nnx.data(
            jax.tree.map(lambda x: nnx.Param(jnp.full((num_heads,), x, param_dtype)), trained)
        )

    def __call__(self) -> attention.DistanceAware:
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
