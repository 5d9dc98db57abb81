"""Seeds as a sample: mean and spread, the paired t-test, and the difference it could have detected.

d_i = a_i - b_i over the seeds i that both methods have,   t = mean(d) √n / std(d),   n - 1 degrees

A test that finds nothing says little unless it is known what it could have found: the true mean of
d at which it comes out significant four times in five, if the true spread of d is the one seen.
"""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

ALPHA, POWER = 0.05, 0.8
ROUNDING = 1e-12  # differences that vary by less than this share of the figures do not vary


class Summary(NamedTuple):
    """The mean over seeds, and their sample standard deviation: None for one seed."""

    mean: float
    std: float | None


class Comparison(NamedTuple):
    """Two methods over the same seeds.

    Attributes:
      seeds: those that both have.
      difference: the mean of first - second.
      t, p: of the two-sided test; None where there is none: one seed, or no variance.
      detectable: the least true difference found with probability POWER; None as above.
    """

    seeds: tuple[int, ...]
    difference: float
    t: float | None = None
    p: float | None = None
    detectable: float | None = None


def summary(values: Iterable[float]) -> Summary:
    """Mean and sample standard deviation."""
    array = np.asarray(list(values), np.float64)
    if array.size == 0:
        raise ValueError("values must hold at least one figure; got none.")
    return Summary(float(array.mean()), float(array.std(ddof=1)) if array.size > 1 else None)


def compare(first: Mapping[int, float], second: Mapping[int, float]) -> Comparison | None:
    """The paired test of two methods, each seed -> figure; None when they share no seed."""
    from scipy import stats  # slow to import: only where there is something to compare

    seeds = tuple(sorted(first.keys() & second.keys()))
    if not seeds:
        return None
    figures = np.asarray([[first[seed], second[seed]] for seed in seeds], np.float64)
    mean, std = summary(figures[:, 0] - figures[:, 1])
    if std is None or std <= ROUNDING * np.abs(figures).max():
        return Comparison(seeds, mean)
    t = mean * math.sqrt(len(seeds)) / std
    p = 2 * float(stats.t.sf(abs(t), len(seeds) - 1))
    return Comparison(seeds, mean, t, p, detectable_difference(std, len(seeds)))


def detectable_difference(
    std: float, pairs: int, *, alpha: float = ALPHA, power: float = POWER
) -> float:
    """The true difference at which a two-sided paired t-test has this power, exactly.

    With a true difference δ, t follows the noncentral t distribution of noncentrality δ √n / std.

    Args:
      std: sample standard deviation of the differences, taken for the true one.
      pairs: n.
      alpha: the test's level.
      power: probability of a significant outcome; above alpha.
    """
    from scipy import optimize, stats

    if pairs < 2:
        raise ValueError(f"pairs must be at least 2; got {pairs}.")
    if not 0 < alpha < power < 1:
        raise ValueError(f"0 < alpha < power < 1 must hold; got alpha {alpha} and power {power}.")
    degrees = pairs - 1
    critical = stats.t.isf(alpha / 2, degrees)

    def lacking(noncentrality: float) -> float:
        above = stats.nct.sf(critical, degrees, noncentrality)
        below = stats.nct.sf(
            critical, degrees, -noncentrality
        )  # nct.cdf(-critical, ...) can be nan
        return float(above + below) - power

    greatest = critical + 1.0
    while lacking(greatest) < 0:
        greatest *= 2
    return float(optimize.brentq(lacking, 0.0, greatest)) * std / math.sqrt(pairs)
