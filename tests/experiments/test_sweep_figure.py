"""A metric against what was varied."""

import numpy as np
import pytest

from experiments.papers.attention_guiding.sweep_figure import sweep

FIGURES = {
    "one": {"ag": {1: np.array([1.0, 3.0]), 3: np.array([5.0])}},
    "two": {"ag": {1: np.array([0.0, 1.0])}, "mdg": {2: np.array([7.0, 9.0])}},
    "three": {},
}
WORDS = {"xlabel": "layer", "ylabel": "accuracy"}


def written(axes):
    return [text.get_text() for text in axes.texts]


def test_lines_go_through_means_and_are_broken_where_nothing_was_run():
    one, two, _ = sweep(FIGURES, places=[1, 2, 3], **WORDS).axes
    np.testing.assert_array_equal(one.lines[0].get_ydata(), [2, np.nan, 5])
    np.testing.assert_array_equal(one.lines[0].get_xdata(), [0, 1, 2])
    means = [line.get_ydata() for line in two.lines if len(line.get_ydata()) == 3]
    np.testing.assert_array_equal(means, [[0.5, np.nan, np.nan], [np.nan, 8, np.nan]])
    (whisker,) = one.collections[0].get_segments()
    np.testing.assert_allclose(whisker[:, 1], [2 - np.sqrt(2), 2 + np.sqrt(2)])
    np.testing.assert_array_equal(one.lines[1].get_ydata(), [1, 3])  # every seed is a dot


def test_what_was_not_run_says_so():
    one, two, three = sweep(FIGURES, places=[1, 2, 3], **WORDS).axes
    assert [len(written(axes)) for axes in (one, two, three)] == [1, 1, 1]
    assert {text for axes in (one, two, three) for text in written(axes)} == {"not run"}
    assert one.texts[0].get_position()[0] == 1  # the second place
    assert two.texts[0].get_position()[0] == 2


def test_panels_share_a_scale_unless_each_has_its_own():
    one, two, _ = sweep(FIGURES, places=[1, 2, 3], **WORDS).axes
    assert one.get_ylim() == two.get_ylim()
    labels = {panel: f"of {panel}" for panel in FIGURES}
    panels = sweep(FIGURES, places=[1, 2, 3], xlabel="layer", ylabel=labels).axes
    assert panels[0].get_ylim() != panels[1].get_ylim()
    assert [axes.get_ylabel() for axes in panels] == list(labels.values())


def test_a_baseline_is_a_dashed_line_in_every_panel_that_has_anything():
    baseline = ("none", np.array([4.0, 6.0]))
    figure = sweep(FIGURES, places=[1, 2, 3], baseline=baseline, labels={"ag": "AG"}, **WORDS)
    dashed = [[line for line in axes.lines if line.get_linestyle() == "--"] for axes in figure.axes]
    assert [[line.get_ydata()[0] for line in lines] for lines in dashed] == [[5], [5], []]
    (legend,) = figure.legends
    names = [text.get_text() for text in legend.texts]
    assert names == ["none", "AG", "mdg", "mean ± standard deviation", "one seed"]
    drawn, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert min(drawn.x0, drawn.y0, width - drawn.x1, height - drawn.y1) >= 0


def test_nothing_gained_is_a_line_in_panels_of_differences():
    figure = sweep(FIGURES, places=[1, 2, 3], differences=["one"], **WORDS)
    zeros = [any(list(line.get_ydata()) == [0, 0] for line in axes.lines) for axes in figure.axes]
    assert zeros == [True, False, False]
    assert figure.axes[0].get_ylim()[0] < 0


def test_what_does_not_fit_is_named():
    with pytest.raises(
        ValueError, match=r"\['one'\]\['ag'\] must be of the places \[1\]; got \[3\]"
    ):
        sweep(FIGURES, places=[1], **WORDS)
    with pytest.raises(
        ValueError, match=r"figures must hold a method.*got \['three'\] and 1 places"
    ):
        sweep({"three": {}}, places=[1], **WORDS)
    wrong = {"one": {"ag": {1: np.zeros((2, 2))}}}
    with pytest.raises(ValueError, match=r"\['one'\]\['ag'\]\[1\] must have shape \(seeds,\)"):
        sweep(wrong, places=[1], **WORDS)
