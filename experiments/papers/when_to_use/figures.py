"""Figure of the report on where distance helps: longer and longer texts.

Panels: perplexity of language models, their attention to far tokens, the effect of training on
longer texts, and the accuracy of classifiers of film reviews.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from distattn_jax.models import METHODS
from distattn_jax.plot import style
from distattn_jax.plot.style import GREY, METHOD_COLOURS, PALETTE
from experiments.papers.figures import Line, label_lines
from experiments.papers.page import Pictures
from experiments.papers.results import Results
from experiments.papers.when_to_use import language_models
from experiments.papers.when_to_use.language_models import list_measured, perplexities
from experiments.papers.when_to_use.learned_sides import draw_learned, list_learned
from experiments.papers.when_to_use.quality_cost import draw_quality_and_cost, list_panels
from experiments.papers.when_to_use.settings import (
    CUTS,
    ENCODERS,
    LENGTHS,
    OURS,
    TRAINED_LENGTHS,
    TWO_SIDED,
)

TWO_SIDED_FORMS = tuple(method for method in METHODS if method.startswith(TWO_SIDED))
UNIFORM = "uniform attention"
SHORT, LONG = TRAINED_LENGTHS
# Methods of which the figure shows the best one on the longest texts, and their lines. Without a
# colour, the line has the colour of the method in all figures. Some methods have pale colours for
# areas, and lines need darker ones.
FAMILIES: tuple[tuple[tuple[str, ...], Line], ...] = (
    (("no_positions",), Line("")),
    (("vanilla",), Line("")),
    (("relative_position", "transformer_xl", "adapted"), Line("")),
    ((OURS,), Line("")),
    (tuple(m for m in METHODS if m.startswith(f"{OURS}_")), Line(METHOD_COLOURS[OURS], "--")),
    (("alibi", "kerple_log", "kerple_power"), Line(PALETTE["sky"])),
    (("t5_bias",), Line("#855a22")),
    (("rotary",), Line("")),
    (TWO_SIDED_FORMS, Line("")),
)


class Panel(NamedTuple):
    """Panel of the figure.

    Attributes:
      question: Title.
      explanation: Description of what was measured, below the title.
      ylabel: Label of the vertical axis.
      values: Dict from each method to its values, one for each entry of `places`.
      lines: Dict from method to the appearance of its line. Methods that are not in this dict have
        a grey line without a label.
      marks: Trained lengths, marked by vertical lines.
      spread: Dict from method to the standard deviations of its values. None draws none.
      places: Lengths of the texts on the horizontal axis, in tokens or words.
    """

    question: str
    explanation: str
    ylabel: str
    values: Mapping[str, Sequence[float]]
    lines: Mapping[str, Line]
    marks: Sequence[int] = ()
    spread: Mapping[str, np.ndarray] | None = None
    places: Sequence[int] = LENGTHS


def list_pictures(results: Results) -> Pictures:
    """Return a dict from file name to a function that draws the figure.

    A figure is left out if none of its runs is stored.
    """
    pictures: Pictures = {}
    if list_measured(results):
        pictures["when_to_use_lengths"] = functools.partial(draw_lengths, results)
    if learned := list_learned(results):
        pictures["when_to_use_sides"] = functools.partial(draw_learned, learned)
    if panels := list_panels(results):
        pictures["when_to_use_cost"] = functools.partial(draw_quality_and_cost, panels)
    return pictures


def draw_lengths(results: Results) -> Figure:
    """Draw the figure: one panel for each question about the length of texts.

    A panel is left out if its runs are missing.
    """
    panels = [_perplexity_panel(results), _far_panel(results)]
    effects = find_training_effects(results)
    if effects:
        explanation = f"trained on {LONG} instead of {SHORT} tokens, with as many tokens in total"
        lines = choose_methods(list(effects))
        panels.append(
            Panel(
                "Does it help to train on longer texts?",
                explanation,
                "change of perplexity (%, negative: better)",
                {method: effects[method] for method in lines},
                lines,
                TRAINED_LENGTHS,
            )
        )
    if gains := find_gains(results):
        panels.append(_gains_panel(gains))
    with style.use_style():
        rows, columns = style.grid_shape(len(panels), max_columns=2)
        figure, grid = style.make_panels(rows, columns, width=4.6, height=3.6)
        for axes, panel in zip(grid, panels, strict=False):
            _draw_panel(axes, panel)
        for axes in grid[len(panels) :]:
            axes.remove()
        return style.finish_layout(figure)


def choose_methods(ranked: Sequence[str]) -> dict[str, Line]:
    """Return the best method of each family of methods, and the appearance of its line.

    Args:
      ranked: Attention variants, best first.
    """
    chosen = {}
    for methods, line in FAMILIES:
        best = next((method for method in ranked if method in methods), None)
        if best is not None:
            chosen[best] = line._replace(colour=line.colour or METHOD_COLOURS[best])
    return chosen


def _perplexity_panel(results: Results) -> Panel:
    """Return the panel of perplexities on the test set.

    The best method of each family has a coloured line, all others have grey lines.
    """
    measured = list_measured(results)
    means = [perplexities(results, length).mean() for length in LENGTHS]
    lines = choose_methods(measured)
    note = "; grey: other methods" if len(measured) > len(lines) else ""
    return Panel(
        "How well do language models predict longer texts?",
        f"small models, trained on texts of {SHORT} tokens{note}",
        "perplexity (lower is better)",
        {method: [one.get(method, float("nan")) for one in means] for method in measured},
        lines,
        (SHORT,),
    )


def _far_panel(results: Results) -> Panel:
    """Return the panel of the share of attention on far tokens, for methods and uniform weights."""
    lines, values = choose_methods(list_measured(results)), {}
    for method in lines:
        found = [language_models.far_shares(results, method, length) for length in LENGTHS]
        percent = [100 * float(share.mean()) for share in found if share is not None]
        if len(percent) == len(LENGTHS):
            values[method] = percent
    uniform = [100 * language_models.uniform_share(results, length) for length in LENGTHS]
    if np.isfinite(uniform).all():
        lines[UNIFORM], values[UNIFORM] = Line(GREY, ":"), uniform
    explanation = f"the same models; far: more than {SHORT} tokens away"
    question = "How much attention goes to far tokens?"
    return Panel(question, explanation, "share of the attention (%)", values, lines, (SHORT,))


def find_training_effects(results: Results) -> dict[str, list[float]]:
    """Return the change of the perplexity, in percent, by training on longer texts.

    Returns:
      Dict from each method to a list with the change at each length of the test texts, best method
      first. The dict is empty if the two trainings had different data.
    """
    compared = language_models.compare_trainings(results, LENGTHS[-1])
    before, after = (
        [perplexities(results, length, n).mean() for length in LENGTHS] for n in TRAINED_LENGTHS
    )
    return {
        method: [100 * b[method] / a[method] - 100 for a, b in zip(before, after, strict=True)]
        for method in list_measured(results)
        if compared.get(method) and all(method in means for means in (*before, *after))
    }


def find_gains(results: Results) -> dict[str, list[np.ndarray]]:
    """Return the accuracy on film reviews of each method minus that without positions, in points.

    Methods that were not run at every length are left out.

    Returns:
      Dict from each method to a list of arrays over seeds, one array for each length to which
      reviews are cut.
    """
    frames = [results.scores(f"imdb_{cut}", "accuracy") for cut in CUTS]
    return {
        method: [
            100 * (frame[method] - frame["no_positions"]).dropna().to_numpy() for frame in frames
        ]
        for method in ENCODERS
        if method != "no_positions" and all({method, "no_positions"} <= set(one) for one in frames)
    }


def _gains_panel(gains: Mapping[str, Sequence[np.ndarray]]) -> Panel:
    """Return the panel of the gain in accuracy of each method over no positions.

    `gains` is the result of `find_gains`. The panel shows mean ± standard deviation over seeds.
    """
    values = {method: [float(one.mean()) for one in found] for method, found in gains.items()}
    spread = {
        method: np.asarray([one.std(ddof=1) if len(one) > 1 else 0.0 for one in found])
        for method, found in gains.items()
    }
    lines = {method: Line(METHOD_COLOURS[method]) for method in gains}
    return Panel(
        "How much do positions help to classify film reviews?",
        "small classifiers; mean ± standard deviation over seeds",
        "accuracy minus no positions (points)",
        {**values, "no_positions": [0.0] * len(CUTS)},
        {**lines, "no_positions": Line(GREY, ":")},
        spread=spread,
        places=CUTS,
    )


def _draw_panel(axes: Axes, panel: Panel) -> None:
    """Draw the lines of a panel. The line of DA-Transformer is thicker, and in front."""
    grey: dict[str, Any] = {"linewidth": 0.8, "zorder": 1}
    ours: dict[str, Any] = {"linewidth": 2.6, "zorder": 3}
    for i, (method, values) in enumerate(panel.values.items()):
        line = panel.lines.get(method)
        looks = grey if line is None else ours if method == OURS else {"linewidth": 1.5}
        colour, dashes = line or ("#d0d0d0", "-")
        places = np.asarray(panel.places, float)
        if panel.spread and method in panel.spread:
            # Each method is moved sideways a little, so that lines of the spread do not overlap.
            places *= 2 ** (0.06 * (i - (len(panel.spread) - 1) / 2))
            low, high = (values + sign * panel.spread[method] for sign in (-1, 1))
            axes.vlines(places, low, high, color=colour, linewidth=0.9, alpha=0.4)
            looks = {**looks, "marker": "o", "markersize": 3.5}
        axes.plot(places, values, color=colour, linestyle=dashes, **looks)
    if min(map(min, panel.values.values())) < 0:
        axes.axhline(0, color=GREY, linewidth=1.0, linestyle=":")
    for length in panel.marks:
        axes.axvline(length, color=GREY, linewidth=0.8, linestyle=":", zorder=0)
    _set_axes(axes, panel)
    ends = {method: panel.values[method][-1] for method in panel.lines if method in panel.values}
    label_lines(axes, ends, panel.lines, strong=OURS)


def _set_axes(axes: Axes, panel: Panel) -> None:
    """Set the axes of a panel, and write its question and explanation above it."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(panel.places, [str(place) for place in panel.places])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlim(right=panel.places[-1] * (2**0.2 if panel.spread else 1))
    axes.set_xlabel("words of a review" if panel.spread else "tokens of a text")
    axes.set_ylabel(panel.ylabel)
    if panel.ylabel.startswith("perplexity"):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.2, 1.5, 2, 2.5, 3, 4, 6, 8)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_locator(NullLocator())
    axes.set_title(panel.question, loc="left", pad=19, fontweight="bold")
    axes.annotate(
        panel.explanation,
        (0, 1),
        xytext=(0, 6),
        xycoords="axes fraction",
        textcoords="offset points",
        color="#666666",
        fontsize=7.5,
    )
