"""Statistics over seeds: means, paired t-test, detectable difference, interaction and order.

The paired t-test of two methods a and b uses the n seeds i with which both methods were run:

    d_i = a_i - b_i,   t = mean(d) √n / std(d),   n - 1 degrees of freedom

If a test is not significant, its power matters: could it have found a difference? The detectable
difference is the true mean of d at which the test is significant with probability 0.8. It assumes
that the true standard deviation of d equals the observed standard deviation.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from distattn_jax.train.results import score

ALPHA, POWER = 0.05, 0.8
ROUNDING = 1e-12  # Differences that vary by less than this fraction of the values are constant.
BETTER, WORSE, UNCLEAR = "better", "worse", "not distinguishable"


class Summary(NamedTuple):
    """Mean and sample standard deviation of values over seeds. For a single seed, `std` is None."""

    mean: float
    std: float | None


class PairedTest(NamedTuple):
    """Result of a paired t-test of two methods over the seeds with which both were run.

    `t`, `p` and `detectable` are None if there is only one seed or if all differences are equal.

    Attributes:
      seeds: Seeds with which both methods were run.
      difference: Mean over seeds of the first method's value minus the second method's value.
      t: Test statistic.
      p: Two-sided p value.
      detectable: Detectable difference: if the true difference has this size, the test is
        significant with probability POWER.
    """

    seeds: tuple[int, ...]
    difference: float
    t: float | None = None
    p: float | None = None
    detectable: float | None = None


class Outcome(NamedTuple):
    """Result of a paired t-test of two methods, and the name of the compared metric."""

    metric: str
    test: PairedTest

    @property
    def kind(self) -> str:
        """BETTER or WORSE if the first method is better or worse with p < ALPHA, else UNCLEAR."""
        if self.test.p is None or self.test.p >= ALPHA:
            return UNCLEAR
        return BETTER if score(self.metric, self.test.difference) > 0 else WORSE


def compare_values(
    metric: str, first: Mapping[int, float], second: Mapping[int, float]
) -> Outcome | None:
    """Compare two methods by a paired t-test. Return None if they have no seed in common.

    Args:
      metric: Name of the metric.
      first: Dict from seed to the value of the first method.
      second: Dict from seed to the value of the second method.
    """
    test = paired_t_test(first, second)
    return None if test is None else Outcome(metric, test)


def summarize(values: Iterable[float]) -> Summary:
    """Return mean and sample standard deviation. Raise a ValueError if `values` is empty."""
    array = np.asarray(list(values), np.float64)
    if array.size == 0:
        raise ValueError("values must hold at least one number; got none.")
    with np.errstate(invalid="ignore"):  # The values of diverged models are infinite.
        return Summary(float(array.mean()), float(array.std(ddof=1)) if array.size > 1 else None)


def paired_t_test(first: Mapping[int, float], second: Mapping[int, float]) -> PairedTest | None:
    """Compare two methods with a t-test that is paired by seed.

    Return None if the two methods have no seed in common.

    Args:
      first: Dict from seed to the value of the first method.
      second: Dict from seed to the value of the second method.
    """
    from scipy import stats  # Slow to import: only where a test is needed.

    seeds = tuple(sorted(first.keys() & second.keys()))
    if not seeds:
        return None
    values = np.asarray([[first[seed], second[seed]] for seed in seeds], np.float64)
    mean, std = summarize(values[:, 0] - values[:, 1])
    if std is None or std <= ROUNDING * np.abs(values).max():
        return PairedTest(seeds, mean)
    t = mean * math.sqrt(len(seeds)) / std
    p = 2 * float(stats.t.sf(abs(t), len(seeds) - 1))
    return PairedTest(seeds, mean, t, p, detectable_difference(std, len(seeds)))


def detectable_difference(
    std: float, pairs: int, *, alpha: float = ALPHA, power: float = POWER
) -> float:
    """Return the true difference at which a two-sided paired t-test has the given power.

    For a true difference δ, t follows the noncentral t distribution with noncentrality δ √n / std.

    Args:
      std: Standard deviation of the differences.
      pairs: Number n of pairs, at least 2.
      alpha: Significance level of the test.
      power: Probability of a significant result, above alpha.
    """
    from scipy import optimize, stats

    if pairs < 2:
        raise ValueError(f"pairs must be at least 2; got {pairs}.")
    if not 0 < alpha < power < 1:
        raise ValueError(f"0 < alpha < power < 1 must hold; got alpha {alpha} and power {power}.")
    degrees = pairs - 1
    critical = stats.t.isf(alpha / 2, degrees)

    def missing_power(noncentrality: float) -> float:
        above = stats.nct.sf(critical, degrees, noncentrality)
        # nct.cdf(-critical, ...) can be nan. By symmetry this is the same probability.
        below = stats.nct.sf(critical, degrees, -noncentrality)
        return float(above + below) - power

    upper = critical + 1.0
    while missing_power(upper) < 0:
        upper *= 2
    return float(optimize.brentq(missing_power, 0.0, upper)) * std / math.sqrt(pairs)


def interaction_test(values: Float[np.ndarray, "methods conditions seeds"]) -> float | None:
    """Return the p value of an F test: do differences between methods depend on the condition?

    The interaction is the part of a value that depends on method and condition together. The test
    compares the mean interaction over seeds with the variation of the interaction between seeds.
    For two methods and two conditions, it equals a paired t-test of the two differences. Return
    None if the interaction is the same for all seeds.

    Args:
      values: Values of at least two methods, two conditions and two seeds.
    """
    from scipy import stats

    methods, conditions, seeds = values.shape
    if min(values.shape) < 2:
        raise ValueError(f"values must have at least two entries on each axis; got {values.shape}.")
    centred = values - values.mean(axis=0, keepdims=True)
    centred = centred - centred.mean(axis=1, keepdims=True)
    mean = centred.mean(axis=-1, keepdims=True)
    degrees = (methods - 1) * (conditions - 1)
    explained = seeds * float((mean**2).sum()) / degrees
    residual = float(((centred - mean) ** 2).sum()) / (degrees * (seeds - 1))
    if math.sqrt(residual) <= ROUNDING * float(np.abs(values).max()):
        return None
    return float(stats.f.sf(explained / residual, degrees, degrees * (seeds - 1)))


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Return Spearman's rank correlation. It is nan if all values of one sequence are equal."""
    from scipy import stats

    ranks = [stats.rankdata(values) for values in (first, second)]
    if any(np.ptp(rank) == 0 for rank in ranks):
        return float("nan")
    return float(np.corrcoef(*ranks)[0, 1])
