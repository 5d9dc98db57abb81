"""Attention with a bias that is a function of the relative position.

    score_ij = q_i · k_j / √H + f(i - j; θ)

Each head has its own parameters θ. ALiBi, KERPLE and the biases of T5 have this form: see
`bias_functions`. T queries and S keys have only T + S - 1 different relative positions i - j.
`prepare` evaluates f once for each of them, and `skew` copies the results to all entries (i, j).

Cost in addition to dot-product attention: T + S evaluations of f, and T S additions.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num, PyTree

from distattn_jax.attention.variants.bias_functions import (
    BIAS_PARAMETER_NAMES,
    BiasFunction,
    T5Buckets,
    find_bias_function,
)
from distattn_jax.attention.variants.skew import descending_positions, select_positions, skew
from distattn_jax.attention.variants.variant import (
    Variant,
    check_one_number_per_head,
    check_real,
    product,
    static,
    variant,
)


@variant
class DistanceBias(Variant):
    """Dot-product attention with a bias that depends on i - j: softmax(QKᵀ/√H + f(i - j; θ)) V.

    Attributes:
      parameters: Pytree of the parameters θ of `function`. Each array has a leading head axis, of
        size N, or 1 if all heads share the array. The function receives them in the dtype of the
        scores, float32 or wider.
      function: Function f of (i - j, parameters of one head), or its name in `BIAS_FUNCTIONS`.
        i - j is an integer array of any shape, and f must compute each entry from the same entry of
        i - j alone. Its values and derivatives must be finite, also for masked keys. Define your
        own function at module level to avoid retracing.
    """

    parameters: PyTree[Float[Array, "_ ..."]]
    function: BiasFunction | str = static()

    adds_bias = True

    def __post_init__(self):
        object.__setattr__(self, "function", find_bias_function(self.function))

    def bias(self, relative_positions: Int[Array, "*shape"]) -> Num[Array, "*shape"]:
        """Return f(i - j) for relative positions i - j. The variant must be that of one head."""
        assert not isinstance(self.function, str), "__post_init__ replaces a name by its function"
        bias = self.function(relative_positions, self.parameters)
        if jnp.shape(bias) != relative_positions.shape:
            raise ValueError(
                "DistanceBias.function must return one number per relative position, shape "
                f"{relative_positions.shape}; got {jnp.shape(bias)}."
            )
        bias = jnp.asarray(bias)
        check_real("The result of DistanceBias.function", bias)
        return bias

    def check(self, heads, width, value_width):
        names = BIAS_PARAMETER_NAMES.get(self.function)
        if names is not None:
            arrays = [self.parameters] if len(names) == 1 else self.parameters
            if not isinstance(arrays, list | tuple) or len(arrays) != len(names):
                raise ValueError(
                    f"DistanceBias.parameters must be ({', '.join(names)}), two arrays, for the "
                    f"function {self.function.__name__}; got {self.parameters!r}."
                )
            for index, (name, array) in enumerate(zip(names, arrays, strict=True)):
                attribute = "parameters" if len(names) == 1 else f"parameters[{index}]"
                role = f", the {name} of each head"
                check_one_number_per_head(f"DistanceBias.{attribute}", array, heads, role)
        elif isinstance(self.function, T5Buckets):
            buckets = self.function.num_buckets
            shape = getattr(self.parameters, "shape", None)
            if shape not in ((heads, buckets), (1, buckets)):
                raise ValueError(
                    f"DistanceBias.parameters must have one number for each of the {buckets} "
                    f"buckets of each head, shape ({heads} or 1, {buckets}); got "
                    f"{repr(self.parameters) if shape is None else f'shape {shape}'}."
                )
        super().check(heads, width, value_width)

    def scores(self, query, key, relative_positions, scale):
        scores = scale * product(query, key)
        return scores + self.bias(relative_positions).astype(scores.dtype)

    def prepare(self, query, key, offset):
        descending = descending_positions(query.shape[0], key.shape[0], offset)
        return query, (key, self.bias(descending))

    def block_scores(self, query, prepared, offset, start, scale):
        key, bias = prepared
        queries = query.shape[0]
        bias = select_positions(bias, queries, key.shape[0], start)
        scores = scale * product(query, key)
        return scores + skew(jnp.broadcast_to(bias.astype(scores.dtype), (queries, *bias.shape)))
