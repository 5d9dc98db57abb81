"""Bias functions: functions of the relative position that are added to the scores.

`DistanceBias` adds one of them, and `TwoSided` the sum of several, with own parameters for keys
before and after the query.

A bias function has the arguments (distance, parameters) and computes one head. `distance` is an
integer array of signed relative positions d = i - j of query i and key j. The function returns an
array of the same shape. `DistanceBias.parameters` contains the parameters of all heads, with a
leading head axis:

    alibi          -slope |d|               slope (N,)              Press et al. 2022, section 3
    kerple_log     -r₁ log(1 + r₂ |d|)      (r₁ (N,), r₂ (N,))      Chi et al. 2022
    kerple_power   -r₁ |d|^r₂               (r₁ (N,), r₂ (N,))      Chi et al. 2022
    t5_buckets     table[bucket(d)]         table (N, buckets)      Raffel et al. 2020, section 2.1
    constant       c, and 0 if d = 0        c (N,)                  for `TwoSided`

KERPLE requires r₁ > 0 and r₂ > 0, and `kerple_power` also requires r₂ <= 2. As in the authors'
code, parameters below 0.01 are replaced by 0.01, and an r₂ of `kerple_power` above 2 by 2. The
gradient is computed as if nothing was replaced, so that training can move a parameter back into its
range.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

BiasFunction = Callable[[Int[Array, "*shape"], Any], Float[Array, "*shape"]]
SMALLEST_PARAMETER, LARGEST_POWER = 0.01, 2.0  # of KERPLE, in the authors' code
TABLE_DEVIATION = 0.02  # standard deviation of the initial numbers of a table of buckets


def alibi(
    distance: Int[Array, "*shape"], parameters: Float[Array, "..."]
) -> Float[Array, "*shape"]:
    """Return -slope |d|, the bias of ALiBi (Press et al. 2022).

    The paper defines the bias for keys before the query only. Here |d| extends it to later keys.

    Args:
      distance: Relative positions d = i - j.
      parameters: Slope of the head. The paper does not train it: see `alibi_slopes`.
    """
    return -parameters * jnp.abs(distance)


def kerple_log(
    distance: Int[Array, "*shape"], parameters: tuple[Float[Array, "..."], Float[Array, "..."]]
) -> Float[Array, "*shape"]:
    """Return -r₁ log(1 + r₂ |d|), the logarithmic kernel of KERPLE (Chi et al. 2022).

    Args:
      distance: Relative positions d = i - j.
      parameters: Pair (r₁, r₂) of the head. Numbers below 0.01 are replaced by 0.01.
    """
    scale, rate = (_limit(parameter) for parameter in parameters)
    return -scale * jnp.log1p(rate * jnp.abs(distance))


def kerple_power(
    distance: Int[Array, "*shape"], parameters: tuple[Float[Array, "..."], Float[Array, "..."]]
) -> Float[Array, "*shape"]:
    """Return -r₁ |d|^r₂, the power kernel of KERPLE (Chi et al. 2022).

    Args:
      distance: Relative positions d = i - j.
      parameters: Pair (r₁, r₂) of the head. Numbers below 0.01 are replaced by 0.01, and an r₂
        above 2 is replaced by 2.
    """
    scale, power = _limit(parameters[0]), _limit(parameters[1], LARGEST_POWER)
    # The derivative |d|^r₂ log |d| would be NaN at d = 0. Distances are integers: the next is 1.
    magnitude = jnp.maximum(jnp.abs(distance), 1).astype(power.dtype)
    return jnp.where(distance == 0, 0, -scale * magnitude**power)


@dataclasses.dataclass(frozen=True)
class T5Buckets:
    """Bias function of T5: a table with one learned number for each bucket of relative positions.

    With the default values, 16 buckets are for keys at or before the query: 8 buckets for the
    distances 0 to 7, and 8 buckets for ranges of larger distances. The ranges grow geometrically
    towards `max_distance`, and the last one contains all distances from 91 on. The other 16 buckets
    are for keys after the query.

    T5 shares the table between all layers, and does not scale the scores: pass `scale=1` to do the
    same.

    Attributes:
      num_buckets: Number of buckets.
      max_distance: Upper end of the geometric ranges. Larger distances are in the last bucket.
      is_causal: If False, the first half of the buckets is for keys at or before the query, and the
        second half is for keys after the query. If True, all buckets are for keys at or before the
        query, and keys after the query have the bucket of distance 0.
    """

    num_buckets: int = 32
    max_distance: int = 128
    is_causal: bool = False

    def __post_init__(self):
        sides = 1 if self.is_causal else 2
        if self.num_buckets < 2 * sides or self.num_buckets % sides:
            wanted = "at least 2" if self.is_causal else "even and at least 4"
            raise ValueError(f"num_buckets must be {wanted}; got {self.num_buckets}.")
        if self.max_distance <= self.num_buckets // sides // 2:
            raise ValueError(
                "max_distance must be larger than the number of buckets with one distance, "
                f"{self.num_buckets // sides // 2}; got {self.max_distance}."
            )

    def __call__(
        self, distance: Int[Array, "*shape"], parameters: Float[Array, "buckets"]
    ) -> Float[Array, "*shape"]:
        """Return the bias of each relative position i - j.

        Args:
          distance: Relative positions i - j.
          parameters: Table of one head, with one number for each bucket.
        """
        return parameters[self.find_buckets(distance)]

    def find_buckets(self, distance: Int[Array, "*shape"]) -> Int[Array, "*shape"]:
        """Return the index of the bucket of each relative position i - j."""
        if self.is_causal:
            return self._side_buckets(jnp.maximum(distance, 0))
        later = jnp.where(distance < 0, self.num_buckets // 2, 0)
        return later + self._side_buckets(jnp.abs(distance))

    def _side_buckets(self, distance: Int[Array, "*shape"]) -> Int[Array, "*shape"]:
        """Return the index of the bucket for each distance |i - j|.

        The index counts only the buckets for keys on one side of the query, before or after it.
        """
        buckets = self.num_buckets if self.is_causal else self.num_buckets // 2
        first = _first_distances(buckets, self.max_distance)
        numbers = np.searchsorted(first, np.arange(self.max_distance + 1), side="right") - 1
        return jnp.asarray(numbers, jnp.int32)[jnp.minimum(distance, self.max_distance)]


t5_buckets = T5Buckets()


def constant(
    distance: Int[Array, "*shape"], parameters: Float[Array, "..."]
) -> Float[Array, "*shape"]:
    """Return a constant c for all keys but the query's own key, which gets 0.

    In `TwoSided`, each side has its own c. Adding one number to all scores of a query would change
    nothing, so that the own key needs no number.

    Args:
      distance: Relative positions d = i - j.
      parameters: Constant c of the head.
    """
    return jnp.where(distance == 0, 0, parameters)


BIAS_FUNCTIONS: dict[str, BiasFunction] = {
    "alibi": alibi,
    "kerple_log": kerple_log,
    "kerple_power": kerple_power,
    "t5_buckets": t5_buckets,
    "constant": constant,
}


def find_bias_function(function: BiasFunction | str) -> BiasFunction:
    """Look up a bias function by its name in `BIAS_FUNCTIONS`. Return a function unchanged."""
    if not isinstance(function, str):
        if callable(function):
            return function
        raise TypeError(
            "function must be a function of (distance, parameters), or the name of one; "
            f"got {function!r}."
        )
    if function not in BIAS_FUNCTIONS:
        names = ", ".join(BIAS_FUNCTIONS)
        raise ValueError(f"function must be one of {names}; got {function!r}.")
    return BIAS_FUNCTIONS[function]


# Names of the arrays of parameters with one number per head. One array stands alone, two arrays are
# a tuple.
BIAS_PARAMETER_NAMES: dict[BiasFunction, tuple[str, ...]] = {
    alibi: ("slope",),
    kerple_log: ("r₁", "r₂"),
    kerple_power: ("r₁", "r₂"),
    constant: ("c",),
}


def alibi_slopes(num_heads: int) -> Float[np.ndarray, " N"]:
    """Return the slopes of ALiBi for N heads (Press et al. 2022).

    If N is a power of two, the slope of head n = 1, ..., N is 2^(-8n/N). For other N, let P be the
    largest power of two below N. As in the authors' code, the first P slopes are those of P heads,
    and the other N - P slopes are those of the heads n = 1, 3, 5, ... of 2P heads.
    """
    is_integer = isinstance(num_heads, int | np.integer) and not isinstance(num_heads, bool)
    if not is_integer or num_heads < 1:
        raise ValueError(f"num_heads must be an integer of at least 1; got {num_heads!r}.")
    num_heads = int(num_heads)
    whole = 2 ** (num_heads.bit_length() - 1)

    def slopes(heads: int) -> Float[np.ndarray, " N"]:
        return 2.0 ** (-8 * np.arange(1, heads + 1) / heads)

    return np.concatenate([slopes(whole), slopes(2 * whole)[::2][: num_heads - whole]])


def init_bias_parameters(
    function: BiasFunction | str, num_heads: int, *, key: Array, dtype: Any = jnp.float32
) -> Any:
    """Return initial parameters of a bias function of this module, with a leading head axis.

    `alibi` gets the slopes of its paper. `kerple_log` and `kerple_power` get uniform random numbers
    from 0.01 up to the maximum in the authors' code: r₁ up to 2 and r₂ up to 1 for `kerple_log`, r₁
    up to 1 and r₂ up to 2 for `kerple_power`. The table of `T5Buckets` gets normal random numbers
    with standard deviation 0.02. `constant` gets 0.

    Args:
      function: Bias function in `BIAS_FUNCTIONS`, or its name, or an instance of `T5Buckets`.
      num_heads: Number of heads N.
      key: PRNG key.
      dtype: Dtype of the parameters.

    Returns:
      Slopes or constants (N,), or a pair r₁ (N,) and r₂ (N,), or a table (N, num_buckets).
    """
    function = find_bias_function(function)
    if function is constant:
        return jnp.zeros((num_heads,), dtype)
    if function is alibi:
        return jnp.asarray(alibi_slopes(num_heads), dtype)
    if function in _KERPLE_MAXIMA:
        return tuple(
            jax.random.uniform(key, (num_heads,), dtype, SMALLEST_PARAMETER, maximum)
            for key, maximum in zip(jax.random.split(key), _KERPLE_MAXIMA[function], strict=True)
        )
    if isinstance(function, T5Buckets):
        shape = (num_heads, function.num_buckets)
        return TABLE_DEVIATION * jax.random.normal(key, shape, dtype)
    raise ValueError(
        f"function must be one of {', '.join(BIAS_FUNCTIONS)} or a T5Buckets to have initial "
        f"parameters; got {function!r}. Pass the initial parameters of your own function."
    )


# Largest initial r₁ and r₂, from the authors' code.
_KERPLE_MAXIMA: dict[BiasFunction, tuple[float, float]] = {
    kerple_log: (2.0, 1.0),
    kerple_power: (1.0, 2.0),
}


def _limit(parameter: Float[Array, "..."], largest: float = math.inf) -> Float[Array, "..."]:
    """Clip a parameter of KERPLE to the range from 0.01 to `largest`.

    The gradient is that of the identity, also outside of the range.
    """
    limited = jnp.clip(parameter, SMALLEST_PARAMETER, largest)
    return jax.lax.stop_gradient(limited) + (parameter - jax.lax.stop_gradient(parameter))


def _first_distances(buckets: int, max_distance: int) -> list[int]:
    """Return the smallest distance of each bucket, for the buckets on one side of the query.

    With m = buckets // 2, bucket b < m contains only the distance b. The smallest distance of a
    bucket b >= m is m (max_distance / m)^((b - m) / (buckets - m)), rounded up to an integer. The
    computation uses exact integers, because rounding errors would move some distances to another
    bucket.
    """
    exact = buckets // 2
    steps = buckets - exact
    first = list(range(exact))
    for step in range(steps):
        bound = exact ** (steps - step) * max_distance**step
        first.append(next(d for d in range(exact, max_distance + 1) if d**steps >= bound))
    return first
