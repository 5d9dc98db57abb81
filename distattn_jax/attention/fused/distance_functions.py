"""Functions f of the distance R = |i - j| between query i and key j, and their derivatives.

    SIGMOID       f = 1 / (1 + e^-(slope R + shift))
    LINEAR        f = slope R + shift                  shift is the intercept
    CLIPPED       f = min(slope R, shift)              shift is the upper limit
    EXPONENTIAL   f = 2^min(slope R, shift)            shift is the largest exponent

Every operation is elementwise. The same functions compute one tile inside a kernel, and an array of
any shape outside of kernels.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

LOG2E = math.log2(math.e)


class Coefficients(NamedTuple):
    """Coefficients of the distance function: scalars for one head, or arrays for many heads.

    Attributes:
      slope: Factor of the distance.
      shift: Second coefficient of the function, for example the intercept of a linear function.
      height: Factor of f in a score. It includes log2(e), because weights are powers of 2.
      far: Value of f at a very large distance. It is a constant: no gradient flows through it.
      shift_share: Factor. This factor times the gradient of the logarithm of the height is a part
        of the gradient of the shift: see `select_shift_share`. It is a constant.
    """

    slope: Array
    shift: Array
    height: Array
    far: Array
    shift_share: Array

    @property
    def scaled_far(self) -> Any:
        """Value of height f at a very large distance."""
        return self.height * self.far


def unstack_coefficients(stacked: Float[Array, "*shape 5"]) -> Coefficients:
    """Split the last axis of an array into the coefficients."""
    return Coefficients(*jnp.moveaxis(stacked, -1, 0))


class Distances(NamedTuple):
    """Functions that give the distances |i - j| of a tile, and that help to compute f from them.

    An entry of a tile is a pair of a query i and a key j. f is the distance function.

    Attributes:
      entries: Returns the distance of each entry. It is a function, so that unused distances are
        not computed.
      share_diagonals: Takes a tile of f, which is constant along each diagonal, and returns the
        same tile. On a GPU, the kernel then computes about half of the entries, and copies the
        other half along the diagonals.
      sum_diagonals: Takes a tile whose entries will be multiplied by a function of the distance and
        then summed. On a GPU, it adds pairs of entries of a diagonal, so that only about half of
        the entries must be multiplied and summed: see `registers.sum_columns`.
      reciprocal: Returns 1 / x.
      stored: Returns height f of each entry, from a table or from an earlier computation. If None,
        f must be computed from the distances.
    """

    entries: Callable[[], Array]
    share_diagonals: Callable[[Array], Array] = lambda x: x
    sum_diagonals: Callable[[Array], Array] = lambda x: x
    reciprocal: Callable[[Array], Array] = lambda x: 1 / x
    stored: Callable[[], Array] | None = None


class FunctionCotangent(NamedTuple):
    """Two functions that compute the cotangent of f and the cotangent of log f when called.

    The results have the shape of a tile. f is the distance function.

    Attributes:
      of_value: Returns the cotangent of f.
      of_log: Returns the cotangent of log f, which is f times the cotangent of f.
    """

    of_value: Callable[[], Array]
    of_log: Callable[[], Array]


SlopeAndShiftGradients = tuple[Array | None, Array | None]  # entry by entry; None means zero


class DistanceFunction(NamedTuple):
    """Function f of the distance |i - j|, with a slope and a shift for each head.

    Attributes:
      evaluate: Returns f for the distances of a tile, given the coefficients of the head.
      gradients: Returns two arrays of the shape of a tile. Their sums over all tiles are the
        gradient of the slope, and the gradient of the shift without the part of
        `Coefficients.shift_share`. None stands for an array of zeros. The arguments are the
        cotangent of f, the distances, f and the coefficients.
      is_nonnegative: True if f is never negative. Multiplying scores by a constant f >= 0 does not
        change the order of the scores. A kernel may therefore compute the maximum first and
        multiply afterwards.
      is_cheap: True if kernels compute f faster than they read it from a table (GPU) or from a
        stored tile (TPU).
    """

    evaluate: Callable[[Distances, Coefficients], Array]
    gradients: Callable[[FunctionCotangent, Distances, Array, Coefficients], SlopeAndShiftGradients]
    is_nonnegative: bool = False
    is_cheap: bool = False


def evaluate_at(
    function: DistanceFunction, distance: Float[Array, "#B #N D"], stacked: Float[Array, "1 N 5"]
) -> Float[Array, "#B N D"]:
    """Return the distance function f at the given distances, for each head.

    Args:
      function: Distance function f.
      distance: D distances. The first two axes have size 1 if all examples or heads have the same
        distances.
      stacked: Coefficients of each head.
    """
    coefficients = unstack_coefficients(stacked[:, :, None, :])  # each (1, N, 1)
    return function.evaluate(Distances(lambda: distance), coefficients)


def _sigmoid(distances, coefficients):
    """Return 1 / (1 + e^-(slope R + shift)).

    At large distances R, the power e^-(slope R + shift) may overflow to infinity or underflow to 0.
    The result is then exactly 0 or 1, and never NaN.
    """
    slope, shift = coefficients.slope * -LOG2E, coefficients.shift * -LOG2E
    return distances.reciprocal(1 + jnp.exp2(distances.entries() * slope + shift))


def _sigmoid_gradients(cotangent, distances, f, coefficients):
    of_log = cotangent.of_log()  # contains one f
    of_shift = of_log - of_log * f  # df/dx = f (1 - f)
    # Other orders of these operations spilled registers on a Hopper GPU.
    return of_shift * distances.entries(), of_shift - of_log * coefficients.shift_share


def select_shift_share(shift: Array, far: Array) -> Array:
    """Return `Coefficients.shift_share` of a learnable sigmoid: 1 - far or 0.

    The gradient of v is e^v / (1 + e^v) times the gradient of the logarithm of the height, minus
    the gradient of the shift. If f is nearly constant, the two nearly cancel, and their rounding
    errors differ. The derivative of f by the shift is therefore split:

        f (1 - f) = f (far - f) + f (1 - far)

    The kernel sums the first part. The second part is a share of the gradient of the logarithm of
    the height. The error e of this gradient then becomes the error e (far - f(0)) of the gradient
    of v. Without a share, it becomes e (1 - f(0)). The smaller of the two decides.

    Args:
      shift: Shift of each head.
      far: Value of f of each head at a very large distance.
    """
    nearest = jax.nn.sigmoid(shift)  # f(0)
    return jnp.where(jnp.abs(far - nearest) < 1 - nearest, 1 - far, 0)


def _linear(distances, coefficients):
    return distances.entries() * coefficients.slope + coefficients.shift


def _linear_gradients(cotangent, distances, f, coefficients):
    of_value = cotangent.of_value()
    return of_value * distances.entries(), of_value


def _clipped(distances, coefficients):
    return jnp.minimum(distances.entries() * coefficients.slope, coefficients.shift)


def _clipped_gradients(cotangent, distances, f, coefficients):
    is_below_limit = f < coefficients.shift
    return jnp.where(is_below_limit, cotangent.of_value() * distances.entries(), 0.0), None


def _exponential(distances, coefficients):
    return jnp.exp2(jnp.minimum(distances.entries() * coefficients.slope, coefficients.shift))


def _exponential_gradients(cotangent, distances, f, coefficients):
    entries = distances.entries()
    of_slope = cotangent.of_log() * entries * math.log(2)
    return jnp.where(entries * coefficients.slope < coefficients.shift, of_slope, 0.0), None


SIGMOID = DistanceFunction(_sigmoid, _sigmoid_gradients, is_nonnegative=True)
LINEAR = DistanceFunction(_linear, _linear_gradients, is_cheap=True)
CLIPPED = DistanceFunction(_clipped, _clipped_gradients, is_cheap=True)
EXPONENTIAL = DistanceFunction(_exponential, _exponential_gradients, is_nonnegative=True)
