"""Module with the parameters of `attention.TwoSided`.

By default, each head has ten parameters, five for each side: the distance weight w, the parameter v
of the learnable sigmoid, the constant c, and the parameters r₁ and r₂ of the decay of KERPLE.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from distattn_jax import attention
from distattn_jax.attention import (
    SIDES,
    BiasFunction,
    MappingFunction,
    clip,
    init_bias_parameters,
    learnable_sigmoid,
)
from distattn_jax.modules.distance_aware import INITIAL_SHAPES
from distattn_jax.modules.initializers import Initializer, sign_combinations


class TwoSided(nnx.Module):
    """Parameters of attention with own functions of the distance for keys before and after.

    Calling the module returns `attention.TwoSided`. Each side has its own arrays, with one number
    per head as in `DistanceAware`, so that weight decay of matrices leaves them alone. Below, S is
    the number of sides with own parameters: 2, or 1 if `tied`.

    By default, w has all four combinations of signs on the two sides, in groups of four heads: see
    `sign_combinations`.

    Args:
      num_heads: Number of attention heads N.
      mapping: Mapping f from weighted distances w_s|i-j| to factors of the scores, e.g.
        `attention.learnable_sigmoid`, or a name in `attention.MAPPINGS`. None means no factor.
      shape: Initial parameters of the mapping, as in `DistanceAware`, but each is a number or an
        array of shape (N, S). None means the default of the mapping. All are trained, except for
        the threshold of `clip`.
      weight_init: Initializer of the distance weights w, shape (N, S).
      bias: Functions of the distance whose sum g is added to the scores: names in
        `attention.BIAS_FUNCTIONS`, or functions of (|i-j|, parameters of one head and side). ()
        means no bias.
      bias_parameters: Initial parameters of each function in `bias`, a pytree of numbers and of
        arrays of shape (N or 1, S, ...). For None, `attention.init_bias_parameters` gives the
        parameters: constants are 0, slopes of ALiBi are equal on both sides, and parameters of
        KERPLE are drawn for each head and side. None instead of the tuple means None for all
        functions.
      rectify: If True, negative scores are set to 0 before they are multiplied by f, as in
        distance-aware attention.
      tied: If True, both sides share one set of parameters, so that a head cannot tell left from
        right.
      tolerance: Largest change of a weight or score that the fused kernels may cause at large
        distances: see `attention.TwoSided`. None lets the kernels choose.
      param_dtype: Dtype of the parameters.
      rngs: Random number generators. The stream `params` draws the parameters.
    """

    def __init__(
        self,
        num_heads: int,
        *,
        mapping: MappingFunction | str | None = learnable_sigmoid,
        shape: Any = None,
        weight_init: Initializer = sign_combinations(),
        bias: Sequence[BiasFunction | str] = ("constant", "kerple_power"),
        bias_parameters: Sequence[Any] | None = None,
        rectify: bool = True,
        tied: bool = False,
        tolerance: float | None = None,
        param_dtype: Any = jnp.float32,
        rngs: nnx.Rngs,
    ):
        if bias_parameters is None:
            bias_parameters = (None,) * (len(bias) if isinstance(bias, Sequence) else 1)
        # The variant checks these arguments, and looks up names.
        checked = attention.TwoSided(
            bias_parameters=((),) * len(bias_parameters),
            bias=bias,  # type: ignore[arg-type]
            mapping=learnable_sigmoid if mapping is None else mapping,
            rectify=rectify,
            tolerance=tolerance,
        )
        self.bias, self.rectify, self.tolerance = checked.bias, rectify, tolerance
        self.mapping = None if mapping is None else checked.mapping
        sides = ("both",) if tied else SIDES
        sizes = num_heads, len(sides)
        arrays: dict[str, Any] = {}
        self.threshold = None
        if mapping is not None:
            arrays["weight"] = weight_init(rngs.params(), sizes, param_dtype)
            shape = _initial_shape(self.mapping, shape, sizes)
            if self.mapping is clip:
                # A tuple is no parameter: Flax neither trains nor stores the threshold.
                self.threshold = tuple(map(tuple, np.broadcast_to(shape, (num_heads, 2)).tolist()))
            else:
                arrays["shape"] = shape
        elif shape is not None:
            raise ValueError(f"shape must be None if mapping is None; got {shape!r}.")
        arrays["bias"] = tuple(
            _initial_bias(function, given, sizes, rngs, param_dtype)
            for function, given in zip(self.bias, bias_parameters, strict=True)
        )
        self.parameters = nnx.data(
            {
                side: jax.tree.map(
                    lambda x, index=index: nnx.Param(jnp.asarray(x[:, index], param_dtype)), arrays
                )
                for index, side in enumerate(sides)
            }
        )

    def __call__(self) -> attention.TwoSided:
        """Return the attention variant with the current parameters."""
        values = jax.tree.map(
            lambda param: param[...],
            self.parameters,
            is_leaf=lambda node: isinstance(node, nnx.Param),
        )
        sides = [values[side if side in values else "both"] for side in SIDES]
        arrays = jax.tree.map(lambda *numbers: jnp.stack(numbers, axis=1), *sides)
        threshold = None if self.threshold is None else jnp.asarray(self.threshold)
        return attention.TwoSided(
            arrays.get("weight"),
            arrays.get("shape", ()) if threshold is None else threshold,
            arrays["bias"],
            self.bias,
            learnable_sigmoid if self.mapping is None else self.mapping,
            self.rectify,
            self.tolerance,
        )


def _initial_shape(mapping: Any, shape: Any, sizes: tuple[int, int]) -> Any:
    """Return the initial parameters of a mapping, as a pytree of arrays (N or 1, S)."""
    default = INITIAL_SHAPES.get(mapping)
    structure: Any = jax.tree.structure(default)
    if shape is None:
        if default is None:
            raise ValueError(f"shape must be given for a custom mapping; got None for {mapping}.")
        shape = default
    if default is not None and jax.tree.structure(shape) != structure:
        raise ValueError(
            f"shape must be None or like {default}, the default of {mapping.__name__}; "
            f"got {shape!r}."
        )
    return jax.tree.map(lambda x: _expand("shape", x, sizes), shape)


def _initial_bias(
    function: BiasFunction | str, given: Any, sizes: tuple[int, int], rngs: nnx.Rngs, dtype: Any
) -> Any:
    """Return the initial parameters of a bias function, as a pytree of arrays (N or 1, S, ...)."""
    if given is not None:
        return jax.tree.map(lambda x: _expand("bias_parameters", x, sizes), given)
    heads, sides = sizes
    drawn = [
        init_bias_parameters(function, heads, key=rngs.params(), dtype=dtype) for _ in range(sides)
    ]
    return jax.tree.map(lambda *x: jnp.stack(x, axis=1), *drawn)


def _expand(name: str, x: Any, sizes: tuple[int, int]) -> Any:
    """Return a number as an array of shape (N, S). Check the first two axes of an array."""
    x = x if isinstance(x, jax.Array) else np.asarray(x)
    if x.ndim == 0:
        return jnp.full(sizes, x)
    heads, sides = sizes
    if x.ndim < 2 or x.shape[0] not in (1, heads) or x.shape[1] != sides:
        raise ValueError(
            f"{name} must contain numbers, and arrays of shape ({heads} or 1, {sides}, ...) for "
            f"{heads} heads and {sides} sides; got an array of shape {x.shape}."
        )
    return x
