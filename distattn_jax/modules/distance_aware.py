"""Module with the parameters of distance-aware attention.

By default, each head has two parameters: the distance weight w, and the parameter v of the
learnable sigmoid.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from distattn_jax import attention
from distattn_jax.attention import (
    Adjustment,
    MappingFunction,
    clip,
    early_multiply,
    exponent,
    learnable_sigmoid,
    linear,
    sigmoid,
)
from distattn_jax.modules.initializers import Initializer, alternating_signs

# Default initial parameters of each mapping.
INITIAL_SHAPES: dict[MappingFunction, Any] = {
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
        `attention.learnable_sigmoid`, or a name in `attention.MAPPINGS`.
      adjust: Adjustment that multiplies the coefficients with the attention scores or weights, or
        adds them, e.g. `attention.early_multiply`, or a name in `attention.ADJUSTMENTS`.
      shape: Initial parameters of the mapping, each a number or an array of shape (N,): v of
        `attention.learnable_sigmoid`, (k, b) of `attention.linear`, or the threshold of
        `attention.clip`. For a mapping of your own, pass any pytree of parameters. None means the
        default of the mapping. All parameters are trained, except for the threshold of `clip`.
      weight_init: Initializer of the distance weights w, one for each head, shape (N,).
      tolerance: Largest error of a score that the fused kernels may cause by treating f as constant
        at large distances. None lets the kernels choose.
      score_bias: Initial value of the score bias c of each head, which is trained: see
        `attention.DistanceAware`. None adds no bias.
      param_dtype: Dtype of the parameters.
      rngs: Random number generators. The stream `params` draws the parameters.
    """

    def __init__(
        self,
        num_heads: int,
        *,
        mapping: MappingFunction | str = learnable_sigmoid,
        adjust: Adjustment | str = early_multiply,
        shape: Any = None,
        weight_init: Initializer = alternating_signs(),
        tolerance: float | None = None,
        score_bias: float | None = None,
        param_dtype: Any = jnp.float32,
        rngs: nnx.Rngs,
    ):
        weight = weight_init(rngs.params(), (num_heads,), param_dtype)
        self.weight, self.tolerance = nnx.Param(weight), tolerance
        # The variant checks these arguments, and looks up names.
        bias = None if score_bias is None else jnp.full((num_heads,), score_bias, param_dtype)
        checked = attention.DistanceAware(weight, (), mapping, adjust, tolerance, bias)
        self.score_bias = nnx.data(None if bias is None else nnx.Param(bias))
        self.mapping, self.adjust = checked.mapping, checked.adjust
        shape = _initial_shape(self.mapping, shape, num_heads)
        self.threshold = None
        if self.mapping is clip:
            # A tuple is no parameter: Flax neither trains nor stores the threshold.
            self.threshold, shape = tuple(np.atleast_1d(shape).tolist()), ()
        self.shape = nnx.data(
            jax.tree.map(lambda x: nnx.Param(jnp.full((num_heads,), x, param_dtype)), shape)
        )

    def __call__(self) -> attention.DistanceAware:
        """Return the attention variant with the current parameters."""
        if self.threshold is not None:
            shape = jnp.asarray(self.threshold)
        else:
            shape = jax.tree.map(
                lambda param: param[...],
                self.shape,
                is_leaf=lambda node: isinstance(node, nnx.Param),
            )
        return attention.DistanceAware(
            self.weight[...],
            shape,
            self.mapping,
            self.adjust,
            self.tolerance,
            None if self.score_bias is None else self.score_bias[...],
        )


def _initial_shape(mapping: Any, shape: Any, num_heads: int) -> Any:
    """Return the initial parameters of a mapping, as a pytree of numbers and arrays.

    Args:
      mapping: Mapping function.
      shape: Argument of `DistanceAware`. None means the default of the mapping.
      num_heads: Number of attention heads.
    """

    def check(x: Any) -> Any:
        x = x if isinstance(x, jax.Array) else np.asarray(x)
        if x.shape not in ((), (1,), (num_heads,)):
            raise ValueError(
                f"shape must contain one number, or one for each of the {num_heads} heads; "
                f"got an array of shape {x.shape}."
            )
        return x

    default = INITIAL_SHAPES.get(mapping)
    if shape is None:
        if default is None:
            raise ValueError(f"shape must be given for a custom mapping; got None for {mapping}.")
        return default
    if not isinstance(default, tuple):
        return jax.tree.map(check, shape) if default is None else check(shape)
    if not isinstance(shape, tuple) or len(shape) != len(default):
        raise ValueError(
            f"shape must be None or a tuple of the {len(default)} parameters of "
            f"{mapping.__name__}; got {shape!r}."
        )
    return tuple(map(check, shape))
