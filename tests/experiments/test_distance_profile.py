"""Figure of the share of attention at each distance."""

import numpy as np
import pytest

from distattn_jax.plot.style import head_colours
from experiments.papers.da_transformer.distance_profile import distance_profile

HEADS = np.array([[0.6, 0.3, 0.1], [0.2, 0.3, 0.5], [0.4, 0.4, 0.2]])  # (N, K)
WEIGHT = np.array([-0.5, 0.25, -0.1])
UNIFORM = np.array([0.5, 0.3, 0.2])


def drawn(**options):
    profiles = {"vanilla": HEADS[::-1] / 2, "distance_aware": HEADS}
    return distance_profile(profiles, uniform=UNIFORM, **options)


def test_distance_aware_heads_have_their_own_lines_and_other_methods_a_mean():
    (axes,) = drawn(weights={"distance_aware": WEIGHT}).axes
    vanilla, *heads, uniform = axes.lines
    np.testing.assert_allclose(vanilla.get_ydata(), HEADS.mean(0) / 2)
    np.testing.assert_array_equal([line.get_ydata() for line in heads], HEADS)
    np.testing.assert_array_equal(uniform.get_xydata(), np.stack([[0, 1, 2], UNIFORM], axis=1))
    assert axes.get_yscale() == "log"
    assert [line.get_color() for line in heads] == head_colours(WEIGHT)


def test_the_legend_counts_local_and_global_heads():
    figure = drawn(weights={"distance_aware": WEIGHT}, labels={"distance_aware": "DA"})
    entries = {
        text.get_text(): line.get_color()
        for text, line in zip(figure.legends[0].texts, figure.legends[0].get_lines(), strict=True)
    }
    assert list(entries) == [
        "vanilla,\nmean of 3 heads",
        "DA,\nlocal ($w<0$), 2 heads",
        "DA,\nglobal ($w>0$), 1 head",
        "uniform attention",
    ]
    darkest_local, global_head, _ = head_colours(WEIGHT)
    assert list(entries.values())[1:3] == [darkest_local, global_head]


def test_errors_name_the_argument():
    with pytest.raises(ValueError, match=r"profiles\['vanilla'\] must have shape \(N, 2\)"):
        distance_profile({"vanilla": HEADS}, uniform=UNIFORM[:2])
    with pytest.raises(
        ValueError, match=r"weights\['vanilla'\] must have shape \(3,\).*got \(2,\)"
    ):
        drawn(weights={"vanilla": WEIGHT[:2]})
    with pytest.raises(ValueError, match=r"weights must be of methods in .*got \['adapted'\]"):
        drawn(weights={"adapted": WEIGHT})
    with pytest.raises(ValueError, match=r"profiles\['vanilla'\] must be shares.*got -0.6 to"):
        distance_profile({"vanilla": -HEADS}, uniform=UNIFORM)
    with pytest.raises(ValueError, match="profiles must hold at least one method; got none"):
        distance_profile({}, uniform=UNIFORM)
