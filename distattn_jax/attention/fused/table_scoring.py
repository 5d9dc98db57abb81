"""Scores of a tile with any function of the relative position, and their derivatives.

Tables contain the function and its derivatives. Every operation is elementwise: see `scoring`.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array

from distattn_jax.attention.fused.distance_functions import LOG2E
from distattn_jax.attention.fused.runs import Distinctions
from distattn_jax.attention.fused.tile_scores import CoefficientGradients, TileScores


class TableEntries(NamedTuple):
    """Functions that load the numbers of a tile from tables of relative positions.

    Attributes:
      value: Returns the function f of the relative position of each entry.
      derivatives: Each of them returns the derivative of f with respect to one parameter.
    """

    value: Callable[[], Array]
    derivatives: tuple[Callable[[], Array], ...]


@dataclasses.dataclass(frozen=True)
class TableScoring:
    """Attention with any function f of the relative position i - j, which a table contains.

    The score is ReLU(q · k) f, or scale q · k + f if `is_additive`. Scores are to base 2: the table
    includes log2(e) and, if `is_additive` is False, the scale.

    Attributes:
      scale: Factor of the product q · k.
      is_additive: If True, f is added to scale q · k. If False, ReLU(q · k) is multiplied by f.
      parameters: Number of parameters of f. There is one more table for each of them, which
        contains the derivative of f with respect to the parameter.
    """

    scale: float
    is_additive: bool
    parameters: int
    distinctions = Distinctions()  # Reading a constant from a table takes as long as reading f.
    is_dot_product = False
    has_relation_products = False
    has_relation_weights = False
    has_positions = False

    @property
    def summed_gradients(self) -> int:
        """Number of parameter gradients that kernels sum over all tiles."""
        return self.parameters

    @property
    def gradient_names(self) -> tuple[str, ...]:
        """Names of the parameter gradients in the outputs of a kernel."""
        return tuple(f"parameter_{i}" for i in range(self.parameters))

    def score_multiplier(self, coefficients: None, *, is_far: bool = False) -> float:
        """Return the factor that turns scores into base-2 logarithms of unnormalised weights."""
        return 1.0

    def gradient_multiplier(self, coefficients: None) -> float:
        """Return the factor by which kernels multiply all gradients after the last tile."""
        return 1 / LOG2E

    def score(
        self, products: Array, tables: TableEntries, coefficients: None, *, for_gradient: bool
    ) -> TileScores:
        """Return the scores of a tile.

        Args:
          products: Products q · k.
          tables: Numbers of the tables for the entries of the tile.
          coefficients: None, because the tables contain all parameters.
          for_gradient: If True, keep f for the gradient of the scores.
        """
        f = tables.value()
        if self.is_additive:
            return TileScores(products * (self.scale * LOG2E) + f, products)
        if not for_gradient:
            return TileScores(jnp.maximum(products, 0.0) * f, products)
        f = jnp.where(products > 0, f, 0.0)  # applies the ReLU to the gradient as well
        return TileScores(products * f, products, f)

    def product_gradient(
        self, score_gradient: Array, tile_scores: TileScores, coefficients: None
    ) -> Array:
        """Return the gradient of the products q · k, computed from the gradient of the scores."""
        factor = self.scale * LOG2E if tile_scores.f is None else tile_scores.f
        return score_gradient * factor

    def coefficient_gradients(
        self,
        score_gradient: Array,
        product_gradient: Array,
        tables: TableEntries,
        tile_scores: TileScores,
        coefficients: None,
    ) -> CoefficientGradients:
        """Return the terms of the parameter gradients, before the sum over the tile.

        Args:
          score_gradient: Gradient of the scores of the tile.
          product_gradient: Gradient of the products q · k of the tile.
          tables: Numbers of the tables for the entries of the tile.
          tile_scores: Scores of the tile.
          coefficients: None, because the tables contain all parameters.
        """
        if not self.is_additive:
            score_gradient *= jnp.maximum(tile_scores.products, 0.0)  # now the gradient of f
        return tuple(score_gradient * derivative() for derivative in tables.derivatives)
