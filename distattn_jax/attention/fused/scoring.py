"""Scores of a tile of attention, and their derivatives.

A scoring turns products q · k into scores. In the backward pass it turns gradients of the scores
into gradients of the products and of its coefficients. Every operation is elementwise.

A score times `score_multiplier` is the logarithm to base 2 of an unnormalised weight. The kernels
multiply a score by `score_multiplier` in the instruction that also subtracts the maximum or the
logsumexp.
"""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array

from distattn_jax.attention.fused.distance_functions import (
    LOG2E,
    Coefficients,
    DistanceFunction,
    Distances,
    FunctionCotangent,
)
from distattn_jax.attention.fused.runs import Distinctions
from distattn_jax.attention.fused.table_scoring import TableScoring
from distattn_jax.attention.fused.tile_scores import MASKED_SCORE, CoefficientGradients, TileScores


@dataclasses.dataclass(frozen=True)
class DotProductScoring:
    """Dot-product attention: the score is scale q · k.

    Attributes:
      scale: Factor of the product q · k.
    """

    scale: float
    distinctions = Distinctions()
    is_dot_product = True
    has_relation_products = False
    has_relation_weights = False
    has_positions = False
    summed_gradients = 0
    gradient_names = ()

    def score_multiplier(self, coefficients: None, *, is_far: bool = False) -> float:
        """Return the factor that turns scores into base-2 logarithms of unnormalised weights."""
        return self.scale * LOG2E

    def gradient_multiplier(self, coefficients: None) -> float:
        """Return the factor by which kernels multiply all gradients after the last tile."""
        return self.scale

    def score(
        self,
        products: Array,
        distances: Distances | None,
        coefficients: None,
        *,
        for_gradient: bool,
    ) -> TileScores:
        """Return the scores of a tile."""
        return TileScores(products, products)

    def product_gradient(
        self, score_gradient: Array, tile_scores: TileScores, coefficients: None
    ) -> Array:
        """Return the gradient of the products q · k, computed from the gradient of the scores."""
        return score_gradient

    def coefficient_gradients(
        self,
        score_gradient: Array,
        product_gradient: Array,
        distances: Distances | None,
        tile_scores: TileScores,
        coefficients: None,
    ) -> CoefficientGradients:
        """Return an empty tuple, because the dot product has no coefficients."""
        return ()


@dataclasses.dataclass(frozen=True)
class DistanceScoring:
    """Distance-aware attention with a function f of the distance |i - j|.

    The score is height ReLU(q · k) f, or scale q · k + height f if `is_additive`. The height is one
    of the coefficients and includes log2(e). If `is_additive` is False, the height also includes
    the scale.

    Attributes:
      scale: Factor of the product q · k.
      function: Distance function f.
      is_additive: If True, height f is added to scale q · k. If False, ReLU(q · k) is multiplied by
        height f.
    """

    scale: float
    function: DistanceFunction
    is_additive: bool
    distinctions = Distinctions(far=True)
    is_dot_product = False
    gradient_names = ("slope", "shift", "log_height")
    has_relation_products = False
    has_relation_weights = False
    has_positions = False

    @property
    def summed_gradients(self) -> int:
        """Number of coefficient gradients that kernels sum over all tiles.

        These are the gradients of slope and shift and, if `is_additive`, also the gradient of the
        logarithm of the height. If `is_additive` is False, a score is proportional to the height
        and to q. The gradient of the logarithm of the height is then Σ_i q_i · dq_i, where dq_i is
        the gradient of query i. This needs no sum over tiles.
        """
        return 3 if self.is_additive else 2

    def score_multiplier(
        self, coefficients: Coefficients, *, is_far: bool = False
    ) -> Array | float:
        """Return the factor that turns scores into base-2 logarithms of unnormalised weights.

        Args:
          coefficients: Coefficients of the head.
          is_far: True for a far tile, in which f is constant. If scores are multiplied by f and f
            is never negative, the factor of a far tile includes f.
        """
        if self.is_additive:
            return 1.0
        if is_far and self.function.is_nonnegative:
            return coefficients.height * coefficients.far
        return coefficients.height

    def gradient_multiplier(self, coefficients: Coefficients) -> Array | float:
        """Return the factor by which kernels multiply all gradients after the last tile."""
        return self.score_multiplier(coefficients) / LOG2E

    def evaluate(self, distances: Distances, coefficients: Coefficients) -> Array:
        """Return the value of the distance function f for each entry of a tile."""
        if distances.stored is not None:
            return distances.stored()
        return distances.share_diagonals(self.function.evaluate(distances, coefficients))

    def score(
        self,
        products: Array,
        distances: Distances | None,
        coefficients: Coefficients,
        *,
        for_gradient: bool,
    ) -> TileScores:
        """Return the scores of a tile.

        Args:
          products: Products q · k.
          distances: Distances of the entries. None means a far tile, in which f is constant.
          coefficients: Coefficients of the head.
          for_gradient: If True, keep f for the gradient of the scores.
        """
        is_far = distances is None
        if self.is_additive:
            f = coefficients.far if distances is None else self.evaluate(distances, coefficients)
            scores = products * (self.scale * LOG2E) + f * coefficients.height
            return TileScores(scores, products, None if is_far else f, is_far)
        if distances is None:
            scores = jnp.maximum(products, 0.0)
            if not self.function.is_nonnegative:
                scores = scores * coefficients.far
            return TileScores(scores, products, is_far=True)
        f = self.evaluate(distances, coefficients)
        if not for_gradient:
            return TileScores(jnp.maximum(products, 0.0) * f, products)
        f = jnp.where(products > 0, f, 0.0)  # applies the ReLU to the gradient as well
        return TileScores(products * f, products, f)

    def score_derivatives(self, products: Array, coefficients: Coefficients) -> TileScores | None:
        """Return the scores of a far tile for a kernel that needs only the gradient of products.

        The derivative of a score by its product is f if the product is positive, otherwise 0.
        Entries with derivative 0 get the score -1e30, so that their weights are 0. The kernel
        multiplies all other weights by f. This takes fewer operations than `score` and
        `product_gradient`. The result is None if f may be negative, because it has no logarithm.

        Args:
          products: Products q · k.
          coefficients: Coefficients of the head.
        """
        if self.is_additive or not self.function.is_nonnegative:
            return None
        scores = jnp.where(products > 0, products, MASKED_SCORE)
        return TileScores(scores, products, is_far=True, log_derivative=jnp.log2(coefficients.far))

    def product_gradient(
        self, score_gradient: Array, tile_scores: TileScores, coefficients: Coefficients
    ) -> Array:
        """Return the gradient of the products q · k, computed from the gradient of the scores."""
        if self.is_additive:
            return score_gradient * (self.scale * LOG2E)
        if tile_scores.log_derivative is not None:
            return score_gradient
        if tile_scores.f is None:
            return score_gradient * jnp.where(tile_scores.products > 0, coefficients.far, 0.0)
        return score_gradient * tile_scores.f

    def coefficient_gradients(
        self,
        score_gradient: Array,
        product_gradient: Array,
        distances: Distances | None,
        tile_scores: TileScores,
        coefficients: Coefficients,
    ) -> CoefficientGradients:
        """Return the terms of the coefficient gradients, before the sum over the tile.

        Returns one array of the shape of the tile for the slope, a second array for the shift and,
        if `is_additive` is True, a third array for the logarithm of the height. The gradient of a
        coefficient is the sum of its array over all tiles. None stands for an array of zeros.

        Args:
          score_gradient: Gradient of the scores of the tile.
          product_gradient: Gradient of the products q · k of the tile.
          distances: Distances of the entries. None means a far tile, in which f is constant.
          tile_scores: Scores of the tile.
          coefficients: Coefficients of the head.
        """
        f = coefficients.far if tile_scores.f is None else tile_scores.f
        if self.is_additive:
            cotangent = FunctionCotangent(
                of_value=lambda: score_gradient * coefficients.height,
                of_log=lambda: score_gradient * coefficients.height * f,
            )
        else:
            cotangent = FunctionCotangent(
                of_value=lambda: score_gradient * jnp.maximum(tile_scores.products, 0.0),
                of_log=lambda: product_gradient * tile_scores.products,
            )
        if distances is None:
            gradients: CoefficientGradients = (None, None)
        else:
            gradients = self.function.gradients(cotangent, distances, f, coefficients)
        return (*gradients, cotangent.of_log()) if self.is_additive else gradients


@dataclasses.dataclass(frozen=True)
class RelationScoring(DotProductScoring):
    """Relative position attention: the score is scale (q · k + P[i, r]) for the relation r.

    See `relations`. The kernels start the sum of each product q · k at P[i, r], so that scores and
    their gradients have the form of the dot product.

    Attributes:
      clip_distance: The distance k at which relations are clipped, at least 1.
      has_relation_products: True if there is an array P.
      has_relation_weights: True if the relation weights W are computed.
    """

    clip_distance: int
    has_relation_products: bool
    has_relation_weights: bool
    distinctions = Distinctions(far=True, far_sides=True)
    is_dot_product = False


@dataclasses.dataclass(frozen=True)
class PositionScoring(DotProductScoring):
    """Transformer-XL attention: the score is scale (q · k + p · R[i - j]).

    R contains one vector per relative position i - j. The kernels add p · R[i - j] to each product
    q · k, so that scores and their gradients have the form of the dot product. The queries p differ
    from the queries q.
    """

    is_dot_product = False
    has_positions = True


Scoring = DotProductScoring | DistanceScoring | TableScoring | RelationScoring | PositionScoring
