"""Curves and matrices of the learnable sigmoid f(x; v)."""

import numpy as np
import pytest

from distattn_jax import plot


def sigmoid(x, v):
    return (1 + np.exp(v)) / (1 + np.exp(v - x))


def test_mapping_curves_follow_the_equation_and_the_legend_follows_the_curves():
    figure = plot.mapping_curves([0, 1.5, -2])
    curves = {line.get_label(): line.get_xydata() for line in figure.axes[0].lines}
    labels = {"$v$ = 1.5": 1.5, "$v$ = 0": 0, "$v$ = −2": -2}
    for label, v in labels.items():
        x, coefficient = curves[label].T
        assert (x[0], x[-1]) == (-10, 10)
        np.testing.assert_allclose(coefficient, sigmoid(x, v), rtol=1e-5)
    assert [text.get_text() for text in figure.legends[0].texts] == list(labels)


def test_coefficient_curves_follow_the_equation_and_are_labelled_with_w_and_v():
    weight, shape = np.array([-0.25, 0.5]), np.array([1.5, -2.0])
    (axes,) = plot.coefficient_curves(weight, shape, max_distance=12).axes
    curves = {line.get_label(): line.get_xydata() for line in axes.lines[1:]}
    labels = ["head 1: $w$ = −0.25, $v$ = 1.5", "head 2: $w$ = 0.5, $v$ = −2"]
    assert set(curves) == set(labels)
    for label, w, v in zip(labels, weight, shape, strict=True):
        distance, coefficient = curves[label].T
        assert (distance[0], distance[-1]) == (0, 12)
        np.testing.assert_allclose(coefficient, sigmoid(w * distance, v), rtol=1e-5)


def test_the_legend_lists_the_heads_from_the_largest_w_to_the_smallest():
    weight, shape = np.random.default_rng(0).normal(size=(2, 16))
    (legend,) = plot.coefficient_curves(weight, shape, max_distance=5).legends
    heads = [int(text.get_text().split(":")[0].removeprefix("head ")) for text in legend.texts]
    assert heads == [head + 1 for head in np.argsort(-weight)]


def test_coefficient_matrices_follow_the_equation_with_one_row_for_each_v():
    *panels, bar = plot.coefficient_matrices([1, -1, 0.5], [-1, 2], length=4).axes
    pairs = [(w, v) for v in (-1, 2) for w in (1, -1, 0.5)]
    assert len(panels) == 6
    for axes, (w, v) in zip(panels, pairs, strict=True):
        assert axes.get_title() == f"$w$ = {w}, $v$ = {v}".replace("-", "−")
        expected = [[sigmoid(w * abs(i - j), v) for j in range(4)] for i in range(4)]
        np.testing.assert_allclose(axes.images[0].get_array(), expected, rtol=1e-5)
    assert bar.get_ylabel() == "coefficient $f(w|i-j|; v)$"


@pytest.mark.parametrize("weights", [[-1], [1, -1]])
def test_all_matrices_share_a_scale_centred_on_one(weights):
    *panels, _ = plot.coefficient_matrices(weights, [1], length=5).axes
    (scale,) = {axes.images[0].norm for axes in panels}
    assert (scale(0), scale(1)) == (0, 0.5)
    assert all(scale(axes.images[0].get_array()).max() <= 1 for axes in panels)


def test_errors_name_the_argument():
    with pytest.raises(ValueError, match=r"shape must have shape \(2,\).*got \(3,\)"):
        plot.coefficient_curves(np.ones(2), np.ones(3), max_distance=4)
    with pytest.raises(ValueError, match="max_distance must be at least 1; got 0"):
        plot.coefficient_curves(np.ones(2), np.ones(2), max_distance=0)
    with pytest.raises(ValueError, match=r"shapes must have shape \(M,\).*got \(0,\)"):
        plot.mapping_curves([])
    with pytest.raises(ValueError, match="limit must be above 0; got -1"):
        plot.mapping_curves([1], limit=-1)
    with pytest.raises(ValueError, match=r"weights must have shape \(columns,\).*got \(1, 2\)"):
        plot.coefficient_matrices(np.ones((1, 2)), [1], length=3)
    with pytest.raises(ValueError, match="length must be at least 1; got 0"):
        plot.coefficient_matrices([1], [1], length=0)
