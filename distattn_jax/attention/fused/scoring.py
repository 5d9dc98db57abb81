"""What a variant does to a tile of scores, and its derivative.

A tile holds raw products q · k. A scoring makes scores of them, and takes gradients of the scores
back to the raw products and to its own coefficients, a few numbers per head. All of it is
elementwise: the same functions serve a tile, a turned tile and, outside of kernels, any array.

Scores are in units of log 2, so that their exponential is one instruction. Gradients are those of
scores in natural units.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array

LOG2E = math.log2(math.e)
Numbers = tuple[Array, ...]  # coefficients of one head


class Scored(NamedTuple):
    """Scores, and what their derivative needs of them again."""

    scores: Array
    kept: Any


@dataclasses.dataclass(frozen=True)
class Plain:
    """Dot-product attention: scale q · k."""

    scale: float
    coefficients = 0
    knows_distance = False

    def score(self, raw: Array, gap: Any, numbers: Numbers, *, far: bool) -> Scored:
        """Scores of a tile."""
        return Scored(raw * (self.scale * LOG2E), ())

    def pull(
        self, grad: Array, gap: Any, kept: Any, numbers: Numbers, *, far: bool
    ) -> tuple[Array, tuple[Array | None, ...]]:
        """Gradients of the raw products, but for `unit`, and of the coefficients, by entry."""
        return grad, ()

    @property
    def unit(self) -> float:
        """What the gradients of the raw products are still to be multiplied by."""
        return self.scale


class Family(NamedTuple):
    """A form of f(|i - j|) with a few numbers per head, and its slopes with respect to them.

    Attributes:
      numbers: how many.
      value: f, from the distance and the numbers.
      slopes: the derivative of f by each number, from the distance, f and the numbers.
    """

    numbers: int
    value: Callable[[Array, Numbers], Array]
    slopes: Callable[[Array, Array, Numbers], Numbers]


def _bend(distance, numbers):
    """height (1 + tanh(slope |i - j| - shift)): a sigmoid with one special function."""
    slope, shift, height = numbers
    return jnp.tanh(distance * slope - shift) * height + height


def _bend_slopes(distance, f, numbers):
    _, _, height = numbers
    risen = f * (1 / height)
    steepness = f * (2 - risen)
    return distance * steepness, -steepness, risen


def _line(distance, numbers):
    slope, intercept = numbers
    return distance * slope + intercept


def _line_slopes(distance, f, numbers):
    return distance, jnp.ones_like(distance)


def _limit(distance, numbers):
    slope, limit = numbers
    return jnp.minimum(distance * slope, limit)


def _limit_slopes(distance, f, numbers):
    is_below = f < numbers[1]
    return jnp.where(is_below, distance, 0.0), jnp.where(is_below, 0.0, jnp.ones_like(distance))


def _power(distance, numbers):
    """2 to the slope |i - j|, the exponent cut at a limit."""
    slope, limit = numbers
    return jnp.exp2(jnp.minimum(distance * slope, limit))


def _power_slopes(distance, f, numbers):
    slope, limit = numbers
    steepness = jnp.where(distance * slope < limit, f * math.log(2), 0.0)
    return distance * steepness, jnp.zeros_like(distance)


bend = Family(3, _bend, _bend_slopes)
line = Family(2, _line, _line_slopes)
limit = Family(2, _limit, _limit_slopes)
power = Family(2, _power, _power_slopes)


@dataclasses.dataclass(frozen=True)
class Distance:
    """Distance-aware attention: ReLU(scale q · k) f, or scale q · k + f with `adds`.

    The coefficients are those of the family, and after them the constant that f is where it is far.
    """

    scale: float
    family: Family
    adds: bool
    knows_distance = True

    @property
    def coefficients(self) -> int:
        """How many numbers a head has."""
        return self.family.numbers + 1

    def value(self, distance: Array, numbers: Numbers) -> Array:
        """f itself."""
        return self.family.value(distance, numbers[:-1])

    def score(self, raw: Array, gap: Any, numbers: Numbers, *, far: bool) -> Scored:
        """Scores of a tile."""
        f = numbers[-1] if far else self.value(jnp.abs(gap), numbers)
        if self.adds:
            return Scored(raw * (self.scale * LOG2E) + f * LOG2E, (raw, f))
        positive = jnp.maximum(raw, 0.0)
        return Scored(positive * (self.scale * LOG2E) * f, (positive, f))

    def pull(
        self, grad: Array, gap: Any, kept: Any, numbers: Numbers, *, far: bool
    ) -> tuple[Array, tuple[Array | None, ...]]:
        """Gradients of the raw products, but for `unit`, and of the coefficients, by entry."""
        products, f = kept
        if self.adds:
            of_products, of_f = grad, grad
        else:
            of_products = jnp.where(products > 0, grad * f, 0.0)
            of_f = grad * products * self.scale
        if far:
            return of_products, (*[None] * self.family.numbers, of_f)
        slopes = self.family.slopes(jnp.abs(gap), f, numbers[:-1])
        return of_products, (*(of_f * slope for slope in slopes), None)

    @property
    def unit(self) -> float:
        """What the gradients of the raw products are still to be multiplied by."""
        return self.scale


Scoring = Plain | Distance
