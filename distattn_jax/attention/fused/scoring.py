"""What a variant does to a tile of scores, and its derivative.

A tile holds raw products q · k. A scoring makes scores of them, and takes gradients of the scores
back to the raw products and to its own coefficients, four numbers per head or none. All of it is
elementwise: the same functions serve a tile, a turned tile and, outside of kernels, any array.

Scores are logarithms to base 2 of weights, but for `factor`: so that an exponential is one
instruction, and its argument one more.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

LOG2E = math.log2(math.e)


class Steps(NamedTuple):
    """Distances as a sum: the nearest of all, what each row adds and what each column adds.

    No part is negative.

    Attributes:
      nearest: one number.
      ready: what the family made of the vectors of rows and of columns, once for many tiles.
      outer: makes the tile of products of a vector of rows and one of columns.
    """

    nearest: Array
    ready: Any
    outer: Callable[[Array, Array], Array]


class Apart(NamedTuple):
    """The distances |i - j| of a tile's entries.

    Attributes:
      whole: gives all of them; a function, as what is not used must not be computed.
      steps: the same as a sum; None where a tile has keys on both sides of a query.
    """

    whole: Callable[[], Array]
    steps: Steps | None = None


Numbers = tuple[Array, ...]  # coefficients of one head
Parts = tuple[Array | None, ...]  # of their gradients, entry by entry; None: no part


class Scored(NamedTuple):
    """Scores, and what their derivative needs of them again; None: it was not asked for."""

    scores: Array
    kept: Any


@dataclasses.dataclass(frozen=True)
class Plain:
    """Dot-product attention: scale q · k."""

    scale: float
    coefficients = 0
    trained = 0
    knows_distance = False
    takes_steps = False

    def factor(self, numbers: Numbers) -> float:
        """What the scores are still to be multiplied by."""
        return self.scale * LOG2E

    def unit(self, numbers: Numbers) -> float:
        """What the gradients are still to be multiplied by."""
        return self.scale

    def score(self, raw: Array, apart: Apart | None, numbers: Numbers, *, keep: bool) -> Scored:
        """Scores of a tile."""
        return Scored(raw, None)

    def pull(self, grad: Array, kept: Any) -> Array:
        """Gradients of the raw products."""
        return grad

    def parts(self, grad: Array, apart: Apart | None, kept: Any, numbers: Numbers) -> Parts:
        """Parts of the gradients of the coefficients."""
        return ()


class Family(NamedTuple):
    """A form of f(|i - j|) with two numbers per head.

    Attributes:
      value: f, from the distances and the numbers.
      pull: from a gradient of f, the distances, f and the numbers, parts of the numbers' gradients.
      ready: `Steps.ready`; None: the form gains nothing from steps.
    """

    value: Callable[[Apart, Numbers], Array]
    pull: Callable[[Array, Apart, Array, Numbers], Parts]
    ready: Callable[[Array, Array, Numbers], Any] | None = None


def _bend(apart, numbers):
    """sigmoid(slope |i - j| + shift) = 1 / (1 + e^-(slope |i - j| + shift)).

    On one side of the diagonal that power is a product: of one number for each row and one for each
    column. As no part of the distance is negative, a factor overflows or vanishes only where the
    product does, too. 1 / x is the square of 1 / √x, which is one instruction where x is plainly
    not tiny.
    """
    slope, shift = (number * -LOG2E for number in numbers)
    if apart.steps is None:
        power = jnp.exp2(apart.whole() * slope + shift)
    else:
        nearest, (rows, columns), outer = apart.steps
        power = jnp.abs(outer(rows * jnp.exp2(nearest * slope + shift), columns))
    root = jax.lax.rsqrt(1 + power)
    return root * root


def _ready_to_bend(rows, columns, numbers):
    slope = numbers[0] * -LOG2E
    return jnp.exp2(rows * slope), jnp.exp2(columns * slope)


def _pull_bend(grad, apart, f, numbers):
    of_shift = grad * f
    of_shift -= of_shift * f
    return of_shift * apart.whole(), of_shift


def _line(apart, numbers):
    slope, intercept = numbers
    return apart.whole() * slope + intercept


def _pull_line(grad, apart, f, numbers):
    return grad * apart.whole(), grad


def _limit(apart, numbers):
    slope, limit = numbers
    return jnp.minimum(apart.whole() * slope, limit)


def _pull_limit(grad, apart, f, numbers):
    return jnp.where(f < numbers[1], grad * apart.whole(), 0.0), None


def _power(apart, numbers):
    """2^(slope |i - j|), the exponent cut at a limit."""
    slope, limit = numbers
    return jnp.exp2(jnp.minimum(apart.whole() * slope, limit))


def _pull_power(grad, apart, f, numbers):
    slope, limit = numbers
    distance = apart.whole()
    of_slope = grad * f * distance * math.log(2)
    return jnp.where(distance * slope < limit, of_slope, 0.0), None


bend = Family(_bend, _pull_bend, _ready_to_bend)
line = Family(_line, _pull_line)
limit = Family(_limit, _pull_limit)
power = Family(_power, _pull_power)


@dataclasses.dataclass(frozen=True)
class Distance:
    """Distance-aware attention: height ReLU(q · k) f, or scale q · k + height f with `adds`.

    The coefficients of a head are the two numbers of the family, the height, and what f is where it
    is far. The height must make a logarithm to base 2 of it all: log2(e), or log2(e) scale. The
    last has no gradient: where f is far it no longer depends on the family's numbers.
    """

    scale: float
    family: Family
    adds: bool
    coefficients = 4
    trained = 3  # of these
    knows_distance = True

    @property
    def takes_steps(self) -> bool:
        """Whether it gains from distances as sums."""
        return self.family.ready is not None

    def factor(self, numbers: Numbers) -> Array | float:
        """What the scores are still to be multiplied by."""
        return 1.0 if self.adds else numbers[2]

    def unit(self, numbers: Numbers) -> Array | float:
        """What the gradients are still to be multiplied by."""
        return self.factor(numbers) / LOG2E

    def ready(self, rows: Array, columns: Array, numbers: Numbers) -> Any:
        """What can be made of what rows and columns add to distances, once for many tiles."""
        assert self.family.ready is not None, "asked for where it takes steps"
        return self.family.ready(rows, columns, numbers[:2])

    def value(self, apart: Apart, numbers: Numbers) -> Array:
        """f itself."""
        return self.family.value(apart, numbers[:2])

    def score(self, raw: Array, apart: Apart | None, numbers: Numbers, *, keep: bool) -> Scored:
        """Scores of a tile; without its distances, of a far one."""
        f = numbers[3] if apart is None else self.value(apart, numbers)
        if self.adds:
            return Scored(raw * (self.scale * LOG2E) + f * numbers[2], (raw, f))
        if not keep:
            return Scored(jnp.maximum(raw, 0.0) * f, None)
        f = jnp.where(raw > 0, f, 0.0)  # the ReLU: done to f, it need not be done again
        return Scored(raw * f, (raw, f))

    def pull(self, grad: Array, kept: Any) -> Array:
        """Gradients of the raw products."""
        if self.adds:
            return grad * (self.scale * LOG2E)
        return grad * kept[1]

    def parts(self, grad: Array, apart: Apart | None, kept: Any, numbers: Numbers) -> Parts:
        """Parts of the gradients of the first three; that of the height as of its logarithm."""
        products, f = kept
        of_f = grad * numbers[2] if self.adds else grad * jnp.maximum(products, 0.0)
        if apart is None:
            return None, None, of_f * f
        return (*self.family.pull(of_f, apart, f, numbers[:2]), of_f * f)


Scoring = Plain | Distance
