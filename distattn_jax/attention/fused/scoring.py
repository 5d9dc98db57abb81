"""What a variant does to a tile of scores, and its derivative.

A tile holds raw products q · k. A scoring makes scores of them, and takes gradients of the scores
back to the raw products and to its own coefficients, a few numbers per head. All of it is
elementwise: the same functions serve a tile, a turned tile and, outside of kernels, any array.

Scores are logarithms to base 2 of weights, but for `factor`: so that an exponential is one
instruction, and its argument one more.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array

LOG2E = math.log2(math.e)
Numbers = tuple[Array, ...]  # coefficients of one head
Parts = tuple[Array | None, ...]  # of their gradients, entry by entry; None: no part


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

    @property
    def factor(self) -> float:
        """What the scores are still to be multiplied by."""
        return self.scale * LOG2E

    @property
    def unit(self) -> float:
        """What the gradients are still to be multiplied by."""
        return self.scale

    def score(self, raw: Array, gap: Any, numbers: Numbers, *, far: bool) -> Scored:
        """Scores of a tile."""
        return Scored(raw, ())

    def pull(
        self, grad: Array, gap: Any, kept: Any, numbers: Numbers, *, far: bool
    ) -> tuple[Array, Parts]:
        """Gradients of the raw products, and parts of those of the coefficients."""
        return grad, ()


class Family(NamedTuple):
    """A form of f(|i - j|) with a few numbers per head.

    Attributes:
      numbers: how many.
      value: f, from the distance and the numbers.
      pull: from a gradient of f, the distance, f and the numbers, parts of the numbers' gradients.
    """

    numbers: int
    value: Callable[[Array, Numbers], Array]
    pull: Callable[[Array, Array, Array, Numbers], Parts]


def _bend(distance, numbers):
    """height (1 + tanh(slope |i - j| + shift)): a sigmoid with one special function."""
    slope, shift, log_height = numbers
    height = jnp.exp(log_height)
    return jnp.tanh(distance * slope + shift) * height + height


def _pull_bend(grad, distance, f, numbers):
    of_log_height = grad * f
    of_shift = of_log_height * (2 - f * jnp.exp(-numbers[2]))
    return of_shift * distance, of_shift, of_log_height


def _line(distance, numbers):
    slope, intercept = numbers
    return distance * slope + intercept


def _pull_line(grad, distance, f, numbers):
    return grad * distance, grad


def _limit(distance, numbers):
    slope, limit = numbers
    return jnp.minimum(distance * slope, limit)


def _pull_limit(grad, distance, f, numbers):
    return jnp.where(f < numbers[1], grad * distance, 0.0), None


def _power(distance, numbers):
    """height 2^(slope |i - j|), the exponent cut at a limit."""
    slope, limit, height = numbers
    return jnp.exp2(jnp.minimum(distance * slope, limit)) * height


def _pull_power(grad, distance, f, numbers):
    slope, limit, _ = numbers
    of_slope = grad * f * distance * math.log(2)
    return jnp.where(distance * slope < limit, of_slope, 0.0), None, None


bend = Family(3, _bend, _pull_bend)
line = Family(2, _line, _pull_line)
limit = Family(2, _limit, _pull_limit)
power = Family(3, _power, _pull_power)


@dataclasses.dataclass(frozen=True)
class Distance:
    """Distance-aware attention: ReLU(q · k) f, or scale q · k + f with `adds`.

    The coefficients are those of the family, and after them the constant that f is where it is far.
    Of f they must make what belongs into a logarithm to base 2: log2(e) f, or log2(e) scale f if it
    multiplies.
    """

    scale: float
    family: Family
    adds: bool
    knows_distance = True
    factor = 1.0

    @property
    def coefficients(self) -> int:
        """How many numbers a head has."""
        return self.family.numbers + 1

    @property
    def unit(self) -> float:
        """What the gradients are still to be multiplied by."""
        return 1 / LOG2E

    def value(self, distance: Array, numbers: Numbers) -> Array:
        """f itself."""
        return self.family.value(distance, numbers[:-1])

    def score(self, raw: Array, gap: Any, numbers: Numbers, *, far: bool) -> Scored:
        """Scores of a tile."""
        f = numbers[-1] if far else self.value(jnp.abs(gap), numbers)
        if self.adds:
            return Scored(raw * (self.scale * LOG2E) + f, (raw, f))
        positive = jnp.maximum(raw, 0.0)
        return Scored(positive * f, (positive, f))

    def pull(
        self, grad: Array, gap: Any, kept: Any, numbers: Numbers, *, far: bool
    ) -> tuple[Array, Parts]:
        """Gradients of the raw products, and parts of those of the coefficients."""
        products, f = kept
        if self.adds:
            of_products, of_f = grad * (self.scale * LOG2E), grad
        else:
            of_products, of_f = jnp.where(products > 0, grad * f, 0.0), grad * products
        if far:
            return of_products, (*[None] * self.family.numbers, of_f)
        return of_products, (*self.family.pull(of_f, jnp.abs(gap), f, numbers[:-1]), None)


Scoring = Plain | Distance
