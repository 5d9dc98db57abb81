"""Heads drawn as points."""

import numpy as np
import pytest

from experiments.papers.attention_guiding.head_components import head_components

POINTS = {
    "no guide": np.arange(12.0).reshape(2, 3, 2),
    "AG": -2 * np.arange(12.0).reshape(2, 3, 2),
}


def test_each_head_is_a_point_in_the_colour_of_its_layer():
    figure = head_components(POINTS, explained=[0.5, 0.25])
    first, second = figure.axes
    for axes, points in zip((first, second), POINTS.values(), strict=True):
        drawn = [line for line in axes.lines if len(line.get_xdata()) == 3]
        np.testing.assert_array_equal([line.get_xydata() for line in drawn], points)
    colours = [[line.get_color() for line in axes.lines[2:]] for axes in (first, second)]
    np.testing.assert_array_equal(colours[0], colours[1])
    assert tuple(colours[0][0]) != tuple(colours[0][1])
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.texts] == ["1", "2"]
    assert first.get_xlabel() == "component 1 (50 %)"
    assert first.get_ylabel() == "component 2 (25 %)"


def test_all_panels_share_square_axes():
    panels = head_components(POINTS, columns=1).axes
    assert [axes.get_title() for axes in panels] == list(POINTS)
    assert len({(axes.get_xlim(), axes.get_ylim()) for axes in panels}) == 1
    (left, right), (bottom, top) = panels[0].get_xlim(), panels[0].get_ylim()
    assert right - left == pytest.approx(top - bottom)
    assert left < -20
    assert top > 11


def test_the_legend_of_many_layers_lies_inside_the_figure():
    figure = head_components({"": np.random.default_rng(0).normal(size=(24, 1, 2))})
    drawn, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert min(drawn.x0, drawn.y0, width - drawn.x1, height - drawn.y1) >= 0


def test_equal_heads_can_be_drawn():
    (axes,) = head_components({"": np.ones((1, 2, 2))}).axes
    assert axes.get_xlim()[0] < 1 < axes.get_xlim()[1]


def test_errors_name_the_argument():
    with pytest.raises(
        ValueError, match=r"points\['AG'\] must have shape \(2, N, 2\).*\(1, 3, 2\)"
    ):
        head_components({**POINTS, "AG": POINTS["AG"][:1]})
    with pytest.raises(ValueError, match="at least one model; got none"):
        head_components({})
    with pytest.raises(ValueError, match="columns must be at least 1; got 0"):
        head_components(POINTS, columns=0)
