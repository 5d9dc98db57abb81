"""Bars that compare methods."""

import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.container import ErrorbarContainer

from distattn_jax import plot
from experiments.papers.bars import grouped_bars

VALUES = {
    "accuracy": {"vanilla": np.array([90.0, 92.0, 94.0]), "distance_aware": np.array([95.0])},
    "error": {"distance_aware": jnp.asarray([0.5, 0.25])},
    "AUC": {},
}
PUBLISHED = {"accuracy": {"vanilla": (91, 0.5), "adapted": (93.5, None)}}


def texts(axes):
    return [text.get_text() for text in axes.texts]


def inside(figure):
    drawn, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    return min(drawn.x0, drawn.y0, width - drawn.x1, height - drawn.y1) >= 0


def test_bar_line_and_dots_are_mean_deviation_and_seeds():
    accuracy, error, _ = grouped_bars(VALUES).axes
    assert [bar.get_width() for bar in accuracy.patches] == [92, 95]
    (whisker,) = (collection.get_segments() for collection in accuracy.collections)
    np.testing.assert_allclose(whisker[0][:, 0], [90, 94])  # One seed has no deviation.
    assert [line.get_xdata().tolist() for line in accuracy.lines] == [[90, 92, 94], [95]]
    assert [bar.get_width() for bar in error.patches] == [0.375]
    colours = [to_hex(bar.get_facecolor()) for bar in accuracy.patches]
    assert colours == [plot.METHOD_COLOURS[name] for name in ("vanilla", "distance_aware")]


def test_each_method_has_a_row_and_missing_ones_are_marked_not_run():
    figure = grouped_bars(VALUES, labels={"vanilla": "Transformer"})
    accuracy, error, auc = figure.axes
    assert [axes.get_title() for axes in figure.axes] == list(VALUES)
    names = [label.get_text() for label in accuracy.get_yticklabels()]
    assert names == ["Transformer", "distance aware"]
    assert [texts(axes) for axes in figure.axes] == [[], ["not run"], ["not run"]]
    assert error.texts[0].get_position()[1] == 0  # The row of the first method.
    assert not auc.patches
    assert inside(figure)


def test_published_numbers_are_marks_with_their_deviation():
    figure = grouped_bars(VALUES, published=PUBLISHED, columns=1)
    accuracy = figure.axes[0]
    found = [part.lines for part in accuracy.containers if isinstance(part, ErrorbarContainer)]
    marks = {mark.get_xdata()[0]: whiskers for mark, _, whiskers in found}
    assert set(marks) == {91, 93.5}
    np.testing.assert_allclose(marks[91][0].get_segments()[0][:, 0], [90.5, 91.5])
    assert not marks[93.5]
    assert texts(accuracy) == ["not run"]  # This method has only a published number.
    legend = [text.get_text() for text in figure.legends[0].texts]
    assert legend == ["mean ± standard deviation", "one seed", "published"]
    assert inside(figure)


def test_limits_include_everything_and_a_note_names_axes_that_do_not_begin_at_zero():
    figure = grouped_bars(VALUES, published=PUBLISHED, lower_is_better=["error"])
    accuracy, error, _ = figure.axes
    start, end = accuracy.get_xlim()
    assert 85 < start < 90
    assert 95 < end < 96
    assert figure.get_supxlabel() == "axes do not begin at 0"
    assert [axes.get_xlabel() for axes in (accuracy, error)] == ["", "lower is better"]
    from_zero = {"loss": {"vanilla": np.array([0.1, 3.0])}}
    some = grouped_bars({**from_zero, "accuracy": VALUES["accuracy"]})
    assert some.get_supxlabel() == "some axes do not begin at 0"
    assert grouped_bars(from_zero).get_supxlabel() == ""


@pytest.mark.parametrize("gain", [8.0, -8.0, 0.0])
def test_differences_are_drawn_from_zero(gain):
    figure = grouped_bars({"gain": {"ag": np.asarray([gain])}}, from_zero=True)
    (axes,) = figure.axes
    start, end = axes.get_xlim()
    assert start < min(gain, 0.0) <= max(gain, 0.0) < end
    assert [0, 0] in [list(line.get_xdata()) for line in axes.lines]
    assert figure.get_supxlabel() == ""


def test_equal_values_can_be_drawn():
    (axes,) = grouped_bars({"accuracy": {"vanilla": np.array([90.0, 90.0])}}).axes
    start, end = axes.get_xlim()
    assert start < 90 < end


def test_errors_name_the_argument():
    with pytest.raises(ValueError, match=r"values\['a'\]\['vanilla'\] must have shape \(seeds,\)"):
        grouped_bars({"a": {"vanilla": np.ones((2, 2))}})
    with pytest.raises(ValueError, match=r"values\['a'\]\['vanilla'\] must be finite; got \[nan\]"):
        grouped_bars({"a": {"vanilla": np.array([np.nan])}})
    with pytest.raises(
        ValueError, match=r"published must name panels of \['AUC'\]; got \['accuracy'\]"
    ):
        grouped_bars({"AUC": {}}, published=PUBLISHED)
    with pytest.raises(ValueError, match=r"lower_is_better must name panels of .*got \['MAE'\]"):
        grouped_bars(VALUES, lower_is_better=["MAE"])
    with pytest.raises(ValueError, match=r"at least one method; got none in \['AUC'\]"):
        grouped_bars({"AUC": {}})
    with pytest.raises(ValueError, match="columns must be at least 1; got 0"):
        grouped_bars(VALUES, columns=0)
