"""Statistics over seeds, against values computed by hand."""

import math

import numpy as np
import pytest
from scipy import integrate, stats

from experiments.papers.statistics import (
    detectable_difference,
    interaction_test,
    paired_t_test,
    rank_correlation,
    summarize,
)


def test_the_standard_deviation_is_that_of_a_sample():
    # squares: 0.09, 0.01, 0.16, over 2
    assert summarize([0.2, 0.4, 0.9]) == pytest.approx((0.5, math.sqrt(0.13)))
    assert summarize([0.75]) == (0.75, None)
    with pytest.raises(ValueError, match="values must hold at least one number"):
        summarize([])


def test_the_test_is_paired_by_seed():
    first, second = {3: 7.0, 1: 5.0, 2: 9.0}, {1: 4.0, 2: 7.0, 3: 4.0}
    found = paired_t_test(first, second)  # differences 1, 2, 3: mean 2, deviation 1
    assert found.seeds == (1, 2, 3)
    assert found.difference == pytest.approx(2)
    assert found.t == pytest.approx(2 * math.sqrt(3))
    assert found.p == pytest.approx(1 - math.sqrt(12 / 14))  # of 2 degrees: 1 - t / sqrt(2 + t²)
    assert found.detectable == pytest.approx(detectable_difference(1.0, 3))


def test_swapping_the_methods_changes_only_the_sign():
    first, second = {0: 0.9, 1: 0.7}, {0: 0.6, 1: 0.6}
    there, back = paired_t_test(first, second), paired_t_test(second, first)
    assert (there.difference, there.t) == pytest.approx((0.2, 2.0))
    assert (back.difference, back.t) == pytest.approx((-0.2, -2.0))
    assert there.p == pytest.approx(1 - 2 / math.pi * math.atan(2))  # of 1 degree: Cauchy
    assert back.p == pytest.approx(there.p)


def test_only_shared_seeds_count():
    found = paired_t_test({0: 0.5, 1: 0.6, 2: 9.0}, {0: 0.4, 1: 0.4, 3: 9.0})
    assert found.seeds == (0, 1)
    assert found.difference == pytest.approx(0.15)
    assert paired_t_test({0: 0.5}, {1: 0.5}) is None


def test_one_pair_has_a_difference_but_no_test():
    assert paired_t_test({0: 0.75}, {0: 0.5}) == ((0,), 0.25, None, None, None)


@pytest.mark.parametrize("difference", [0.0, 0.1])
def test_constant_differences_are_not_tested(difference):
    second = {0: 0.1, 1: 0.7, 2: 0.3}  # 0.8 - 0.7 is not 0.4 - 0.3, by the last bit
    found = paired_t_test({seed: figure + difference for seed, figure in second.items()}, second)
    assert found.difference == pytest.approx(difference)
    assert (found.t, found.p, found.detectable) == (None, None, None)


@pytest.mark.parametrize(
    ("pairs", "wanted"),
    [(2, 0.8), (3, 0.1), (5, 0.8), (34, 0.8), (200, 0.1)],  # At 0.1 both sides of the test matter.
)
def test_the_test_has_the_requested_power_at_the_detectable_difference(pairs, wanted):
    difference, degrees = detectable_difference(2.0, pairs, power=wanted), pairs - 1
    shift = difference / 2 * math.sqrt(pairs)
    critical = stats.t.isf(0.025, degrees)

    def density(spread):  # of the sample's deviation over the true one, and the test given it
        limit = critical * spread
        significant = stats.norm.sf(limit - shift) + stats.norm.cdf(-limit - shift)
        scale = math.sqrt(degrees)
        return stats.chi.pdf(spread * scale, degrees) * scale * significant

    power, _ = integrate.quad(density, 0, 1 + 10 / math.sqrt(degrees), points=[1], limit=200)
    assert power == pytest.approx(wanted, abs=1e-6)


def test_errors_name_the_argument():
    with pytest.raises(ValueError, match="pairs must be at least 2; got 1"):
        detectable_difference(1.0, 1)
    with pytest.raises(ValueError, match=r"got alpha 0\.05 and power 0\.01"):
        detectable_difference(1.0, 5, power=0.01)


def test_the_interaction_of_two_methods_and_two_conditions_is_a_paired_test():
    values = np.random.default_rng(0).normal(size=(2, 2, 5))
    gains = values[0] - values[1]  # of each condition and seed
    expected = paired_t_test(dict(enumerate(gains[0])), dict(enumerate(gains[1])))
    assert interaction_test(values) == pytest.approx(expected.p)


def test_the_interaction_test_finds_only_what_depends_on_both():
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(4, 3, 6))
    effects = sum(rng.normal(0, 10, size) for size in ((4, 1, 6), (1, 3, 6), (1, 1, 6)))
    assert interaction_test(noise + effects) == pytest.approx(interaction_test(noise))
    crossed = noise.copy()
    crossed[0, 0] += 10
    assert interaction_test(crossed) < 1e-4 < interaction_test(noise)


def test_the_interaction_test_has_the_p_values_of_chance_without_an_interaction():
    rng = np.random.default_rng(0)
    found = [interaction_test(rng.normal(size=(3, 4, 5))) for _ in range(400)]
    assert stats.kstest(found, "uniform").pvalue > 0.01


def test_an_interaction_without_spread_is_not_tested_and_one_seed_is_refused():
    values = np.arange(4.0).reshape(2, 2, 1).repeat(3, axis=-1)
    assert interaction_test(values) is None
    with pytest.raises(ValueError, match=r"at least two entries on each axis; got \(2, 2, 1\)"):
        interaction_test(values[..., :1])


def test_the_rank_correlation_depends_on_the_order_alone():
    assert rank_correlation([1, 2, 9], [0.1, 0.2, 0.3]) == pytest.approx(1)
    assert rank_correlation([1, 2, 9], [3, 2, 1]) == pytest.approx(-1)
    assert rank_correlation([1, 2, 3], [1, 3, 2]) == pytest.approx(0.5)  # 1 - 6 * 2 / (3 * 8)
    assert math.isnan(rank_correlation([1, 2, 3], [5, 5, 5]))
