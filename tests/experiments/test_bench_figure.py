"""Figure of the benchmark times."""

import pytest
from matplotlib.colors import to_hex

from distattn_jax import plot
from distattn_jax.plot.style import GREY
from experiments.bench.figure import select_common, timing_bars
from tests.plot.pages import lies_inside

TIMES = {
    "short": {"vanilla": 1.0, "distance_aware_xla": 30, "peer": 1.5, "never": "refused"},
    "long": {"vanilla": 2.0, "distance_aware_xla": "out of memory"},
}


def test_each_bar_shows_its_time_in_digits():
    short, long = timing_bars(TIMES, unit="milliseconds", mark_one=True).axes
    names = [label.get_text() for label in short.get_yticklabels()]
    assert names == ["vanilla", "distance aware xla", "peer"]  # One case was never timed.
    widths = [bar.get_width() for bar in short.patches]
    assert widths == [1, 2.5 * 1.5, 1.5]  # The second bar is cut.
    assert [text.get_text() for text in short.texts] == ["1", "30 →", "1.5"]
    assert [text.get_text() for text in long.texts] == ["2", "out of memory", "not timed"]
    colours = [to_hex(bar.get_facecolor()) for bar in short.patches]
    methods = [plot.METHOD_COLOURS[name] for name in ("vanilla", "distance_aware")]
    assert colours == [*methods, GREY]


def test_a_figure_of_one_bar_has_room_for_its_title_and_label():
    figure = timing_bars({"B2 N4\ninstead of bert": {"vanilla": 1.0}}, unit="ms\nB: batch size")
    assert lies_inside(figure)


def test_at_least_one_time_is_required():
    with pytest.raises(ValueError, match=r"times must hold at least one time; got none in"):
        timing_bars({"short": {"vanilla": "refused"}}, unit="ms")


def test_figures_leave_out_shapes_with_few_cases_and_cases_of_few_shapes():
    complete = {"vanilla": 1.0, "distance_aware": "refused", "alibi": 2.0}
    times = {"short": {**complete, "torch": 3.0}, "long": complete, "longest": {"vanilla": 1.0}}
    assert select_common(times) == {"short": complete, "long": complete}
    different = {"short": {"vanilla": 1.0}, "long": {"alibi": 1.0}}
    assert select_common(different) == different
    missing = {"short": complete, "mid": {"vanilla": 1.0, "alibi": 2.0}, "long": complete}
    assert select_common(missing) == missing
