"""Pictures of w, v and f(wR; v)."""

import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.colors import to_hex

from distattn_jax import plot

WEIGHT = np.array([[[0.3, -0.5], [0.1, -0.1]], [[-0.2, 0.5], [-0.3, 0.2]]])  # (seeds, L, N)
SHAPE = np.array([[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]])


def test_heads_are_sorted_by_w_within_a_seed_before_the_mean_is_taken():
    of_w, of_v = plot.head_parameters(WEIGHT, SHAPE).axes
    heights = [[bar.get_height() for bar in axes.patches] for axes in (of_w, of_v)]
    # Seed 0: w = -0.5, -0.1, 0.1, 0.3 and v = 2, 4, 3, 1; seed 1: -0.3, -0.2, 0.2, 0.5, 7, 5, 8, 6.
    np.testing.assert_allclose(heights[0], [-0.4, -0.15, 0.15, 0.4])
    np.testing.assert_allclose(heights[1], [4.5, 4.5, 5.5, 3.5])
    whiskers = [segment[:, 1] for segment in of_v.collections[0].get_segments()]
    np.testing.assert_allclose(whiskers, [[2, 7], [4, 5], [3, 8], [1, 6]])


def test_local_and_global_heads_have_the_colours_of_the_legend():
    figure = plot.head_parameters(jnp.asarray(WEIGHT), jnp.asarray(SHAPE))
    legend = {
        text.get_text().split()[0]: to_hex(patch.get_facecolor())
        for text, patch in zip(
            figure.legends[0].texts, figure.legends[0].get_patches(), strict=True
        )
    }
    for axes in figure.axes:
        colours = [to_hex(bar.get_facecolor()) for bar in axes.patches]
        assert colours == 2 * [legend["local"]] + 2 * [legend["global"]]
    assert legend["local"] != legend["global"]


def test_a_coefficient_curve_is_the_equation_and_is_labelled_with_w_and_v():
    weight, shape = np.array([-0.25, 0.5]), np.array([1.5, -2.0])
    (axes,) = plot.coefficient_curves(weight, shape, furthest=12).axes
    curves = {line.get_label(): line.get_xydata() for line in axes.lines[1:]}
    labels = ["$w$ = −0.25, $v$ = 1.5", "$w$ = 0.5, $v$ = −2"]
    assert set(curves) == set(labels)
    for label, w, v in zip(labels, weight, shape, strict=True):
        distance, coefficient = curves[label].T
        assert (distance[0], distance[-1]) == (0, 12)
        expected = (1 + np.exp(v)) / (1 + np.exp(v - w * distance))
        np.testing.assert_allclose(coefficient, expected, rtol=1e-5)


def test_what_does_not_fit_is_named():
    with pytest.raises(ValueError, match=r"weight must have shape \(seeds, L, N\).*got \(2, 2\)"):
        plot.head_parameters(WEIGHT[0], SHAPE[0])
    with pytest.raises(ValueError, match=r"shape must have shape \(2, 2, 2\).*got \(1, 2, 2\)"):
        plot.head_parameters(WEIGHT, SHAPE[:1])
    with pytest.raises(ValueError, match=r"shape must have shape \(2,\).*got \(3,\)"):
        plot.coefficient_curves(np.ones(2), np.ones(3), furthest=4)
    with pytest.raises(ValueError, match="furthest must be at least 1; got 0"):
        plot.coefficient_curves(np.ones(2), np.ones(2), furthest=0)
