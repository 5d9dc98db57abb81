"""Distance-aware attention (Wu, Wu and Huang 2021, "DA-Transformer", eq. 5, 6; sections 4.3, 4.4).

With P = QKᵀ/√H, R_ij = |i - j| and F = f(wR), one w and one `shape` per head:

    early_multiply   softmax(ReLU(P) F)      eq. 6, the paper's choice
    early_add        softmax(P + F)
    late_multiply    softmax(P) F            rows no longer sum to 1
    late_add         softmax(P) + F          rows no longer sum to 1

w > 0 prefers distant keys, w < 0 near ones. A local head does not remove what is far: there F is 0,
the score 0, the weight e⁰ before normalisation (the paper's footnote 1). It averages distant keys.

Masks come after the adjustment: -inf put in before the ReLU would become 0, a weight of e⁰.

Cost: T S evaluations of f more than dot-product attention, and 2 parameters per head.
"""

import math
import operator
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from distattn_jax.attention.variants.mappings import Mapping, learnable_sigmoid
from distattn_jax.attention.variants.variant import Variant, product, static, variant

Change = Callable[[Float[Array, "T S"], Float[Array, "T S"]], Float[Array, "T S"]]


def _keep(entries, coefficient):
    return entries


def _rectify_and_multiply(scores, coefficient):
    return jax.nn.relu(scores) * coefficient


class Adjustment(NamedTuple):
    """How the coefficients change the scores before the softmax, or the weights after it."""

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
    """softmax(ReLU(QKᵀ/√H) f(w|i-j|)) V, and its ablations.

    Attributes:
      weight: w, how a head weighs distance.
      shape: what `mapping` takes besides: v for `learnable_sigmoid`; see `mappings`.
      mapping: f, a module-level function of (wR, shape).
      adjust: where the coefficients act: one of the four above.
      tolerance: largest change of a score that an implementation may make by not evaluating f where
        it has saturated; None lets it choose by dtype. `reference` and `xla` evaluate f everywhere.
    """

    weight: Float[Array, " N"]
    shape: PyTree[Float[Array, " _"]]
    mapping: Mapping = static(learnable_sigmoid)
    adjust: Adjustment = static(early_multiply)
    tolerance: float | None = static(None)

    def __post_init__(self):
        if self.tolerance is not None and not self.tolerance >= 0:
            raise ValueError(f"tolerance must be None or at least 0; got {self.tolerance}.")

    def coefficient(
        self, relative_positions: Int[Array, "*relative_positions"]
    ) -> Float[Array, "*relative_positions"]:
        """F = f(w|relative_positions|) of one head."""
        return self.mapping(
            self.weight * jnp.abs(relative_positions).astype(self.weight.dtype), self.shape
        )

    def scores(self, query, key, relative_positions):
        scores = product(query, key) / math.sqrt(query.shape[-1])
        return self._changed(self.adjust.scores, scores, relative_positions)

    def adjust_weights(self, weights, relative_positions):
        return self._changed(self.adjust.weights, weights, relative_positions)

    def _changed(self, change, entries, relative_positions):
        """The coefficients are recomputed in the backward pass: f is cheaper than keeping a map."""
        if change is _keep:
            return entries
        recomputed = jax.checkpoint(
            lambda self, entries: change(entries, self.coefficient(relative_positions))
        )
        return recomputed(self, entries)
