"""Bars of times."""

import pytest
from matplotlib.colors import to_hex

from distattn_jax import plot
from experiments.bench.figure import timing_bars

TIMES = {
    "short": {"vanilla": 1.0, "distance_aware_xla": 30, "peer": 1.5, "never": None},
    "long": {"vanilla": 2.0, "distance_aware_xla": None},
}


def test_a_bar_is_a_time_and_its_number_stands_beside_it():
    short, long = timing_bars(TIMES, unit="milliseconds", one=True).axes
    names = [label.get_text() for label in short.get_yticklabels()]
    assert names == ["vanilla", "distance aware xla", "peer"]  # one was never timed
    assert [bar.get_width() for bar in short.patches] == [1, 2.5 * 1.5, 1.5]  # cut at the median's
    assert [text.get_text() for text in short.texts] == ["1", "30 →", "1.5"]
    assert [text.get_text() for text in long.texts] == ["2", "not timed", "not timed"]
    colours = [to_hex(bar.get_facecolor()) for bar in short.patches]
    methods = [plot.METHOD_COLOURS[name] for name in ("vanilla", "distance_aware")]
    assert colours == [*methods, plot.PALETTE["blue"]]


def test_times_must_be_there():
    with pytest.raises(ValueError, match=r"figures must hold at least one time; got none in"):
        timing_bars({"short": {"vanilla": None}}, unit="ms")
