"""How all pictures look: one palette, one set of settings, one way to save.

Figures are made with matplotlib's objects alone. No window, no current figure: they can be made
without a screen, and in several threads.
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
from PIL import Image

# Okabe and Ito's colours, which the colour-blind can tell apart; their yellow is lost on white.
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
    # What distance-aware attention is compared with is of one family, in shades that differ in
    # lightness, to any eye: every second for the mappings, those between for the adjustments.
    "distance_aware_clip": "#cdc3ea",
    "distance_aware_linear": "#9a87cf",
    "distance_aware_exponent": "#694dab",
    "distance_aware_sigmoid": "#391a70",
    "distance_aware_late_add": "#b3a5dd",
    "distance_aware_late_multiply": "#8169bf",
    "distance_aware_early_add": "#513390",
}
# Guides of pre-trained models never stand beside attentions, so that they may have their colours.
GUIDE_COLOURS: dict[str, str] = {
    "none": PALETTE["black"],
    "ag": PALETTE["vermilion"],
    "mdg": PALETTE["blue"],
    "pdg": PALETTE["green"],
    # Patterns of positions are of one family, relations of words of another.
    "first": "#d9cdf2",
    "next": "#b09ce0",
    "previous": "#8a6fca",
    "period": "#6445ab",
    "delimiter": "#3f2480",
    "pmi": "#f3c86b",
    "dependency": "#c08a1e",
    "word_similarity": "#7a5200",
}
LOCAL, GLOBAL = PALETTE["blue"], PALETTE["vermilion"]  # heads with w < 0, heads with w > 0
FONT = FontProperties(family="DejaVu Sans")  # comes with matplotlib: the same on every machine
INK, QUIET = "#222222", "#8c8c8c"
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
_settings_lock = threading.RLock()  # matplotlib's settings are one for all threads


@contextlib.contextmanager
def styled() -> Iterator[None]:
    """The settings of this project, and none of the user's, until the block ends."""
    with _settings_lock, matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(SETTINGS)
        yield


def method_colours(methods: Iterable[str]) -> dict[str, str]:
    """A colour for each method: its own if it has one, else the next that no other has."""
    methods = list(methods)
    known = METHOD_COLOURS | GUIDE_COLOURS
    own = {method: known[method] for method in methods if method in known}
    others = [method for method in methods if method not in own]
    free = [colour for colour in PALETTE.values() if colour not in own.values()]
    if len(others) > len(free):
        most = len(own) + len(free)
        raise ValueError(f"methods must be at most {most}, one colour each; got {methods}.")
    return own | dict(zip(others, free, strict=False))


def head_colours(weight: np.ndarray) -> list[tuple[float, ...]]:
    """Blues for local heads, oranges for global ones, darker the greater |w| is among its kind."""
    colours = []
    for w in weight:
        alike = np.abs(weight[(weight < 0) == (w < 0)])
        rank = np.sum(alike < abs(w)) / max(len(alike) - 1, 1)
        shades = matplotlib.colormaps["Blues" if w < 0 else "Oranges"]
        colours.append(tuple(shades(0.45 + 0.5 * rank) if len(alike) > 1 else shades(0.8)))
    return colours


def panels(rows: int, columns: int, *, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """A figure of rows x columns panels, each of that size in inches, row by row.

    To be called, as all that draws, within `styled()`.
    """
    figure = Figure((columns * width, rows * height))
    figure.set_layout_engine("constrained", w_pad=0.08, h_pad=0.06)
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def settled(figure: Figure) -> Figure:
    """The figure, drawn once. Each figure ends here, within `styled()`.

    Ticks are made when a figure is first drawn, with the settings of that moment, and move the
    layout: only from the second time on is a figure drawn alike.
    """
    figure.draw_without_rendering()
    return figure


def arranged(count: int, *, most: int) -> tuple[int, int]:
    """Rows and columns for so many panels: few rows, `most` columns at most, little left over."""
    rows = -(-count // most)
    return rows, -(-count // rows)


def printed_width(text: str, font_size: int) -> float:
    """Inches that a text takes, before any figure is drawn; every character as it is."""
    if not text.strip():
        return 0.0
    path = TextPath((0, 0), text.replace("$", "S"), size=font_size, prop=FONT)
    return path.get_extents().width / 72


def legend_above(figure: Figure, handles: Sequence[Any], names: Sequence[str]) -> None:
    """Above all panels: in one row if there is room, else in columns as wide as the longest."""
    widths = [printed_width(name, SETTINGS["legend.fontsize"]) + 0.6 for name in names]
    room = figure.get_figwidth()
    columns = len(names) if sum(widths) <= room else max(1, int(room // max(widths)))
    figure.legend(handles, names, loc="outside upper center", ncols=columns)


def checked(name: str, array: Any, shape: tuple[str | int, ...]) -> np.ndarray:
    """The array as float64; an error that names it unless it has that shape.

    Args:
      name: of the argument.
      array: NumPy or JAX.
      shape: for each axis its size, or a name where any size will do but 0.
    """
    array = np.asarray(array)
    sizes_fit = array.ndim == len(shape) and all(
        size > 0 if isinstance(wanted, str) else size == wanted
        for size, wanted in zip(array.shape, shape, strict=True)
    )
    if not sizes_fit:
        wanted = f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
        raise ValueError(f"{name} must have shape {wanted}, none of it 0; got {array.shape}.")
    return array.astype(np.float64)


def save(figure: Figure, path: str | Path | epath.Path, *, dpi: int = 150) -> None:
    """Writes a PNG, and the folder (or bucket) it goes to; the same figure gives the same bytes.

    It has 256 colours, the ones that fit best: a third of the size, to the eye the same.
    """
    path = epath.Path(path)
    if path.suffix != ".png":
        raise ValueError(f"path must end in .png; got {path}.")
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn = io.BytesIO()
    with styled():
        figure.savefig(drawn, format="png", dpi=dpi)
    picture = Image.open(drawn).convert("RGB").quantize(256, kmeans=1, dither=Image.Dither.NONE)
    with path.open("wb") as file:
        picture.save(file, format="PNG", optimize=True, dpi=(dpi, dpi))
