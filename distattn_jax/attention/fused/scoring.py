"""Scores of a tile of attention, and their derivatives.

A scoring turns products q · k into scores. In the backward pass it turns gradients of the scores
into gradients of the products and of its coefficients. Every operation is elementwise.

A score times `score_multiplier` is the logarithm to base 2 of an unnormalised weight. The kernels
multiply a score by `score_multiplier` in the instruction that also subtracts the maximum or the
logsumexp.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from distattn_jax.attention.fused import forgetting, saturation
from distattn_jax.attention.fused.distance_functions import (
    LOG2E,
    Coefficients,
    DistanceFunction,
    Distances,
    FunctionCotangent,
    evaluate_at,
    unstack_coefficients,
)
from distattn_jax.attention.fused.operands import Operands
from distattn_jax.attention.fused.tile_runs import Distinctions

CoefficientGradients = tuple[Array | None, ...]  # entry by entry; None means zero
Radius = tuple[Int[Array, "B N *sides"], Bool[Array, "B N"]]
NO_FUNCTION: DistanceFunction | None = None
MASKED_SCORE = -1e30  # finite, because infinity minus infinity would be NaN


class TileScores(NamedTuple):
    """Scores of a tile, and the intermediate results from which their gradient is computed.

    Attributes:
      scores: Scores before the multiplication by `Scoring.score_multiplier`.
      products: Products q · k.
      f: Value of the distance function f for each entry, times the height of `DistanceScoring`.
        None if the gradient needs no f for each entry, for example in a far tile or for a dot
        product.
      derivative: Derivative of the score by the product q · k for each entry, if the product is
        rectified or multiplied by f, and the tile is not far. For example, the derivative of
        ReLU(q · k) f is 0 where q · k is not positive, otherwise f. It may also be f where the
        weight is 0.
      is_far: True if f is one constant in the whole tile, because every key of the tile is far from
        every query of the tile.
      log_derivative: Base-2 logarithm of the derivative of the scores with respect to the products
        q · k, one number for all entries of the tile. The kernel must multiply the weights by this
        derivative. Entries whose derivative is 0 have the score -1e30, so that their weight is 0.
        If None, the kernel calls `Scoring.product_gradient` instead.
    """

    scores: Array
    products: Array
    f: Array | None = None
    derivative: Array | None = None
    is_far: bool = False
    log_derivative: Array | None = None


ReadTable = Callable[[str], Array]  # loads the number of each entry of a tile, given a table's name
FACTOR_TABLE, BIAS_TABLE = "factor_table", "bias_table"  # fields of `Operands`


@dataclasses.dataclass(frozen=True)
class Scoring:
    """Base class of scorings: functions from products q · k to scores.

    The attributes tell the kernels which inputs, outputs and loops a scoring needs. Their default
    values describe dot-product attention, whose score is scale q · k. A subclass can make an
    attribute a dataclass field. It then writes `dataclasses.field()`, so that the field has no
    default.

    Attributes:
      scale: Factor of the product q · k.
      is_dot_product: True if the score is scale q · k, and nothing else.
      distinctions: Differences between tiles that force the kernels to use separate loops.
      function: Distance function f, which kernels compute from the coefficients of a head. None if
        the scoring has no such function.
      is_additive: False if ReLU(q · k) is multiplied by f. True if f is added, or if there is no f.
      table_names: Names of the tables of functions of the relative position that the kernels read:
        see `Operands.factor_table` and `Operands.bias_table`. The kernel `query_gradient` also
        returns the gradients of these tables.
      clip_distance: The distance k at which relations are clipped. 0 means no relations.
      has_relation_products: True if the kernels add P[i, r] to q · k, where r is the relation of
        query i and key j: see `relations`.
      has_relation_weights: True if the forward kernel returns W[i, r], the sum of the weights of
        all keys that have relation r to query i.
      multiplies_tables: True if the kernels multiply the tables of relations themselves, so that P
        and W are no arrays of the call.
      has_positions: True if kernels add products of position queries and position vectors to q · k:
        see `PositionScoring`.
      gradient_names: Names of the outputs of the kernel `query_gradient` that contain gradients of
        coefficients.
    """

    scale: float
    is_dot_product = False
    distinctions = Distinctions()
    function = NO_FUNCTION
    is_additive = True
    clip_distance = 0
    has_relation_products = False
    has_relation_weights = False
    multiplies_tables = False
    has_positions = False

    @property
    def gradient_names(self) -> tuple[str, ...]:
        return ()

    @property
    def table_names(self) -> tuple[str, ...]:
        return ()

    @property
    def summed_gradients(self) -> int:
        """Number of coefficient gradients that a kernel sums tile by tile.

        These are the first ones in `gradient_names`.
        """
        return len(self.gradient_names)

    def read_positions(
        self, read_distances: Callable[[], Distances], read_table: ReadTable, *, is_far: bool
    ) -> Any:
        """Return the argument `positions` of the method `score`, or None if `score` needs none.

        Args:
          read_distances: Returns the distances of the tile.
          read_table: Returns one number for each entry of the tile, from the table of this name.
          is_far: True for a far tile, in which f is constant.
        """
        return None

    def score_multiplier(self, coefficients: Any, *, is_far: bool = False) -> Array | float:
        """Return the factor that turns scores into base-2 logarithms of unnormalised weights.

        Args:
          coefficients: Coefficients of the head, or None if the scoring has no distance function.
          is_far: True for a far tile, in which f is constant. If scores are multiplied by f and f
            is never negative, the factor of a far tile includes f.
        """
        return self.scale * LOG2E

    def gradient_multiplier(self, coefficients: Any) -> Array | float:
        """Return the factor by which kernels multiply all sums of gradients after the last tile."""
        return self.scale

    def score(
        self, products: Array, positions: Any, coefficients: Any, *, for_gradient: bool
    ) -> TileScores:
        """Return the scores of a tile.

        Args:
          products: Products q · k.
          positions: Result of the method `read_positions`: the distances of the tile, a function
            that reads a table, or None if the scores of the tile do not depend on positions.
          coefficients: Coefficients of the head, or None if the scoring has no distance function.
          for_gradient: If True, keep f for the gradient of the scores.
        """
        return TileScores(products, products)

    def score_derivatives(
        self, products: Array, positions: Any, coefficients: Any
    ) -> TileScores | None:
        """Return scores from which the gradient of q · k takes fewer operations.

        The result is for kernels that use the weights only for the gradient of q · k. In a far
        tile, it sets `TileScores.log_derivative`. If the result is None, the kernel must call
        `score` instead.

        Args:
          products: Products q · k.
          positions: Result of the method `read_positions`.
          coefficients: Coefficients of the head, or None if the scoring has no distance function.
        """
        return None

    def score_zeros(self, read_table: ReadTable) -> Array | None:
        """Return the scores of a tile whose products q · k are treated as 0. None means zeros.

        Args:
          read_table: Returns one number for each entry of the tile, from the table of this name.
        """
        return None

    def product_gradient(
        self, score_gradient: Array, tile_scores: TileScores, coefficients: Any
    ) -> Array:
        """Return the gradient of the products q · k, computed from the gradient of the scores."""
        return score_gradient

    def coefficient_gradients(
        self,
        score_gradient: Array,
        product_gradient: Array,
        positions: Any,
        tile_scores: TileScores,
        coefficients: Any,
    ) -> CoefficientGradients:
        """Return the contribution of each entry of a tile to the gradients of the coefficients.

        The result has one array of the shape of the tile for each of the first `summed_gradients`
        names in `gradient_names`. None stands for an array of zeros. The sum of an array over all
        tiles of a head is the gradient of one coefficient, except for a part of the gradient of the
        shift: see `combine_gradients`.
        """
        return ()

    def table_gradients(self, score_gradient: Array, tile_scores: TileScores) -> dict[str, Array]:
        """Return the contribution of each entry of a tile to the gradients of the tables, by name.

        The names are `table_names`. Kernels add up the contributions along the diagonals of the
        score map, because all entries of a diagonal have the same number of a table.
        """
        return {}

    def combine_gradients(
        self, sums: Float[Array, "C 1 N"], coefficients: Float[Array, "1 N C"]
    ) -> Float[Array, "1 N C"]:
        """Return the gradient of `Operands.coefficients`.

        Args:
          sums: Outputs of the kernel `query_gradient` in the order of `gradient_names`, each summed
            over all examples and queries.
          coefficients: Coefficients of all heads.
        """
        return jnp.moveaxis(sums, 0, -1)

    def find_radius(self, operands: Operands, tolerance: float) -> Radius | None:
        """Return the saturation radius of each head, and a mask of heads, or None.

        At distances of at least the radius, kernels treat the distance function f as constant: see
        `saturation`. The mask is True for heads whose products q · k are all treated as 0 beyond
        the radius. If the result is None, kernels evaluate f at all distances.

        Args:
          operands: Arrays of the call.
          tolerance: Largest allowed error of a score.
        """
        return None

    def find_reach(self, operands: Operands, tolerance: float) -> Int[Array, "B N 2"] | None:
        """Return the largest distance of a key that kernels may not skip, for each side, or None.

        See `forgetting`. If the result is None, kernels skip no keys because of their distance.

        Args:
          operands: Arrays of the call.
          tolerance: Largest allowed sum of the weights of all skipped keys of a query.
        """
        return None

    def largest_factor(self, operands: Operands) -> Float[Array, "#B N"] | float | None:
        """Return an upper bound of |score - bias| / |q · k| for each head, or None if unknown.

        Here the score is the base-2 logarithm of an unnormalised weight. The bias is the score for
        q · k = 0.
        """
        return None

    def largest_bias(self, operands: Operands) -> Float[Array, "#B N"] | float:
        """Return an upper bound of the absolute score for q · k = 0, for each head.

        Here the score is the base-2 logarithm of an unnormalised weight. The result counts only if
        `largest_factor` is not None.
        """
        return 0.0


@dataclasses.dataclass(frozen=True)
class DotProductScoring(Scoring):
    """Dot-product attention: the score is scale q · k."""

    is_dot_product = True

    def largest_factor(self, operands):
        return abs(self.score_multiplier(None))


@dataclasses.dataclass(frozen=True)
class DistanceScoring(Scoring):
    """Distance-aware attention with a function f of the distance |i - j|.

    The score to base 2 is height f ReLU(q · k). If `is_additive`, it is log2(e) scale
    q · k + height f. The height is one of the coefficients of a head. It includes the factor
    log2(e) and, if `is_additive` is False, also the scale.

    Attributes:
      function: Distance function f.
      is_additive: If True, height f is added to the scaled product q · k. If False, ReLU(q · k) is
        multiplied by height f.
    """

    function: DistanceFunction = dataclasses.field()
    is_additive: bool = dataclasses.field()
    distinctions = Distinctions(far=True)
    gradient_names = ("slope", "shift", "log_height")

    @property
    def summed_gradients(self) -> int:
        """Number of coefficient gradients that a kernel sums tile by tile.

        These are the gradients of slope and shift and, if `is_additive`, also the gradient of the
        logarithm of the height. If `is_additive` is False, a score is proportional to the height
        and to q. The gradient of the logarithm of the height is then Σ_i q_i · dq_i, where dq_i is
        the gradient of query i. This needs no sum over tiles.
        """
        return 3 if self.is_additive else 2

    def read_positions(self, read_distances, read_table, *, is_far):
        return None if is_far else read_distances()

    def score_multiplier(self, coefficients, *, is_far=False):
        if is_far and not self.is_additive and self.function.is_nonnegative:
            return coefficients.scaled_far
        return 1.0

    def gradient_multiplier(self, coefficients):
        return 1 / LOG2E

    def evaluate(self, distances: Distances, coefficients: Coefficients) -> Array:
        """Return height f for each entry of a tile."""
        if distances.stored is not None:
            return distances.stored()
        f = self.function.evaluate(distances, coefficients)
        return distances.share_diagonals(f * coefficients.height)

    def score(self, products, distances, coefficients, *, for_gradient):
        is_far = distances is None
        if self.is_additive:
            f = coefficients.scaled_far if is_far else self.evaluate(distances, coefficients)
            scores = products * (self.scale * LOG2E) + f
            return TileScores(scores, products, None if is_far else f, is_far=is_far)
        if distances is None:
            scores = jnp.maximum(products, 0.0)
            if not self.function.is_nonnegative:
                scores = scores * coefficients.scaled_far
            return TileScores(scores, products, is_far=True)
        f = self.evaluate(distances, coefficients)
        if not for_gradient:
            return TileScores(jnp.maximum(products, 0.0) * f, products)
        derivative = jnp.where(products > 0, f, 0.0)
        return TileScores(products * derivative, products, f, derivative)

    def score_derivatives(self, products, distances, coefficients):
        """Return scores from which a kernel computes weight times derivative.

        The derivative of a score by its product q · k is height f if the product is positive, and 0
        otherwise. The returned score is about -1e30 where the product is not positive, so that the
        weight is 0 there, unless f is 0. This takes fewer operations than `score` and
        `product_gradient`.

        In a far tile, f is one constant. The kernel subtracts log(height f) from the logsumexp,
        which multiplies all weights by height f.

        The result is None if f is added to the product, or if f may be negative, because the
        logarithm would not exist.
        """
        if self.is_additive or not self.function.is_nonnegative:
            return None
        scores = jnp.where(products > 0, products, MASKED_SCORE)
        if distances is not None:
            f = self.evaluate(distances, coefficients)
            return TileScores(scores * f, products, f, f)
        log_derivative = jnp.log2(coefficients.scaled_far)
        return TileScores(scores, products, is_far=True, log_derivative=log_derivative)

    def product_gradient(self, score_gradient, tile_scores, coefficients):
        if self.is_additive:
            return score_gradient * (self.scale * LOG2E)
        if tile_scores.log_derivative is not None:
            return score_gradient
        if tile_scores.derivative is None:
            factor = coefficients.scaled_far
            return score_gradient * jnp.where(tile_scores.products > 0, factor, 0.0)
        return score_gradient * tile_scores.derivative

    def coefficient_gradients(
        self, score_gradient, product_gradient, distances, tile_scores, coefficients
    ):
        if distances is None:
            # f is one constant. Only its height has a gradient, of which the shift has a share.
            far = score_gradient * coefficients.scaled_far if self.is_additive else None
            return (None, None, far) if self.is_additive else (None, None)
        height, scaled_f = coefficients.height, tile_scores.f
        if self.is_additive:
            cotangent = FunctionCotangent(
                of_value=lambda: distances.sum_diagonals(score_gradient) * height,
                of_log=lambda: distances.sum_diagonals(score_gradient) * scaled_f,
            )
        else:
            positive = jnp.maximum(tile_scores.products, 0.0)
            cotangent = FunctionCotangent(
                of_value=lambda: distances.sum_diagonals(score_gradient * positive) * height,
                of_log=lambda: distances.sum_diagonals(product_gradient * tile_scores.products),
            )
        f = scaled_f * jnp.where(height == 0, 0.0, 1 / height)
        gradients = self.function.gradients(cotangent, distances, f, coefficients)
        return (*gradients, cotangent.of_log()) if self.is_additive else gradients

    def combine_gradients(self, sums, coefficients):
        """Return the gradients of all coefficients.

        The gradient of the height is computed from the gradient of its logarithm. A share of the
        latter belongs to the gradient of the shift: see `select_shift_share`. The other gradients
        are 0, because these coefficients are treated as constants.
        """
        slope, shift, log_height = sums
        given = unstack_coefficients(coefficients)
        shift += given.shift_share * log_height
        height = log_height / given.height
        zero = jnp.zeros_like(height)
        return jnp.stack(Coefficients(slope, shift, height, zero, zero), axis=-1)

    def find_radius(self, operands, tolerance):
        return saturation.find_function_radius(
            self.function, operands, tolerance, is_additive=self.is_additive
        )

    def largest_factor(self, operands):
        if self.is_additive:
            return None
        longest = operands.query.shape[1] + operands.key.shape[1]
        distance = jnp.arange(longest, dtype=jnp.float32)[None, None, :]
        f = evaluate_at(self.function, distance, operands.coefficients)
        coefficients = unstack_coefficients(operands.coefficients)
        # The far value of f belongs to all distances beyond the longest one.
        largest = jnp.maximum(jnp.abs(f).max(axis=-1), jnp.abs(coefficients.far))
        return largest * jnp.abs(coefficients.height)


@dataclasses.dataclass(frozen=True)
class TableScoring(Scoring):
    """Attention with any functions of the relative position i - j, stored in tables.

    The score to base 2 is φ(q · k) F + G, where φ is ReLU or the identity. F is
    `Operands.factor_table`, which includes the scale and log2(e). G is `Operands.bias_table`, which
    includes log2(e). Without a table of factors, F is scale log2(e). Without a table of biases, G
    is 0.

    Attributes:
      has_factor: True if there is a table of factors F.
      has_bias: True if there is a table of biases G.
      is_rectified: True if φ is ReLU, False if φ is the identity.
    """

    has_factor: bool = dataclasses.field()
    has_bias: bool = dataclasses.field()
    is_rectified: bool = dataclasses.field()

    @property
    def distinctions(self) -> Distinctions:  # type: ignore[override]
        return Distinctions(zero_scores=self.has_bias)

    @property
    def table_names(self) -> tuple[str, ...]:
        return (FACTOR_TABLE,) * self.has_factor + (BIAS_TABLE,) * self.has_bias

    def read_positions(self, read_distances, read_table, *, is_far):
        return read_table  # Reading a constant from a table takes as long as reading f.

    def score_multiplier(self, coefficients, *, is_far=False):
        return 1.0

    def gradient_multiplier(self, coefficients):
        return 1 / LOG2E

    def score(self, products, read_table, coefficients, *, for_gradient):
        factor = read_table(FACTOR_TABLE) if self.has_factor else self.scale * LOG2E
        derivative = factor if self.has_factor else None
        if self.is_rectified and for_gradient:
            derivative = jnp.where(products > 0, factor, 0.0)
            scores = products * derivative
        else:
            scores = self._rectify(products) * factor
        if self.has_bias:
            scores += read_table(BIAS_TABLE)
        return TileScores(scores, products, derivative=derivative)

    def score_zeros(self, read_table):
        return read_table(BIAS_TABLE) if self.has_bias else None

    def product_gradient(self, score_gradient, tile_scores, coefficients):
        factor, derivative = self.scale * LOG2E, tile_scores.derivative
        return score_gradient * (factor if derivative is None else derivative)

    def table_gradients(self, score_gradient, tile_scores):
        gradients = {}
        if self.has_factor:
            gradients[FACTOR_TABLE] = score_gradient * self._rectify(tile_scores.products)
        if self.has_bias:
            gradients[BIAS_TABLE] = score_gradient
        return gradients

    def find_radius(self, operands, tolerance):
        return saturation.find_table_radius(operands, tolerance) if self.has_factor else None

    def find_reach(self, operands, tolerance):
        return forgetting.find_reach(
            operands, tolerance, scale=self.scale, is_rectified=self.is_rectified
        )

    def largest_factor(self, operands):
        factor = operands.factor_table
        return self.scale * LOG2E if factor is None else jnp.abs(factor).max(axis=-1)

    def largest_bias(self, operands):
        bias = operands.bias_table
        return 0.0 if bias is None else jnp.abs(bias).max(axis=-1)

    def _rectify(self, products: Array) -> Array:
        """Return φ(q · k) for each product q · k."""
        return jnp.maximum(products, 0.0) if self.is_rectified else products


@dataclasses.dataclass(frozen=True)
class RelationScoring(Scoring):
    """Relative position attention: the score is scale (q_i · k_j + P[i, r]).

    r is the relation of query i and key j: their relative position, clipped at the distance k.
    `relations` defines r and the relation products P. The kernels add P[i, r] to the products
    before they call this scoring, so that scores and their gradients have the form of the dot
    product.

    Attributes:
      clip_distance: The distance k at which relations are clipped, at least 1.
      has_relation_products: True if there is an array P. If False, the score is scale (q_i · k_j).
      has_relation_weights: True if the forward kernel returns W[i, r], the sum of the weights of
        all keys that have relation r to query i.
      multiplies_tables: True if the kernels multiply the tables of vectors themselves. P and W are
        then no arrays of the call.
    """

    clip_distance: int = dataclasses.field()
    has_relation_products: bool = dataclasses.field()
    has_relation_weights: bool = dataclasses.field()
    multiplies_tables: bool = False
    distinctions = Distinctions(far=True, far_sides=True)


@dataclasses.dataclass(frozen=True)
class PositionScoring(Scoring):
    """Transformer-XL attention: the score is scale (q_i · k_j + p_i · R[i - j]).

    R contains one vector per relative position i - j: `Operands.positions`. p contains a second
    vector for each query, which differs from q: `Operands.position_query`. The kernels add
    p_i · R[i - j] to each product before they call this scoring, so that scores and their gradients
    have the form of the dot product.
    """

    has_positions = True
