"""Colours, Matplotlib settings and saved files."""

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from distattn_jax import plot
from distattn_jax.models import METHODS
from distattn_jax.plot.style import make_panels
from tests.plot.pages import lies_inside

LONG = [f"a method with a name of some length, {i}" for i in range(6)]


def curves(methods):
    points = (np.array([0, 5]), np.array([[0.5, 0.75]]))
    return plot.learning_curves({method: {"accuracy": points} for method in methods}, ["accuracy"])


def test_methods_keep_their_colour_and_never_share_one():
    alone = plot.method_colours(["adapted"])
    among = plot.method_colours(["mine", "adapted", "yours", "dot_product"])
    assert alone["adapted"] == among["adapted"]
    assert len(set(among.values())) == 4
    with pytest.raises(ValueError, match="methods must be at most 7"):
        plot.method_colours(map(str, range(8)))


def test_every_known_method_has_a_fixed_colour():
    assert set(METHODS) <= set(plot.METHOD_COLOURS)
    assert len(set(plot.METHOD_COLOURS.values())) == len(plot.METHOD_COLOURS)


def test_matplotlib_settings_are_restored():
    before = dict(matplotlib.rcParams)
    curves(["adapted"])
    assert dict(matplotlib.rcParams) == before
    with plot.use_style():
        assert dict(matplotlib.rcParams) != before


def test_long_legends_stay_inside_the_figure():
    assert lies_inside(curves(LONG))


def test_saving_a_figure_again_writes_the_same_bytes(tmp_path):
    figure = curves(["adapted"])
    paths = [tmp_path / "new folder" / name for name in ("first.png", "second.png", "third.png")]
    for path in paths[:2]:
        plot.save(figure, path)
    with matplotlib.rc_context({"font.size": 20, "savefig.facecolor": "red"}):
        plot.save(curves(["adapted"]), paths[2])
    first, second, third = (path.read_bytes() for path in paths)
    assert first.startswith(b"\x89PNG\r\n\x1a\n")
    assert first == second == third
    assert matplotlib.__version__.encode() not in first


def test_a_saved_figure_has_256_colours_close_to_the_palette(tmp_path):
    with plot.use_style():
        figure, (axes,) = make_panels(1, 1, width=4.0, height=2.0)
        axes.bar(range(len(plot.METHOD_COLOURS)), 1, color=list(plot.METHOD_COLOURS.values()))
    plot.save(figure, tmp_path / "bars.png", dpi=100)
    picture = Image.open(tmp_path / "bars.png")
    assert picture.mode == "P"
    assert picture.info["dpi"] == pytest.approx((100, 100), rel=1e-3)
    saved = np.unique(np.asarray(picture.convert("RGB")).reshape(-1, 3).astype(int), axis=0)
    for colour in plot.METHOD_COLOURS.values():
        expected = np.round(255 * np.asarray(to_rgb(colour)))
        assert np.abs(saved - expected).max(1).min() <= 2, colour


def test_only_png_files_are_accepted(tmp_path):
    with pytest.raises(ValueError, match=r"path must end in \.png; got .*curves\.pdf"):
        plot.save(curves(["adapted"]), tmp_path / "curves.pdf")
