"""Attention with a bias that is a function of the relative position.

    score_ij = q_i · k_j / √H + f(i - j; θ)

Each head has its own parameters θ. ALiBi, KERPLE and the biases of T5 have this form: see
`bias_functions`. T queries and S keys have only T + S - 1 different relative positions i - j.
`prepare` evaluates f once for each of them, and `skew` copies the results to all entries (i, j).

Cost in addition to dot-product attention: T + S evaluations of f, and T S additions.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num, PyTree

from distattn_jax.attention.variants.bias_functions import BiasFunction, find_bias_function
from distattn_jax.attention.variants.skew import descending_positions, select_positions, skew
from distattn_jax.attention.variants.variant import Variant, product, static, variant


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
        return jnp.asarray(bias)

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
