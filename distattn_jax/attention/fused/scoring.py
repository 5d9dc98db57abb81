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
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array

LOG2E = math.log2(math.e)
STRIDE = 8  # columns of a tile that a warpgroup holds side by side


class Steps(NamedTuple):
    """Distances that grow in one direction, from the nearest columns on.

    Attributes:
      nearest: gives those of the nearest `STRIDE` columns.
      geometric: makes a tile of what these columns hold, and of a factor from each `STRIDE` columns
        to those beyond.
    """

    nearest: Callable[[], Array]
    geometric: Callable[[Array, Array], Array]


class Apart(NamedTuple):
    """The distances |i - j| of a tile's entries.

    Attributes:
      whole: gives all of them; a function, as what is not used must not be computed.
      steps: the same, step by step; None where a tile has keys on both sides of a query.
      alike: tells that entries as far apart are the same, to save computing them.
      inverse: 1 / x.
    """

    whole: Callable[[], Array]
    steps: Steps | None = None
    alike: Callable[[Array], Array] = lambda x: x
    inverse: Callable[[Array], Array] = lambda x: 1 / x


Numbers = tuple[Array, ...]  # coefficients of one head
Parts = tuple[Array | None, ...]  # of their gradients, entry by entry; None: no part


class Scored(NamedTuple):
    """Scores, and what their derivative needs of them again.

    Attributes:
      scores: to be multiplied by `factor`.
      raw: the products they were made of.
      f: where the ReLU lets them through; None: not kept, or a constant.
      far: whether it is a constant.
    """

    scores: Array
    raw: Array
    f: Array | None = None
    far: bool = False


@dataclasses.dataclass(frozen=True)
class Plain:
    """Dot-product attention: scale q · k."""

    scale: float
    coefficients = 0
    summed = 0
    knows_distance = False

    def factor(self, numbers: Numbers, *, far: bool = False) -> float:
        """What the scores are still to be multiplied by."""
        return self.scale * LOG2E

    def unit(self, numbers: Numbers) -> float:
        """What the gradients are still to be multiplied by."""
        return self.scale

    def score(self, raw: Array, apart: Apart | None, numbers: Numbers, *, keep: bool) -> Scored:
        """Scores of a tile."""
        return Scored(raw, raw)

    def pull(self, grad: Array, scored: Scored, numbers: Numbers) -> Array:
        """Gradients of the raw products."""
        return grad

    def parts(
        self, grad: Array, of_raw: Array, apart: Apart | None, scored: Scored, numbers: Numbers
    ) -> Parts:
        """Parts of the gradients of the coefficients."""
        return ()


class Change(NamedTuple):
    """A gradient of f; functions, as what is not used must not be computed.

    Attributes:
      by_value: of f.
      by_log: of its logarithm.
    """

    by_value: Callable[[], Array]
    by_log: Callable[[], Array]


class Family(NamedTuple):
    """A form of f(|i - j|) with two numbers per head.

    Attributes:
      value: f, from the distances and the numbers.
      pull: from a gradient of f, the distances, f and the numbers, parts of the numbers' gradients.
      positive: whether f is never negative. Then a far tile may leave it to `Distance.factor`, and
        the largest score stays the largest.
    """

    value: Callable[[Apart, Numbers], Array]
    pull: Callable[[Change, Apart, Array, Numbers], Parts]
    positive: bool = False


def _bend(apart, numbers):
    """sigmoid(slope |i - j| + shift) = 1 / (1 + e^-(slope |i - j| + shift)).

    On one side of the diagonal that power grows by the same factor from step to step: further away
    it overflows or vanishes for good.
    """
    slope, shift = (number * -LOG2E for number in numbers)
    if apart.steps is None:
        power = jnp.exp2(apart.whole() * slope + shift)
    else:
        nearest = jnp.exp2(apart.steps.nearest() * slope + shift)
        power = apart.steps.geometric(nearest, jnp.exp2(STRIDE * slope))
    return apart.inverse(1 + power)


def _pull_bend(change, apart, f, numbers):
    of_shift = change.by_log()
    of_shift -= of_shift * f
    return of_shift * apart.whole(), of_shift


def _line(apart, numbers):
    slope, intercept = numbers
    return apart.whole() * slope + intercept


def _pull_line(change, apart, f, numbers):
    grad = change.by_value()
    return grad * apart.whole(), grad


def _limit(apart, numbers):
    slope, limit = numbers
    return jnp.minimum(apart.whole() * slope, limit)


def _pull_limit(change, apart, f, numbers):
    return jnp.where(f < numbers[1], change.by_value() * apart.whole(), 0.0), None


def _power(apart, numbers):
    """2^(slope |i - j|), the exponent cut at a limit."""
    slope, limit = numbers
    return jnp.exp2(jnp.minimum(apart.whole() * slope, limit))


def _pull_power(change, apart, f, numbers):
    slope, limit = numbers
    distance = apart.whole()
    of_slope = change.by_log() * distance * math.log(2)
    return jnp.where(distance * slope < limit, of_slope, 0.0), None


bend = Family(_bend, _pull_bend, positive=True)
line = Family(_line, _pull_line)
limit = Family(_limit, _pull_limit)
power = Family(_power, _pull_power, positive=True)


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
    knows_distance = True

    @property
    def summed(self) -> int:
        """How many of the coefficients' gradients are sums over the map.

        That of a height which all scores have as a factor need not be: as a score is then
        proportional to it and to q, the gradient of its logarithm is q · dq, added up over queries.
        """
        return 3 if self.adds else 2

    def factor(self, numbers: Numbers, *, far: bool = False) -> Array | float:
        """What the scores are still to be multiplied by."""
        if self.adds:
            return 1.0
        return numbers[2] * numbers[3] if far and self.family.positive else numbers[2]

    def unit(self, numbers: Numbers) -> Array | float:
        """What the gradients are still to be multiplied by."""
        return self.factor(numbers) / LOG2E

    def value(self, apart: Apart, numbers: Numbers) -> Array:
        """f itself."""
        return apart.alike(self.family.value(apart, numbers[:2]))

    def score(self, raw: Array, apart: Apart | None, numbers: Numbers, *, keep: bool) -> Scored:
        """Scores of a tile; without its distances, of a far one."""
        far = apart is None
        if self.adds:
            f = numbers[3] if apart is None else self.value(apart, numbers)
            scores = raw * (self.scale * LOG2E) + f * numbers[2]
            return Scored(scores, raw, None if far else f, far)
        if apart is None:
            risen = jnp.maximum(raw, 0.0)
            return Scored(risen if self.family.positive else risen * numbers[3], raw, far=True)
        f = self.value(apart, numbers)
        if not keep:
            return Scored(jnp.maximum(raw, 0.0) * f, raw)
        f = jnp.where(raw > 0, f, 0.0)  # the ReLU: done to f, it need not be done again
        return Scored(raw * f, raw, f)

    def pull(self, grad: Array, scored: Scored, numbers: Numbers) -> Array:
        """Gradients of the raw products."""
        if self.adds:
            return grad * (self.scale * LOG2E)
        if scored.f is None:
            return jnp.where(scored.raw > 0, grad * numbers[3], 0.0)
        return grad * scored.f

    def parts(
        self, grad: Array, of_raw: Array, apart: Apart | None, scored: Scored, numbers: Numbers
    ) -> Parts:
        """Parts of the gradients of the first `summed`; that of the height as of its logarithm."""
        f = numbers[3] if scored.f is None else scored.f
        if self.adds:
            change = Change(lambda: grad * numbers[2], lambda: grad * numbers[2] * f)
        else:
            change = Change(
                lambda: grad * jnp.maximum(scored.raw, 0.0), lambda: of_raw * scored.raw
            )
        of_family = (
            (None, None) if apart is None else self.family.pull(change, apart, f, numbers[:2])
        )
        return (*of_family, change.by_log()) if self.adds else of_family


Scoring = Plain | Distance
