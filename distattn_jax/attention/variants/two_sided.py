"""Distance-aware attention that treats keys before and after the query differently.

    score_ij = φ(q_i · k_j / √H) f_s(w_s |i-j|) + g_s(|i-j|)

s is the side of key j: `before` if j <= i, and `after` if j > i. Each head has its own w, and its
own parameters of f and g, for each of the two sides. φ is ReLU or the identity. f is a mapping of
distance-aware attention (Wu, Wu and Huang 2021, see `mappings`), or 1. The bias g is a sum of bias
functions (see `bias_functions`), or 0.

The paper's equation 6 is the case of equal parameters on both sides, φ = ReLU and g = 0. It has two
weaknesses, which the sides and the bias mend:

- f(w|i-j|) is equal for the keys at i - d and at i + d: a head cannot tell left from right. Here it
  can, by w_s, by the parameters of f and g, or by one number per side (the bias `constant`).
- If f falls to 0, a distant key has the score 0, and still the unnormalised weight e⁰ = 1: a long
  text is averaged, not forgotten. A bias g that falls without end, such as that of KERPLE or ALiBi,
  lets a head forget distant keys.

The query's own key, i = j, is on the side `before`, so that a causal mask leaves only this side.
Its distance is 0: f is then f(0), and the functions of `bias_functions` except T5 are 0. Adding one
number to all scores of a query changes nothing, so that the own key needs no constant.

Cost in addition to dot-product attention: 2 (T + S) evaluations of f and g, and T S multiplications
and additions.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from distattn_jax.attention.variants.bias_functions import (
    BiasFunction,
    T5Buckets,
    find_bias_function,
    t5_buckets,
)
from distattn_jax.attention.variants.mappings import (
    MappingFunction,
    find_mapping,
    learnable_sigmoid,
)
from distattn_jax.attention.variants.skew import descending_positions, select_positions, skew
from distattn_jax.attention.variants.variant import (
    Variant,
    check_real,
    check_tolerance,
    product,
    static,
    variant,
)

SIDES = ("before", "after")  # order of axis 1 of all parameters
# T5 divides its buckets between the sides. Here each side has its own table.
ONE_SIDED_BUCKETS = T5Buckets(t5_buckets.num_buckets // 2, t5_buckets.max_distance, is_causal=True)


@variant
class TwoSided(Variant):
    """Attention with own functions of the distance for keys before and after the query.

    The scores are φ(QKᵀ/√H) f_s(w_s|i-j|) + g_s(|i-j|), where s is the side of the key. Axis 0 of
    every array is the head axis, of size N, or 1 if all heads share the array. Axis 1 is the side:
    index 0 for keys before the query and the query's own key, index 1 for keys after the query.

    `DistanceAware.score_bias` c has no counterpart: c f_s is a function of the distance, which
    `bias` can add. Adding f to the scores (`early_add`) is also such a bias.

    Attributes:
      weight: Distance weight w of each head and side, shape (N, 2). None means f = 1.
      shape: Parameters of `mapping`, as in `DistanceAware`, but each array has shape (N, 2): for
        example the array v of `learnable_sigmoid`. () for a mapping without parameters, and if
        `weight` is None.
      bias_parameters: Tuple with the parameters of each function in `bias`, a pytree of arrays of
        shape (N, 2, ...).
      bias: Tuple of the functions whose sum is g: functions of (|i-j|, parameters of one head and
        side), or their names in `BIAS_FUNCTIONS`. "t5_buckets" has one table of 16 buckets for each
        side. () means g = 0. Define your own function at module level to avoid retracing.
      mapping: Function f of (w|i-j|, shape), or its name in `MAPPINGS`.
      rectify: If True, φ is ReLU, as in the paper. If False, φ is the identity.
      tolerance: Largest change of a weight that the fused kernels may cause by leaving out distant
        keys that a head forgets, and largest error of a score where they treat f as 0, or g as
        constant. With 0, they do so only where nothing changes in float32. None lets the kernels
        choose.
        "reference" and "xla" evaluate f and g at all distances.
    """

    weight: Float[Array, "#N 2"] | None = None
    shape: PyTree[Float[Array, "_ 2 ..."]] = ()
    bias_parameters: tuple[PyTree[Float[Array, "_ 2 ..."]], ...] = ()
    bias: tuple[BiasFunction | str, ...] = static(default=())
    mapping: MappingFunction | str = static(default=learnable_sigmoid)
    rectify: bool = static(default=True)
    tolerance: float | None = static(default=None)

    def __post_init__(self):
        if isinstance(self.bias, str) or callable(self.bias):
            raise TypeError(
                "bias must be a tuple of functions or names, such as ('alibi',); got "
                f"{self.bias!r}."
            )
        object.__setattr__(self, "bias", tuple(map(_find_one_sided, self.bias)))
        object.__setattr__(self, "mapping", find_mapping(self.mapping))
        if not isinstance(self.rectify, bool):
            raise TypeError(f"rectify must be True or False; got {self.rectify!r}.")
        check_tolerance(self.tolerance)
        if len(self.bias_parameters) != len(self.bias):
            raise ValueError(
                "bias_parameters must be a tuple with one entry for each of the "
                f"{len(self.bias)} functions in bias; got {len(self.bias_parameters)} entries."
            )
        if self.weight is None and jax.tree.leaves(self.shape):
            raise ValueError("shape must be () if weight is None, because there is no mapping.")

    def factor(self, relative_positions: Int[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Return f_s(w_s|i-j|) for relative positions i-j. The variant must be that of one head."""
        assert self.weight is not None, "there is no factor without a weight"

        def evaluate(distance, parameters):
            weight, shape = parameters
            return self.mapping(weight * distance.astype(weight.dtype), shape)

        factor = _evaluate_sides(evaluate, relative_positions, (self.weight, self.shape))
        return _check_numbers("TwoSided.mapping", factor, relative_positions)

    def bias_sum(self, relative_positions: Int[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Return g_s(|i-j|) for relative positions i-j. The variant must be that of one head."""
        biases = [
            _check_numbers(
                "A function of TwoSided.bias",
                _evaluate_sides(function, relative_positions, parameters),
                relative_positions,
            )
            for function, parameters in zip(self.bias, self.bias_parameters, strict=True)
        ]
        return sum(biases[1:], start=biases[0]) if biases else jnp.zeros(relative_positions.shape)

    def scores(self, query, key, relative_positions, scale):
        factor = None if self.weight is None else self.factor(relative_positions)
        bias = self.bias_sum(relative_positions) if self.bias else None
        return self._combine(scale * product(query, key), factor, bias)

    def prepare(self, query, key, offset):
        descending = descending_positions(query.shape[0], key.shape[0], offset)
        factor = None if self.weight is None else self.factor(descending)
        return query, (key, factor, self.bias_sum(descending) if self.bias else None)

    def block_scores(self, query, prepared, offset, start, scale):
        key, *by_position = prepared
        queries = query.shape[0]

        def expand(numbers):
            if numbers is None:
                return None
            numbers = select_positions(numbers, queries, key.shape[0], start)
            return skew(jnp.broadcast_to(numbers, (queries, *numbers.shape)))

        return self._combine(scale * product(query, key), *map(expand, by_position))

    def check(self, heads, width, value_width):
        super().check(heads, width, value_width)
        for path, leaf in jax.tree_util.tree_leaves_with_path(self):
            if leaf.ndim < 2 or leaf.shape[1] != len(SIDES):
                raise ValueError(
                    f"TwoSided{jax.tree_util.keystr(path)} must have shape ({heads} or 1, 2, ...): "
                    "axis 1 is the side, index 0 for keys before the query and index 1 for keys "
                    f"after it; got shape {leaf.shape}."
                )
        if self.weight is not None and self.weight.ndim != 2:
            raise ValueError(
                f"TwoSided.weight must have shape ({heads} or 1, 2); got {self.weight.shape}."
            )

    def _combine(self, products, factor, bias):
        """Return φ(products) factor + bias, where None stands for the factor 1 or the bias 0."""
        scores = jax.nn.relu(products) if self.rectify else products
        if factor is not None:
            scores = scores * factor.astype(scores.dtype)
        return scores if bias is None else scores + bias.astype(scores.dtype)


def _find_one_sided(function: BiasFunction | str) -> BiasFunction:
    """Look up a bias function of the distance |i-j|."""
    found = find_bias_function(function)
    return ONE_SIDED_BUCKETS if found == t5_buckets else found


def _evaluate_sides(function, relative_positions, parameters):
    """Return function(|i-j|, parameters of the side of i-j) for relative positions i-j.

    Args:
      function: Function of a distance and of the parameters of one side.
      relative_positions: Relative positions i-j of queries and keys.
      parameters: Pytree of arrays whose first axis is the side.
    """
    distance = jnp.abs(relative_positions)
    before, after = (
        function(distance, jax.tree.map(lambda x, side=side: x[side], parameters))
        for side in range(len(SIDES))
    )
    return jnp.where(relative_positions >= 0, before, after)


def _check_numbers(name, numbers, relative_positions):
    """Return an array, or raise an error unless it has one real number per relative position."""
    if jnp.shape(numbers) != relative_positions.shape:
        raise ValueError(
            f"{name} must return one number per distance, shape {relative_positions.shape}; got "
            f"{jnp.shape(numbers)}."
        )
    check_real(f"The result of {name}", numbers)
    return numbers
