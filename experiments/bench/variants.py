"""Attention variants of the benchmark, with random parameters.

Each function takes the sizes of the inputs and a PRNG key, and returns a variant in which every
head has its own parameters.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from distattn_jax.attention import (
    Adapted,
    DistanceAware,
    DistanceBias,
    DotProduct,
    MappingFunction,
    RelativePosition,
    TransformerXL,
    TwoSided,
    early_multiply,
    init_bias_parameters,
    learnable_sigmoid,
)
from experiments.bench.shapes import Shape

LOCAL, GLOBAL = -0.1, 0.1  # w of local heads and of global heads
MIXED = (LOCAL, GLOBAL)
V = 1.0
DECAY = 0.1  # rate or slope of the decay of `two_sided`
BUCKETS = 16  # of T5, for each side of `two_sided`
MAX_DISTANCE = 16  # k of relative positions
DEVIATION = 0.3  # standard deviation of tables and biases; queries and keys have 1


def dot_product(shape: Shape, key: Array) -> DotProduct:
    """Return dot-product attention, which has no parameters."""
    return DotProduct()


def distance_aware(
    shape: Shape,
    key: Array,
    *,
    weights: tuple[float, float] = MIXED,
    largest_weighted_distance: float | None = None,
    mapping: str | MappingFunction = learnable_sigmoid,
    parameters: int = 1,
    adjust: Any = early_multiply,
    tolerance: float | None = None,
) -> DistanceAware:
    """Return distance-aware attention.

    Args:
      shape: Sizes of the inputs.
      key: PRNG key, which is not used.
      weights: Distance weight w of the first half of the heads, and w of the second half.
      largest_weighted_distance: Value of |w| L, where L is the length. `weights` then determines
        only the signs of w. If the value is small, the mapping does not saturate at any distance
        below L. None means that `weights` are the values of w.
      mapping: Function of the weighted distance, or its name.
      parameters: Number of parameters that `mapping` has for each head. All of them are `V`.
      adjust: Argument `adjust` of `DistanceAware`.
      tolerance: Argument `tolerance` of `DistanceAware`.
    """
    first, second = weights
    if largest_weighted_distance is not None:
        size = largest_weighted_distance / shape.length
        first, second = math.copysign(size, first), math.copysign(size, second)
    weight = jnp.where(jnp.arange(shape.heads) < shape.heads // 2, first, second)
    v = jnp.full(shape.heads, V)
    all_v = v if parameters == 1 else (v,) * parameters
    return DistanceAware(weight, all_v, mapping=mapping, adjust=adjust, tolerance=tolerance)


def inverse_square(x: Float[Array, "..."], shape: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return 1 / (1 + shape x²), an example of a mapping that is not one of `MAPPINGS`."""
    return 1 / (1 + shape * x**2)


def relative_position(
    shape: Shape, key: Array, *, values: bool = True, max_distance: int = MAX_DISTANCE
) -> RelativePosition:
    """Return relative position attention (Shaw et al. 2018).

    Args:
      shape: Sizes of the inputs.
      key: PRNG key of the position vectors.
      values: If False, vectors are added to the keys only.
      max_distance: The distance k: larger distances count as k.
    """
    size = (2, shape.heads, 2 * max_distance + 1, shape.width)
    tables = DEVIATION * jax.random.normal(key, size)
    return RelativePosition(tables[0], tables[1] if values else None)


def transformer_xl(shape: Shape, key: Array) -> TransformerXL:
    """Return Transformer-XL attention. The sinusoids have the width N H of the whole model."""
    projection_key, bias_key = jax.random.split(key)
    model_width = shape.heads * shape.width
    size = (shape.heads, model_width, shape.width)
    # A sinusoid has the squared norm D/2: with this factor, its projection has the deviation 1.
    projection = (2 / model_width) ** 0.5 * jax.random.normal(projection_key, size)
    biases = DEVIATION * jax.random.normal(bias_key, (2, shape.heads, shape.width))
    return TransformerXL(projection, biases[0], biases[1])


def adapted(shape: Shape, key: Array) -> Adapted:
    """Return adapted attention (TENER)."""
    biases = DEVIATION * jax.random.normal(key, (2, shape.heads, shape.width))
    return Adapted(biases[0], biases[1])


def distance_bias(shape: Shape, key: Array, *, function: str) -> DistanceBias:
    """Return attention with a distance bias. The parameters have their initial values.

    Args:
      shape: Sizes of the inputs.
      key: PRNG key of the parameters.
      function: Name of the bias function, one of `BIAS_FUNCTIONS`.
    """
    return DistanceBias(init_bias_parameters(function, shape.heads, key=key), function)


def two_sided(
    shape: Shape,
    key: Array,
    *,
    weights: tuple[float, float] | None = MIXED,
    bias: tuple[str, ...] = ("constant", "kerple_log"),
) -> TwoSided:
    """Return attention with two sides. The parameters of both sides are equal.

    Args:
      shape: Sizes of the inputs.
      key: PRNG key, which is not used.
      weights: Distance weight w of the first half of the heads, and w of the second half. None
        means no factor, and no ReLU.
      bias: Names of bias functions. The constants and the biases of `t5_buckets` are 0, the decay
        of `kerple_log` is -log(1 + 0.1 |i-j|), and that of `kerple_power` and `alibi` -0.1 |i-j|.
    """
    size = (shape.heads, 2)
    numbers = {
        "constant": jnp.zeros(size),
        "kerple_log": (jnp.ones(size), jnp.full(size, DECAY)),
        "kerple_power": (jnp.full(size, DECAY), jnp.ones(size)),
        "t5_buckets": jnp.zeros((*size, BUCKETS)),
        "alibi": jnp.full(size, DECAY),
    }
    parameters = tuple(numbers[name] for name in bias)
    if weights is None:
        return TwoSided(None, (), parameters, bias, rectify=False)
    is_first = jnp.arange(shape.heads)[:, None] < shape.heads // 2
    weight = jnp.broadcast_to(jnp.where(is_first, *weights), size)
    return TwoSided(weight, jnp.full(size, V), parameters, bias)


def sine_bias(shape: Shape, key: Array, *, parameters: int) -> DistanceBias:
    """Return attention with a bias function that is not one of `BIAS_FUNCTIONS`.

    Args:
      shape: Sizes of the inputs.
      key: PRNG key of the parameters.
      parameters: Number of parameters that the function has for each head.
    """
    factors = DEVIATION * jax.random.normal(key, (shape.heads, parameters))
    return DistanceBias(factors, sum_of_sines)


def sum_of_sines(
    relative_positions: Int[Array, "..."], factors: Float[Array, " P"]
) -> Float[Array, "..."]:
    """Return Σ_n factors[n] sin((n + 1) (i - j) / 256)."""
    angle = relative_positions[..., None] / 256
    return jnp.sin((1 + jnp.arange(factors.size)) * angle) @ factors
