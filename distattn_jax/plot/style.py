"""Colours, Matplotlib settings and file format of all figures.

Figures are made with Matplotlib's class `Figure`, without pyplot. They can therefore be drawn
without a screen and in several threads.
"""

import contextlib
import io
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from etils import epath
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath
from matplotlib.ticker import MaxNLocator
from PIL import Image

# The colour-blind-safe palette of Okabe and Ito, without yellow, which is hard to see on white.
PALETTE: dict[str, str] = {
    "vermilion": "#d55e00",
    "blue": "#0072b2",
    "green": "#009e73",
    "orange": "#e69f00",
    "purple": "#cc79a7",
    "sky": "#56b4e9",
    "black": "#222222",
}
METHOD_COLOURS: dict[str, str] = {
    "distance_aware": PALETTE["vermilion"],
    "relative_position": PALETTE["blue"],
    "transformer_xl": PALETTE["green"],
    "adapted": PALETTE["orange"],
    "vanilla": PALETTE["black"],
    "no_positions": PALETTE["purple"],
    "dot_product": PALETTE["sky"],
    # The other forms of relative positions are other shades of blue.
    "relative_position_keys": "#7db4d9",
    "relative_position_values": "#00395a",
    "relative_and_absolute": "#4a6fe3",
    "switched_positions": "#a9c9e8",
    # The other forms of distance-aware attention are shades of violet. Mappings and adjustments
    # never share a figure, so their shades alternate: neighbours in a figure differ in lightness.
    "distance_aware_clip": "#cdc3ea",
    "distance_aware_linear": "#9a87cf",
    "distance_aware_exponent": "#694dab",
    "distance_aware_sigmoid": "#391a70",
    "distance_aware_late_add": "#b3a5dd",
    "distance_aware_late_multiply": "#8169bf",
    "distance_aware_early_add": "#513390",
    "distance_aware_score_bias": "#1f0b45",
    # Biases of the scores are shades of brown.
    "alibi": "#e0c9a6",
    "kerple_log": "#b98b4e",
    "kerple_power": "#855a22",
    "t5_bias": "#4d2f08",
    "rotary": "#8a9a00",
    # Attention with functions for each side is crimson. Neighbours differ in lightness.
    "two_sided": "#c2185b",
    "two_sided_tied": "#f8bbd0",
    "two_sided_no_constant": "#880e4f",
    "two_sided_no_decay": "#f06292",
    "two_sided_linear_decay": "#5c0632",
    "two_sided_log_decay": "#e391b5",
    "two_sided_buckets": "#7b1fa2",
    "two_sided_no_relu": "#a31547",
    "two_sided_no_factor": "#d9a5bd",
    "two_sided_same_rate": "#4a148c",
}
# Guides of pre-trained models never share a figure with attention variants: colours may repeat.
GUIDE_COLOURS: dict[str, str] = {
    "none": PALETTE["black"],
    "ag": PALETTE["vermilion"],
    "mdg": PALETTE["blue"],
    "pdg": PALETTE["green"],
    # Patterns of positions are violet, relations between words are brown.
    "first": "#d9cdf2",
    "next": "#b09ce0",
    "previous": "#8a6fca",
    "period": "#6445ab",
    "delimiter": "#3f2480",
    "pmi": "#f3c86b",
    "dependency": "#c08a1e",
    "word_similarity": "#7a5200",
}
KEY_OFFSET_LABEL = "key before (−) / after (+) the query"  # of an axis of j - i
LOCAL_COLOUR, GLOBAL_COLOUR = PALETTE["blue"], PALETTE["vermilion"]  # heads with w < 0, w > 0
# Colours of heads, by whether w < 0 for keys before the query and for keys after it.
HEAD_SHADES = {
    (True, True): "Blues",
    (False, False): "Oranges",
    (False, True): "Greens",
    (True, False): "Purples",
}
FONT = FontProperties(family="DejaVu Sans")  # Matplotlib ships it: the same on every machine.
INK, GREY = "#222222", "#8c8c8c"
SETTINGS: dict[Any, Any] = {
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.labelsize": 9,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 9,
    "font.family": FONT.get_name(),
    "font.size": 8,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.linewidth": 1.5,
    "text.color": INK,
    **{
        f"{axis}tick.{setting}": value
        for axis in "xy"
        for setting, value in {
            "color": INK,
            "labelsize": 8,
            "major.size": 3,
            "major.width": 0.6,
        }.items()
    },
}
_settings_lock = threading.RLock()  # Matplotlib's settings are global to all threads.


@contextlib.contextmanager
def use_style() -> Iterator[None]:
    """Use the Matplotlib settings of this project, instead of the user's, inside a `with` block."""
    with _settings_lock, matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(SETTINGS)
        yield


def method_colours(methods: Iterable[str]) -> dict[str, str]:
    """Return a dict from the name of each method to its colour. All colours differ.

    A method is an attention method or a guide. Methods in METHOD_COLOURS or GUIDE_COLOURS have the
    same colour in every figure. All others get colours of the palette that are not used yet.
    """
    methods = list(methods)
    known = METHOD_COLOURS | GUIDE_COLOURS
    fixed = {method: known[method] for method in methods if method in known}
    others = [method for method in methods if method not in fixed]
    free = [colour for colour in PALETTE.values() if colour not in fixed.values()]
    if len(others) > len(free):
        most = len(fixed) + len(free)
        raise ValueError(f"methods must be at most {most}, one colour each; got {methods}.")
    return fixed | dict(zip(others, free, strict=False))


def head_colours(weight: np.ndarray) -> list[tuple[float, ...]]:
    """Return one RGBA colour per head: blue for w < 0, otherwise orange, and darker for larger |w|.

    If the two sides have their own w, a head is green if w < 0 only for keys after the query, and
    purple if w < 0 only for keys before the query. It is darker for a larger sum of |w|.

    Args:
      weight: Distance weights w of the heads, shape (N,), or (N, 2) for keys before and after.
    """
    sides = weight.reshape(len(weight), -1)
    is_local, size = sides < 0, np.abs(sides).sum(axis=1)
    colours = []
    for signs, head_size in zip(is_local, size, strict=True):
        same_signs = size[(is_local == signs).all(axis=1)]
        rank = np.sum(same_signs < head_size) / max(len(same_signs) - 1, 1)
        shades = matplotlib.colormaps[HEAD_SHADES[signs[0], signs[-1]]]
        colours.append(tuple(shades(0.45 + 0.5 * rank) if len(same_signs) > 1 else shades(0.8)))
    return colours


def make_panels(
    rows: int, columns: int, *, width: float, height: float
) -> tuple[Figure, list[Axes]]:
    """Make a figure with a grid of panels. Return the figure and its axes, row by row.

    Call this function inside `use_style()`.

    Args:
      rows: Number of rows of panels.
      columns: Number of columns of panels.
      width: Width of one panel in inches.
      height: Height of one panel in inches.
    """
    figure = Figure((columns * width, rows * height))
    figure.set_layout_engine("constrained", w_pad=0.08, h_pad=0.06)
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def finish_layout(figure: Figure) -> Figure:
    """Draw the figure once, so that its layout is final, and return the figure.

    Matplotlib creates the ticks when a figure is first drawn, with the settings of that moment.
    Every plotting function therefore calls this function last, inside `use_style()`.
    """
    figure.draw_without_rendering()
    return figure


def grid_shape(count: int, *, max_columns: int) -> tuple[int, int]:
    """Return the number of rows and of columns of a grid for `count` panels.

    The grid has as few rows as possible, and then as few columns as possible. For example, 4 panels
    with `max_columns=3` have 2 rows and 2 columns.
    """
    rows = -(-count // max_columns)
    return rows, -(-count // rows)


def text_width(text: str, font_size: int) -> float:
    """Return the width of a text in inches. Dollar signs are ordinary characters.

    Args:
      text: Text without line breaks.
      font_size: Font size in points.
    """
    if not text.strip():
        return 0.0
    path = TextPath((0, 0), text.replace("$", "S"), size=font_size, prop=FONT)
    return path.get_extents().width / 72


def add_legend_above(figure: Figure, handles: Sequence[Any], names: Sequence[str]) -> None:
    """Put a legend above all panels, in one row if it fits, otherwise in several rows.

    The figure grows with the number of rows, so that the panels keep their height.
    """
    widths = [text_width(name, SETTINGS["legend.fontsize"]) + 0.6 for name in names]
    available = figure.get_figwidth()
    columns = len(names) if sum(widths) <= available else max(1, int(available // max(widths)))
    further_rows = -(-len(names) // columns) - 1
    figure.set_figheight(figure.get_figheight() + 0.17 * further_rows)
    figure.legend(handles, names, loc="outside upper center", ncols=columns)


def add_colour_bar(figure: Figure, image: Any, label: str, *, ticks: int, **place: Any) -> None:
    """Add a colour bar for an image to a figure.

    Args:
      figure: Matplotlib figure.
      image: Matplotlib image whose colour scale the bar shows.
      label: Label of the bar.
      ticks: Largest number of intervals between ticks.
      **place: Arguments of `Figure.colorbar`, such as the axes beside the bar.
    """
    bar: Any = figure.colorbar(image, label=label, **place)
    bar.ax.set_yscale("linear")  # A norm with two slopes would put its centre in the middle.
    bar.locator = MaxNLocator(ticks, steps=[1, 2, 5, 10])
    bar.outline.set_linewidth(0.6)


def frame_panel(axes: Axes, title: str) -> None:
    """Give a panel a title, a frame on all four sides, and ticks at whole numbers."""
    axes.set_title(title)
    axes.spines[:].set_visible(True)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))


def check_array(name: str, array: Any, shape: tuple[str | int, ...]) -> np.ndarray:
    """Return an array as float64. Raise a ValueError if its shape is wrong.

    Args:
      name: Name of the argument, for the error message.
      array: NumPy or JAX array.
      shape: Expected size of each axis. A string stands for any size above 0.
    """
    array = np.asarray(array)
    fits = array.ndim == len(shape) and all(
        size > 0 if isinstance(expected, str) else size == expected
        for size, expected in zip(array.shape, shape, strict=True)
    )
    if not fits:
        expected = f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
        raise ValueError(f"{name} must have shape {expected}, no axis empty; got {array.shape}.")
    return array.astype(np.float64)


def save(figure: Figure, path: str | Path | epath.Path, *, dpi: int = 150) -> None:
    """Write a figure as a PNG file with 256 colours. Equal figures give identical files.

    With 256 colours, the file is about three times smaller, without a visible change.

    Args:
      figure: Matplotlib figure.
      path: File that ends in .png, on disk or in a bucket. Missing folders are created.
      dpi: Dots per inch.
    """
    path = epath.Path(path)
    if path.suffix != ".png":
        raise ValueError(f"path must end in .png; got {path}.")
    path.parent.mkdir(parents=True, exist_ok=True)
    rendered = io.BytesIO()
    with use_style():
        figure.savefig(rendered, format="png", dpi=dpi)
    image = Image.open(rendered).convert("RGB").quantize(256, kmeans=1, dither=Image.Dither.NONE)
    with path.open("wb") as file:
        image.save(file, format="PNG", optimize=True, dpi=(dpi, dpi))
