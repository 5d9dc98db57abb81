"""Figure of a metric against a swept option."""

import numpy as np
import pytest

from experiments.papers.attention_guiding.sweep_figure import sweep_figure

PANELS = {
    "one": {"ag": {1: np.array([1.0, 3.0]), 3: np.array([5.0])}},
    "two": {"ag": {1: np.array([0.0, 1.0])}, "mdg": {2: np.array([7.0, 9.0])}},
    "three": {},
}
LABELS = {"xlabel": "layer", "ylabel": "accuracy"}


def texts(axes):
    return [text.get_text() for text in axes.texts]


def test_lines_connect_means_and_break_where_nothing_was_run():
    one, two, _ = sweep_figure(PANELS, option_values=[1, 2, 3], **LABELS).axes
    np.testing.assert_array_equal(one.lines[0].get_ydata(), [2, np.nan, 5])
    np.testing.assert_array_equal(one.lines[0].get_xdata(), [0, 1, 2])
    means = [line.get_ydata() for line in two.lines if len(line.get_ydata()) == 3]
    np.testing.assert_array_equal(means, [[0.5, np.nan, np.nan], [np.nan, 8, np.nan]])
    (whisker,) = one.collections[0].get_segments()
    np.testing.assert_allclose(whisker[:, 1], [2 - np.sqrt(2), 2 + np.sqrt(2)])
    np.testing.assert_array_equal(one.lines[1].get_ydata(), [1, 3])  # Each seed is a dot.


def test_missing_results_are_marked_not_run():
    one, two, three = sweep_figure(PANELS, option_values=[1, 2, 3], **LABELS).axes
    assert [len(texts(axes)) for axes in (one, two, three)] == [1, 1, 1]
    assert {text for axes in (one, two, three) for text in texts(axes)} == {"not run"}
    assert one.texts[0].get_position()[0] == 1  # The second option value.
    assert two.texts[0].get_position()[0] == 2


def test_panels_share_limits_unless_each_has_its_own_label():
    one, two, _ = sweep_figure(PANELS, option_values=[1, 2, 3], **LABELS).axes
    assert one.get_ylim() == two.get_ylim()
    labels = {panel: f"of {panel}" for panel in PANELS}
    panels = sweep_figure(PANELS, option_values=[1, 2, 3], xlabel="layer", ylabel=labels).axes
    assert panels[0].get_ylim() != panels[1].get_ylim()
    assert [axes.get_ylabel() for axes in panels] == list(labels.values())


def test_panels_with_many_option_values_are_not_side_by_side():
    panels = {name: {name: {24: np.ones(1)}} for name in ("ag", "mdg")}
    figure = sweep_figure(panels, option_values=list(range(25)), **LABELS)
    assert figure.get_figwidth() <= 14
    first, second = (axes.get_position() for axes in figure.axes)
    assert first.y0 > second.y1


def test_standard_deviations_are_explained_only_if_there_are_some():
    figure = sweep_figure({"": {"ag": {1: np.ones(1)}}}, option_values=[1], **LABELS)
    assert [text.get_text() for text in figure.legends[0].texts] == ["ag", "one seed"]


def test_the_baseline_is_a_dashed_line_in_every_panel_with_results():
    baseline = ("none", np.array([4.0, 6.0]))
    figure = sweep_figure(
        PANELS, option_values=[1, 2, 3], baseline=baseline, labels={"ag": "AG"}, **LABELS
    )
    dashed = [[line for line in axes.lines if line.get_linestyle() == "--"] for axes in figure.axes]
    assert [[line.get_ydata()[0] for line in lines] for lines in dashed] == [[5], [5], []]
    (legend,) = figure.legends
    names = [text.get_text() for text in legend.texts]
    assert names == ["none", "AG", "mdg", "mean ± standard deviation", "one seed"]
    drawn, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert min(drawn.x0, drawn.y0, width - drawn.x1, height - drawn.y1) >= 0


def test_panels_of_differences_have_a_line_at_zero():
    figure = sweep_figure(PANELS, option_values=[1, 2, 3], differences=["one"], **LABELS)
    zeros = [any(list(line.get_ydata()) == [0, 0] for line in axes.lines) for axes in figure.axes]
    assert zeros == [True, False, False]
    assert figure.axes[0].get_ylim()[0] < 0


def test_errors_name_the_argument():
    with pytest.raises(
        ValueError, match=r"\['one'\]\['ag'\] must be of the option values \[1\]; got \[3\]"
    ):
        sweep_figure(PANELS, option_values=[1], **LABELS)
    with pytest.raises(
        ValueError,
        match=r"panels and option_values must not be empty; got \['three'\] and 1 option",
    ):
        sweep_figure({"three": {}}, option_values=[1], **LABELS)
    wrong = {"one": {"ag": {1: np.zeros((2, 2))}}}
    with pytest.raises(ValueError, match=r"\['one'\]\['ag'\]\[1\] must have shape \(seeds,\)"):
        sweep_figure(wrong, option_values=[1], **LABELS)
