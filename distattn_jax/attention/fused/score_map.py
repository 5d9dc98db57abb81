"""Types `ScoreMap` and `TileView`, which the kernels for all types of chips share.

The score map of a head is the matrix of the scores of all queries and keys. `ScoreMap` says how a
kernel computes and masks the scores. `TileView` holds the scores of one tile.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from distattn_jax.attention.fused.distance_functions import Coefficients, Distances
from distattn_jax.attention.fused.kernels import Plan
from distattn_jax.attention.fused.operands import Operands
from distattn_jax.attention.fused.scoring import (
    MASKED_SCORE,
    CoefficientGradients,
    ReadTable,
    Scoring,
    TileScores,
)
from distattn_jax.attention.fused.visible_columns import Window

Scalars = dict[str, tuple[jax.Array, ...]]  # of one example and head: see `_collect_scalars`


class ScoreMap(NamedTuple):
    """Static description of the score map of a kernel: scoring, masks and orientation.

    The score map of a head is the matrix of the scores of all queries and keys. Kernels compute it
    tile by tile, and never store the whole matrix.

    Attributes:
      scoring: Function from products q · k to scores.
      window: Largest number of positions by which a visible key may be before and after a query.
      has_key_mask: True if there is a mask with one number for each key. This mask also hides the
        padded keys.
      has_segments: True if a key is visible only to queries of its own segment.
      has_mask: True if there is a mask with one number for each pair of a query and a key.
      has_dropout: If True, drop weights before they are multiplied by the values.
      is_transposed: If True, the rows are keys and the columns are queries. If False, the rows are
        queries and the columns are keys.
      has_moving_rows: True in the GPU kernel `position_gradient`. The rows are keys, but a block of
        this kernel consists of diagonals. Each tile of the block therefore has other rows.
      is_16_bit: True if queries, keys and values have 16 bits. Scores then need fewer digits than
        float32 has.
    """

    scoring: Scoring
    window: Window
    has_key_mask: bool
    has_segments: bool
    has_mask: bool
    has_dropout: bool
    is_transposed: bool
    has_moving_rows: bool = False
    is_16_bit: bool = False


def make_score_map(
    plan: Plan, operands: Operands, *, is_transposed: bool = False, has_moving_rows: bool = False
) -> ScoreMap:
    """Return the `ScoreMap` of a kernel.

    Args:
      plan: Scoring and window of the call.
      operands: Arrays of the call. They tell which masks exist: an absent mask is None.
      is_transposed: True if the rows of the score map are keys, False if they are queries.
      has_moving_rows: True for the GPU kernel `position_gradient`: see `ScoreMap`.
    """
    return ScoreMap(
        plan.scoring,
        plan.window,
        has_key_mask=operands.key_mask is not None,
        has_segments=operands.query_segments is not None,
        has_mask=operands.mask is not None,
        has_dropout=operands.dropout_words is not None,
        is_transposed=is_transposed,
        has_moving_rows=has_moving_rows,
        is_16_bit=operands.query.dtype.itemsize == 2,
    )


class Lengths(NamedTuple):
    """Lengths and position offset of one example.

    Attributes:
      query: Number of queries before the padding.
      key: Number of keys before the padding.
      offset: Position of query 0 minus the position of key 0.
    """

    query: jax.Array
    key: jax.Array
    offset: jax.Array


class TileView(NamedTuple):
    """Scores of one tile, with their distances and visibility mask.

    An entry of a tile is a pair of a query i and a key j.

    Attributes:
      scoring: Function from products q · k to scores.
      tile_scores: Scores, and the intermediate results for their gradient.
      positions: `Distances` of the entries, or a function that reads one number for each entry from
        a table of the scoring. None if the scores of the tile do not depend on positions.
      visible: Mask that is True for visible entries, or None if all entries are visible.
      coefficients: Coefficients of the distance function of the head. None if the scoring has no
        distance function.
    """

    scoring: Any
    tile_scores: TileScores
    positions: Distances | ReadTable | None
    visible: jax.Array | None
    coefficients: Coefficients | None

    @property
    def scores(self) -> jax.Array:
        """Scores before the multiplication by `score_multiplier`. Masked scores are -1e30."""
        if self.visible is None:
            return self.tile_scores.scores
        return jnp.where(self.visible, self.tile_scores.scores, MASKED_SCORE)

    @property
    def score_multiplier(self) -> Any:
        """Factor that turns scores into base-2 logarithms of unnormalised weights."""
        return self.scoring.score_multiplier(self.coefficients, is_far=self.tile_scores.is_far)

    @property
    def has_final_scores(self) -> bool:
        """True if the scores are base-2 logarithms of unnormalised weights: the multiplier is 1."""
        return isinstance(self.score_multiplier, float) and self.score_multiplier == 1.0

    @property
    def log_weights(self) -> jax.Array:
        """Base-2 logarithms of unnormalised weights. They are -1e30 for masked entries."""
        scores = self.tile_scores.scores * self.score_multiplier
        return scores if self.visible is None else jnp.where(self.visible, scores, MASKED_SCORE)

    @property
    def far_derivative(self) -> jax.Array | None:
        """Derivative of a score height f ReLU(q · k) by q · k, where q · k is positive.

        Where q · k is not positive, the derivative is 0. The property describes far tiles, in which
        the distance function f is one constant for the whole tile. It is None in three cases: if
        the tile is not far, if the scoring does not multiply ReLU(q · k) by f, or if
        `TileScores.log_derivative` is set, because the weights then already contain this factor.
        """
        scores, coefficients = self.tile_scores, self.coefficients
        if coefficients is None or not scores.is_far or self.scoring.is_additive:
            return None
        return coefficients.scaled_far if scores.log_derivative is None else None

    def product_gradient(
        self, score_gradient: jax.Array, *, has_far_derivative: bool = False
    ) -> jax.Array:
        """Return the gradient of the products q · k, computed from the gradient of the scores.

        Args:
          score_gradient: Gradient of the scores.
          has_far_derivative: True if `score_gradient` already includes the factor `far_derivative`.
        """
        coefficients = self.coefficients
        one: Any = 1.0
        if has_far_derivative and coefficients is not None:
            coefficients = coefficients._replace(far=one, height=one)
        return self.scoring.product_gradient(score_gradient, self.tile_scores, coefficients)

    def coefficient_gradients(
        self, score_gradient: jax.Array, product_gradient: jax.Array
    ) -> CoefficientGradients:
        """Return the contribution of each entry of the tile to the gradients of the coefficients.

        See `Scoring.coefficient_gradients`.

        Args:
          score_gradient: Gradient of the scores.
          product_gradient: Gradient of the products q · k.
        """
        return self.scoring.coefficient_gradients(
            score_gradient, product_gradient, self.positions, self.tile_scores, self.coefficients
        )


def read_coefficients(scalars: Scalars) -> Coefficients | None:
    """Return the coefficients of the distance function of a head.

    Return None if the scoring has no distance function.

    Args:
      scalars: Dict from name to the numbers of one example and head.
    """
    numbers = scalars.get("coefficients")
    return None if numbers is None else Coefficients(*numbers)


def read_lengths(scalars: Scalars) -> Lengths:
    """Return the number of queries, the number of keys and the position offset of an example.

    Args:
      scalars: Dict from name to the numbers of one example and head.
    """
    return Lengths(*scalars["lengths"])


def read_dropout_scale(scalars: Scalars) -> Any:
    """Return 1 / (1 - dropout rate), or 1 without dropout."""
    return scalars["dropout_scale"][0] if "dropout_scale" in scalars else 1.0


def compute_gradient_multiplier(score_map: ScoreMap, scalars: Scalars) -> Any:
    """Return the factor by which a kernel multiplies its sums of gradients after the last tile."""
    return score_map.scoring.gradient_multiplier(read_coefficients(scalars))
