"""Learning curves."""

import numpy as np
import pytest

from distattn_jax import plot

STEPS = np.array([0, 10, 20])
LOSSES = np.array([[3.0, 2.0, 1.0], [5.0, 2.0, 0.0]])  # (seeds, K)


def history():
    return {
        "distance_aware": {"loss": (STEPS, LOSSES), "accuracy": (STEPS[:1], LOSSES[:1, :1])},
        "dot_product": {"loss": (STEPS[:2], LOSSES[:1, :2])},
    }


def test_line_is_the_mean_over_seeds_and_band_spans_all_seeds():
    _, axes = plot.learning_curves(history(), ["accuracy", "loss"]).axes
    ours, baseline = axes.lines
    np.testing.assert_array_equal(ours.get_xydata(), [[0, 4], [10, 2], [20, 0.5]])
    np.testing.assert_array_equal(baseline.get_xydata(), [[0, 3], [10, 2]])
    band = axes.collections[0].get_paths()[0].vertices
    for step, lowest, highest in zip(STEPS, LOSSES.min(0), LOSSES.max(0), strict=True):
        at_step = band[band[:, 0] == step, 1]
        assert (at_step.min(), at_step.max()) == (lowest, highest)


@pytest.mark.parametrize(
    ("seeds", "unit", "caption"),
    [
        ((2, 2), "seeds", "line: mean of 2 seeds; band: lowest to highest value"),
        ((2, 1), "models", "line: mean of all models; band: lowest to highest value"),
        ((1, 1), "seeds", ""),
    ],
)
def test_a_caption_explains_the_band_if_there_is_one(seeds, unit, caption):
    methods = zip(("adapted", "vanilla"), seeds, strict=True)
    made = {method: {"loss": (STEPS, LOSSES[:count])} for method, count in methods}
    figure = plot.learning_curves(made, ["loss"], unit=unit)
    assert figure.get_supxlabel() == caption
    assert len(figure.axes[0].collections) == sum(count > 1 for count in seeds)


def test_each_metric_has_a_panel_with_the_methods_that_logged_it():
    figure = plot.learning_curves(history(), ["accuracy", "loss"])
    assert [axes.get_ylabel() for axes in figure.axes] == ["accuracy", "loss"]
    assert {axes.get_xlabel() for axes in figure.axes} == {"step"}
    assert [len(axes.lines) for axes in figure.axes] == [1, 2]
    ((start, end),) = {axes.get_xlim() for axes in figure.axes}
    assert start <= 0
    assert 20 <= end < 22
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.texts] == ["distance aware", "dot product"]
    for line, name in zip(legend.get_lines(), history(), strict=True):
        assert line.get_color() == plot.METHOD_COLOURS[name]


def test_errors_name_the_argument():
    wrong = {"adapted": {"loss": (STEPS, LOSSES.T)}}
    message = r"values of history\['adapted'\]\['loss'\] must have shape \(seeds, 3\).*got \(3, 2\)"
    with pytest.raises(ValueError, match=message):
        plot.learning_curves(wrong, ["loss"])
    with pytest.raises(ValueError, match=r"some of \['accuracy', 'loss'\]; got \['lost'\]"):
        plot.learning_curves(history(), ["lost"])
