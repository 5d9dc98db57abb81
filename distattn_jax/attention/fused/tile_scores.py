"""Types of the scores of a tile and of their derivatives, which all scorings share."""

from typing import NamedTuple

from jaxtyping import Array

CoefficientGradients = tuple[Array | None, ...]  # entry by entry; None means zero
MASKED_SCORE = -1e30  # finite, because infinity minus infinity would be NaN


class TileScores(NamedTuple):
    """Scores of a tile, and the intermediate results from which their gradient is computed.

    Attributes:
      scores: Scores before the multiplication by `score_multiplier`.
      products: Products q · k.
      f: Distance function of each entry. If the score contains a ReLU, f is set to 0 where the
        product is negative. The attribute is None if `is_far`, and may be None if no gradient is
        computed.
      is_far: True if f is the same in the whole tile, because every key of the tile is far from
        every query of the tile.
      log_derivative: Base-2 logarithm of the derivative of the scores by the products q · k, which
        is the same in the whole tile. The kernel multiplies the weights by this derivative, and
        `product_gradient` does not. The attribute is None if `product_gradient` does it.
    """

    scores: Array
    products: Array
    f: Array | None = None
    is_far: bool = False
    log_derivative: Array | None = None
