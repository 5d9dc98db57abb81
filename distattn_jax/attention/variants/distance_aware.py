"""Distance-aware attention (Wu, Wu and Huang 2021, "DA-Transformer", eq. 5, 6; sections 4.3, 4.4).

Let P = QKᵀ/√H be the dot products, R_ij = |i - j| the distances, and F = f(wR) the coefficients.
Each head has its own distance weight w and its own parameters `shape` of the mapping f. There are
four ways to apply F:

    early_multiply   softmax(ReLU(P) F)      eq. 6, the default
    early_add        softmax(P + F)
    late_multiply    softmax(P) F            rows no longer sum to 1
    late_add         softmax(P) + F          rows no longer sum to 1

A head with w > 0 prefers distant keys. A head with w < 0 prefers near keys, but does not remove
distant keys: their F and their scores are close to 0, so each distant key has about the
unnormalised weight e⁰ = 1 (footnote 1 of the paper). The longer the text, the more weight all
distant keys have together.

A score bias c, which is not from the paper, counteracts this: softmax((ReLU(P) + c) F). A near key
with F = 1 then has an unnormalised weight of at least e^c, and a distant key still has 1.

Masks are applied after the multiplication by F, because the ReLU would turn a masked score of -inf
into 0, which has the unnormalised weight e⁰ = 1.

Cost in addition to dot-product attention: T S evaluations of f, and 2 parameters per head.
"""

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from distattn_jax.attention.variants.mappings import (
    MAPPING_PARAMETER_NAMES,
    MappingFunction,
    find_mapping,
    largest_exponent,
    learnable_sigmoid,
)
from distattn_jax.attention.variants.variant import (
    Variant,
    check_one_number_per_head,
    check_real,
    check_tolerance,
    product,
    static,
    variant,
)

Change = Callable[[Float[Array, "T S"], Float[Array, "T S"]], Float[Array, "T S"]]


def _keep(entries, coefficients):
    """Return `entries`, the scores or weights, unchanged."""
    return entries


def _rectify_and_multiply(scores, coefficients):
    """Return ReLU(scores) * coefficients, as in equation 6 of the paper."""
    return jax.nn.relu(scores) * coefficients


class Adjustment(NamedTuple):
    """Pair of functions that apply the coefficients f(w|i-j|) before and after the softmax.

    Attributes:
      scores: Function of (scores, coefficients) that returns the logits of the softmax.
      weights: Function of (softmax of the logits, coefficients) that returns the attention weights.
    """

    scores: Change = _keep
    weights: Change = _keep


early_multiply = Adjustment(scores=_rectify_and_multiply)
early_add = Adjustment(scores=operator.add)
late_multiply = Adjustment(weights=operator.mul)
late_add = Adjustment(weights=operator.add)

ADJUSTMENTS: dict[str, Adjustment] = {
    "early_multiply": early_multiply,
    "early_add": early_add,
    "late_multiply": late_multiply,
    "late_add": late_add,
}


@variant
class DistanceAware(Variant):
    """Distance-aware attention, by default softmax(ReLU(QKᵀ/√H) f(w|i-j|)) V.

    Attributes:
      weight: Distance weight w of each head, which multiplies the distances |i-j|. Heads with w > 0
        prefer distant keys, heads with w < 0 prefer near keys.
      shape: Parameters of `mapping` that determine the shape of its curve, with a leading head
        axis: for example the array v of `learnable_sigmoid`. Pass () for a mapping without
        parameters.
      mapping: Function f of (w|i-j|, shape), or its name in `MAPPINGS`. Define your own function at
        module level to avoid retracing.
      adjust: Adjustment that multiplies or adds f(w|i-j|), before or after the softmax:
        `early_multiply`, `early_add`, `late_multiply` or `late_add`, or its name.
      tolerance: Largest error of a score that the fused kernels may cause by treating f as constant
        at large distances, where f is saturated. 0 allows this only where f is constant in float32.
        None lets the kernels choose. "reference" and "xla" evaluate f at all distances.
      score_bias: Number c of each head that is added to ReLU(QKᵀ/√H) before the multiplication by
        f. It is allowed with `early_multiply` only. None adds nothing.
    """

    weight: Float[Array, " #N"]
    shape: PyTree[Float[Array, "_ ..."]]
    mapping: MappingFunction | str = static(learnable_sigmoid)
    adjust: Adjustment | str = static(early_multiply)
    tolerance: float | None = static(None)
    score_bias: Float[Array, " #N"] | None = None

    def __post_init__(self):
        object.__setattr__(self, "mapping", find_mapping(self.mapping))
        names = ", ".join(ADJUSTMENTS)
        if isinstance(self.adjust, str):
            if self.adjust not in ADJUSTMENTS:
                raise ValueError(f"adjust must be one of {names}; got {self.adjust!r}.")
            object.__setattr__(self, "adjust", ADJUSTMENTS[self.adjust])
        elif not isinstance(self.adjust, Adjustment):
            raise TypeError(
                f"adjust must be an Adjustment, or one of {names}; got {self.adjust!r}."
            )
        check_tolerance(self.tolerance)
        if self.score_bias is not None and self.adjust != early_multiply:
            raise ValueError("score_bias must be None unless adjust is early_multiply.")

    def coefficients(self, relative_positions: Int[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Return f(w|i-j|) for relative positions i-j. The variant must be that of one head."""
        x = self.weight * jnp.abs(relative_positions).astype(self.weight.dtype)
        assert not isinstance(self.mapping, str), "__post_init__ replaces a name by its function"
        coefficients = self.mapping(x, self.shape)
        if jnp.shape(coefficients) != x.shape:
            raise ValueError(
                f"DistanceAware.mapping must return one coefficient per distance, shape {x.shape}; "
                f"got {jnp.shape(coefficients)}."
            )
        check_real("The result of DistanceAware.mapping", jnp.asarray(coefficients))
        return coefficients

    def scores(self, query, key, relative_positions, scale):
        scores = scale * product(query, key)
        if self.score_bias is None:
            return self._apply(self.adjust.scores, scores, relative_positions)
        return self._apply(operator.mul, jax.nn.relu(scores) + self.score_bias, relative_positions)

    @property
    def adjusts_weights(self):
        return self.adjust.weights is not _keep

    def adjust_weights(self, weights, relative_positions):
        return self._apply(self.adjust.weights, weights, relative_positions)

    def check(self, heads, width, value_width):
        check_one_number_per_head("DistanceAware.weight", self.weight, heads)
        if self.score_bias is not None:
            check_one_number_per_head("DistanceAware.score_bias", self.score_bias, heads)
        if self.mapping not in MAPPING_PARAMETER_NAMES:
            super().check(heads, width, value_width)
            return
        names = MAPPING_PARAMETER_NAMES[self.mapping]
        arrays = jax.tree.leaves(self.shape) if len(names) != 1 else [self.shape]
        if len(arrays) != len(names):
            wanted = f"({', '.join(names)})" if names else "(), without arrays"
            raise ValueError(
                f"DistanceAware.shape must be {wanted}, for the mapping {self.mapping.__name__}; "
                f"got {self.shape!r}."
            )
        for name, array in zip(names, arrays, strict=True):
            check_one_number_per_head(
                "DistanceAware.shape", array, heads, f", the {name} of each head"
            )
        if self.mapping is learnable_sigmoid:
            _check_exponents(self.shape)

    def _apply(self, change, entries, relative_positions):
        """Return change(entries, f(w|i-j|)), for one of the two functions of an `Adjustment`.

        If the queries are computed in blocks, f is not stored for the backward pass. Otherwise the
        compiler may store it: `prevent_cse=False` allows this.

        Args:
          change: Function of (entries, coefficients).
          entries: Scores or weights, shape (T, S).
          relative_positions: Position of query i minus the position of key j, shape (T, S).
        """
        if change is _keep:
            return entries
        recomputed = jax.checkpoint(
            lambda self, entries: change(entries, self.coefficients(relative_positions)),
            prevent_cse=False,
        )
        return recomputed(self, entries)


def _check_exponents(v: Any) -> None:
    """Raise ValueError if v is so large that the coefficients, up to 1 + eᵛ, may overflow.

    A traced v is not checked, because its value is unknown: `learnable_sigmoid` clamps it.
    """
    if isinstance(v, jax.core.Tracer):
        return
    largest = largest_exponent(jnp.asarray(v))
    if np.any(np.asarray(v) > largest):
        raise ValueError(
            f"DistanceAware.shape, the v of each head, must be at most {largest:.0f} in "
            f"{v.dtype}, because the coefficients reach 1 + exp(v); got {float(np.max(v))}."
        )
