"""Figures of the reports: bars, sweeps of an option, attention by distance, heads as points."""

import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.container import ErrorbarContainer

from distattn_jax import plot
from distattn_jax.plot.style import head_colours
from experiments.papers.attention_guiding.figures import head_components
from experiments.papers.da_transformer.figures import distance_profile
from experiments.papers.figures import grouped_bars, spread_labels, sweep_figure
from tests.plot.pages import lies_inside

VALUES = {
    "accuracy": {"vanilla": np.array([90.0, 92.0, 94.0]), "distance_aware": np.array([95.0])},
    "error": {"distance_aware": jnp.asarray([0.5, 0.25])},
    "AUC": {},
}
PUBLISHED = {"accuracy": {"vanilla": (91, 0.5), "adapted": (93.5, None)}}


def texts(axes):
    return [text.get_text() for text in axes.texts]


def legend_of(figure):
    (legend,) = figure.legends
    return [text.get_text() for text in legend.texts]


def test_bar_line_and_dots_are_mean_deviation_and_seeds_and_missing_methods_are_marked():
    figure = grouped_bars(VALUES, labels={"vanilla": "Transformer"})
    accuracy, error, auc = figure.axes
    assert [bar.get_width() for bar in accuracy.patches] == [92, 95]
    (whisker,) = (collection.get_segments() for collection in accuracy.collections)
    np.testing.assert_allclose(whisker[0][:, 0], [90, 94])  # One seed has no deviation.
    assert [line.get_xdata().tolist() for line in accuracy.lines] == [[90, 92, 94], [95]]
    assert [bar.get_width() for bar in error.patches] == [0.375]
    colours = [to_hex(bar.get_facecolor()) for bar in accuracy.patches]
    assert colours == [plot.METHOD_COLOURS[name] for name in ("vanilla", "distance_aware")]

    assert [axes.get_title() for axes in figure.axes] == list(VALUES)
    names = [label.get_text() for label in accuracy.get_yticklabels()]
    assert names == ["Transformer", "distance aware"]
    assert [texts(axes) for axes in figure.axes] == [[], ["not run"], ["not run"]]
    assert error.texts[0].get_position()[1] == 0  # The row of the first method.
    assert not auc.patches
    assert lies_inside(figure)


def test_published_numbers_are_marks_with_their_deviation():
    figure = grouped_bars(VALUES, published=PUBLISHED, columns=1)
    accuracy = figure.axes[0]
    found = [part.lines for part in accuracy.containers if isinstance(part, ErrorbarContainer)]
    marks = {mark.get_xdata()[0]: whiskers for mark, _, whiskers in found}
    assert set(marks) == {91, 93.5}
    np.testing.assert_allclose(marks[91][0].get_segments()[0][:, 0], [90.5, 91.5])
    assert not marks[93.5]
    assert texts(accuracy) == ["not run"]  # This method has only a published number.
    assert legend_of(figure) == ["mean ± standard deviation", "one seed", "published"]
    assert lies_inside(figure)


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


PANELS = {
    "one": {"ag": {1: np.array([1.0, 3.0]), 3: np.array([5.0])}},
    "two": {"ag": {1: np.array([0.0, 1.0])}, "mdg": {2: np.array([7.0, 9.0])}},
    "three": {},
}


def sweep(option_values=(1, 2, 3), panels=PANELS, **options):
    labels = {"xlabel": "layer", "ylabel": "accuracy", **options}
    return sweep_figure(panels, option_values=list(option_values), **labels)


def test_lines_connect_means_and_missing_results_are_marked_not_run():
    one, two, three = sweep().axes
    np.testing.assert_array_equal(one.lines[0].get_ydata(), [2, np.nan, 5])
    np.testing.assert_array_equal(one.lines[0].get_xdata(), [0, 1, 2])
    means = [line.get_ydata() for line in two.lines if len(line.get_ydata()) == 3]
    np.testing.assert_array_equal(means, [[0.5, np.nan, np.nan], [np.nan, 8, np.nan]])
    (whisker,) = one.collections[0].get_segments()
    np.testing.assert_allclose(whisker[:, 1], [2 - np.sqrt(2), 2 + np.sqrt(2)])
    np.testing.assert_array_equal(one.lines[1].get_ydata(), [1, 3])  # Each seed is a dot.
    assert [texts(axes) for axes in (one, two, three)] == [["not run"]] * 3
    assert one.texts[0].get_position()[0] == 1  # The second option value.
    assert two.texts[0].get_position()[0] == 2
    assert one.get_ylim() == two.get_ylim()


def test_panels_do_not_share_limits_if_each_has_its_own_label():
    labels = {panel: f"of {panel}" for panel in PANELS}
    panels = sweep(ylabel=labels).axes
    assert panels[0].get_ylim() != panels[1].get_ylim()
    assert [axes.get_ylabel() for axes in panels] == list(labels.values())


def test_panels_with_many_option_values_are_not_side_by_side():
    panels = {name: {name: {24: np.ones(1)}} for name in ("ag", "mdg")}
    figure = sweep(range(25), panels)
    assert figure.get_figwidth() <= 14
    first, second = (axes.get_position() for axes in figure.axes)
    assert first.y0 > second.y1


def test_standard_deviations_are_explained_only_if_there_are_some():
    figure = sweep([1], {"": {"ag": {1: np.ones(1)}}})
    assert legend_of(figure) == ["ag", "one seed"]


def test_the_baseline_is_a_dashed_line_in_every_panel_with_results():
    baselines = {title: {"none": np.array([4.0, 6.0])} for title in PANELS}
    figure = sweep(baselines=baselines, labels={"ag": "AG"})
    dashed = [[line for line in axes.lines if line.get_linestyle() == "--"] for axes in figure.axes]
    assert [[line.get_ydata()[0] for line in lines] for lines in dashed] == [[5], [5], []]
    assert legend_of(figure) == ["none", "AG", "mdg", "mean ± standard deviation", "one seed"]
    assert lies_inside(figure)


def test_panels_of_differences_have_a_line_at_zero():
    figure = sweep(differences=["one"])
    zeros = [any(list(line.get_ydata()) == [0, 0] for line in axes.lines) for axes in figure.axes]
    assert zeros == [True, False, False]
    assert figure.axes[0].get_ylim()[0] < 0


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


def test_lines_end_at_the_largest_distance_in_the_texts():
    far = np.zeros((3, 2))  # No text has pairs of tokens at the distances 3 and 4.
    figure = distance_profile({"vanilla": np.hstack([HEADS, far])}, uniform=[*UNIFORM, 0, 0])
    (axes,) = figure.axes
    assert [line.get_xdata().tolist() for line in axes.lines] == [[0, 1, 2], [0, 1, 2]]
    assert axes.get_xlim() == (0, 2)


POINTS = {"no guide": np.arange(12.0).reshape(2, 3, 2), "AG": -2 * np.arange(12.0).reshape(2, 3, 2)}


def test_each_head_is_a_point_in_the_colour_of_its_layer():
    figure = head_components(POINTS, explained=[0.5, 0.25])
    first, second = figure.axes
    for axes, points in zip((first, second), POINTS.values(), strict=True):
        drawn = [line for line in axes.lines if len(line.get_xdata()) == 3]
        np.testing.assert_array_equal([line.get_xydata() for line in drawn], points)
    colours = [[line.get_color() for line in axes.lines[2:]] for axes in (first, second)]
    np.testing.assert_array_equal(colours[0], colours[1])
    assert tuple(colours[0][0]) != tuple(colours[0][1])
    assert legend_of(figure) == ["1", "2"]
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
    assert lies_inside(head_components({"": np.random.default_rng(0).normal(size=(24, 1, 2))}))


def test_equal_values_and_heads_can_be_drawn():
    bars = grouped_bars({"accuracy": {"vanilla": np.array([90.0, 90.0])}})
    points = head_components({"": np.ones((1, 2, 2))})
    for figure, value in ((bars, 90), (points, 1)):
        start, end = figure.axes[0].get_xlim()
        assert start < value < end


def refuses(message):
    return pytest.raises(ValueError, match=message)


def test_errors_name_the_argument():
    with refuses(r"values\['a'\]\['vanilla'\] must have shape \(seeds,\)"):
        grouped_bars({"a": {"vanilla": np.ones((2, 2))}})
    with refuses(r"values\['a'\]\['vanilla'\] must be finite; got \[nan\]"):
        grouped_bars({"a": {"vanilla": np.array([np.nan])}})
    with refuses(r"published must name panels of \['AUC'\]; got \['accuracy'\]"):
        grouped_bars({"AUC": {}}, published=PUBLISHED)
    with refuses(r"lower_is_better must name panels of .*got \['MAE'\]"):
        grouped_bars(VALUES, lower_is_better=["MAE"])
    with refuses(r"at least one method; got none in \['AUC'\]"):
        grouped_bars({"AUC": {}})
    with refuses("columns must be at least 1; got 0"):
        grouped_bars(VALUES, columns=0)
    with refuses(r"\['one'\]\['ag'\] must be of the option values \[1\]; got \[3\]"):
        sweep([1])
    with refuses(r"panels and option_values must not be empty; got \['three'\] and 1 option"):
        sweep([1], {"three": {}})
    with refuses(r"\['one'\]\['ag'\]\[1\] must have shape \(seeds,\)"):
        sweep([1], {"one": {"ag": {1: np.zeros((2, 2))}}})
    with refuses(r"profiles\['vanilla'\] must have shape \(N, 2\)"):
        distance_profile({"vanilla": HEADS}, uniform=UNIFORM[:2])
    with refuses(r"weights\['vanilla'\] must have shape \(3,\).*got \(2,\)"):
        drawn(weights={"vanilla": WEIGHT[:2]})
    with refuses(r"weights must be of methods in .*got \['adapted'\]"):
        drawn(weights={"adapted": WEIGHT})
    with refuses(r"profiles\['vanilla'\] must be shares.*got -0.6 to"):
        distance_profile({"vanilla": -HEADS}, uniform=UNIFORM)
    with refuses("profiles must hold at least one method; got none"):
        distance_profile({}, uniform=UNIFORM)
    with refuses(r"points\['AG'\] must have shape \(2, N, 2\).*\(1, 3, 2\)"):
        head_components({**POINTS, "AG": POINTS["AG"][:1]})
    with refuses("at least one model; got none"):
        head_components({})
    with refuses("columns must be at least 1; got 0"):
        head_components(POINTS, columns=0)


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ([0.2, 0.5], [0.2, 0.5]),
        ([0.5, 0.5], [0.45, 0.55]),
        ([0.4, 0.45, 0.5, 0.9], [0.35, 0.45, 0.55, 0.9]),
        ([0.95, 0.96], [0.87, 0.97]),  # below the title
        ([0.0, 0.0, 0.15], [0.0, 0.1, 0.2]),
    ],
)
def test_labels_do_not_overlap(places, expected):
    assert spread_labels(places, gap=0.1) == pytest.approx(expected)
