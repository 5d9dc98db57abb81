"""Figure of the report on where distance helps: longer and longer texts.

Panels: perplexity of language models, their attention to far tokens, the effect of training on
longer texts, and the accuracy of classifiers of film reviews.
"""

import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from distattn_jax.models import METHODS
from distattn_jax.plot.style import (
    GREY,
    METHOD_COLOURS,
    PALETTE,
    finish_layout,
    grid_shape,
    make_panels,
    use_style,
)
from experiments.papers.figures import Line, label_lines
from experiments.papers.page import Picture
from experiments.papers.results import Results
from experiments.papers.when_to_use.language_models import (
    compare_trainings,
    far_shares,
    list_measured,
    perplexities,
    uniform_share,
)
from experiments.papers.when_to_use.settings import (
    CUTS,
    ENCODERS,
    LENGTHS,
    LONGER_TRAINED_LENGTH,
    OURS,
    TRAINED_LENGTH,
)

NAME = "when_to_use_lengths"
CAPTION = "Language models and film reviews by length of the text"
UNIFORM = "uniform attention"


class Family(NamedTuple):
    """Methods of which the figure shows the best one on the longest texts.

    Attributes:
      methods: Attention variants.
      colour: Colour of the line. None means the colour of the method in all figures.
      style: Style of the line.
    """

    methods: tuple[str, ...]
    colour: str | None = None
    style: str = "-"


# Some methods have pale colours for areas. Lines need darker ones.
FAMILIES = (
    Family(("no_positions",)),
    Family(("vanilla",)),
    Family(("relative_position", "transformer_xl", "adapted")),
    Family((OURS,)),
    Family(tuple(m for m in METHODS if m.startswith(f"{OURS}_")), METHOD_COLOURS[OURS], "--"),
    Family(("alibi", "kerple_log", "kerple_power"), PALETTE["sky"]),
    Family(("t5_bias",), "#855a22"),
)


def list_pictures(results: Results) -> Iterator[Picture]:
    """Yield the figure if language models were run."""
    if list_measured(results):
        yield Picture(NAME, CAPTION, functools.partial(draw_lengths, results))


def draw_lengths(results: Results) -> Figure:
    """Draw one panel for each question. A panel is left out if its runs are missing."""
    draws = [_draw_perplexity, _draw_far_attention]
    if any(compare_trainings(results, LENGTHS[-1]).values()):
        draws.append(_draw_trainings)
    if find_gains(results):
        draws.append(_draw_gains)
    with use_style():
        rows, columns = grid_shape(len(draws), max_columns=2)
        figure, panels = make_panels(rows, columns, width=4.6, height=3.6)
        for draw, axes in zip(draws, panels, strict=False):
            draw(axes, results)
        for axes in panels[len(draws) :]:
            axes.remove()
        return finish_layout(figure)


def choose_methods(ranked: Sequence[str]) -> dict[str, Line]:
    """Return the first method of each family, with the appearance of its line.

    Args:
      ranked: Attention variants, best first.
    """
    chosen = {}
    for family in FAMILIES:
        best = next((method for method in ranked if method in family.methods), None)
        if best is not None:
            chosen[best] = Line(family.colour or METHOD_COLOURS[best], family.style)
    return chosen


def find_gains(results: Results) -> dict[str, list[np.ndarray]]:
    """Return the accuracy of each method minus that without positions, in points.

    Methods that were not run at every length are left out.

    Returns:
      Dict from the method to an array over seeds for each cut of reviews.
    """
    frames = [results.scores(f"imdb_{cut}", "accuracy") for cut in CUTS]
    return {
        method: [
            100 * (frame[method] - frame["no_positions"]).dropna().to_numpy() for frame in frames
        ]
        for method in ENCODERS
        if method != "no_positions"
        and all(method in frame and "no_positions" in frame for frame in frames)
    }


def _draw_perplexity(axes: Axes, results: Results) -> None:
    """Draw the perplexity of the test set, with the methods that are not chosen in grey."""
    measured = list_measured(results)
    lines, ends = choose_methods(measured), {}
    found = [perplexities(results, length).mean() for length in LENGTHS]
    for method in measured:
        means = [scores.get(method, float("nan")) for scores in found]
        if method in lines:
            _draw_line(axes, means, method, lines[method])
            ends[method] = means[-1]
        else:
            axes.plot(LENGTHS, means, color="#d0d0d0", linewidth=0.8, zorder=1)
    _set_perplexity_axis(axes)
    note = "; grey: other methods" if len(measured) > len(lines) else ""
    _set_title(
        axes,
        "How well do language models predict longer texts?",
        f"small models, trained on texts of {TRAINED_LENGTH} tokens{note}",
    )
    _finish_lengths(axes)
    label_lines(axes, ends, lines, strong=OURS)


def _draw_far_attention(axes: Axes, results: Results) -> None:
    """Draw the share of the attention on far tokens, and that of uniform attention."""
    lines, ends = choose_methods(list_measured(results)), {}
    for method, line in lines.items():
        found = [far_shares(results, method, length) for length in LENGTHS]
        percent = [100 * float(share.mean()) for share in found if share is not None]
        if len(percent) == len(LENGTHS):
            _draw_line(axes, percent, method, line)
            ends[method] = percent[-1]
    uniform = [100 * uniform_share(results, length) for length in LENGTHS]
    if np.isfinite(uniform).all():
        lines[UNIFORM], ends[UNIFORM] = Line(GREY, ":"), uniform[-1]
        _draw_line(axes, uniform, UNIFORM, lines[UNIFORM])
    axes.set_ylabel("share of the attention (%)")
    axes.set_ylim(-3, 103)
    _set_title(
        axes,
        "How much attention goes to far tokens?",
        f"the same models; far: more than {TRAINED_LENGTH} tokens away",
    )
    _finish_lengths(axes)
    label_lines(axes, ends, lines, strong=OURS)


def find_training_effects(results: Results) -> dict[str, list[float]]:
    """Return the change of the perplexity, in percent, by training on longer texts.

    Returns:
      Dict from the method to the change at each length of the test set, best method first.
    """
    before, after = (
        [perplexities(results, length, n).mean() for length in LENGTHS]
        for n in (TRAINED_LENGTH, LONGER_TRAINED_LENGTH)
    )
    return {
        method: [100 * b[method] / a[method] - 100 for a, b in zip(before, after, strict=True)]
        for method in list_measured(results)
        if all(method in means for means in (*before, *after))
    }


def _draw_trainings(axes: Axes, results: Results) -> None:
    """Draw the change of the perplexity by training on longer texts, by length of the test set."""
    effects = find_training_effects(results)
    lines = choose_methods(list(effects))
    for method, line in lines.items():
        _draw_line(axes, effects[method], method, line)
    axes.axhline(0, color=GREY, linewidth=1.0, linestyle=":")
    axes.set_ylabel("change of perplexity (%, negative: better)")
    _set_title(
        axes,
        "Does it help to train on longer texts?",
        f"trained on {LONGER_TRAINED_LENGTH} instead of {TRAINED_LENGTH} tokens, "
        "with as many tokens in total",
    )
    _finish_lengths(axes, trained=(TRAINED_LENGTH, LONGER_TRAINED_LENGTH))
    label_lines(axes, {m: effects[m][-1] for m in lines}, lines, strong=OURS)


def _draw_gains(axes: Axes, results: Results) -> None:
    """Draw the gain of each method over no positions, mean ± standard deviation over seeds."""
    gains = find_gains(results)
    lines = {method: Line(METHOD_COLOURS[method]) for method in gains}
    ends = {}
    for i, (method, values) in enumerate(gains.items()):
        means = np.asarray([one.mean() for one in values])
        spread = np.asarray([one.std(ddof=1) if len(one) > 1 else 0.0 for one in values])
        # Each method is moved sideways a little, so that lines of the spread do not overlap.
        places = np.asarray(CUTS) * 2 ** (0.06 * (i - (len(gains) - 1) / 2))
        colour = lines[method].colour
        axes.vlines(places, means - spread, means + spread, color=colour, linewidth=0.9, alpha=0.4)
        _draw_line(axes, means, method, lines[method], places=places, marker="o")
        ends[method] = means[-1]
    axes.axhline(0, color=GREY, linewidth=1.0, linestyle=":")
    axes.set_xscale("log", base=2)
    axes.set_xticks(CUTS, [str(cut) for cut in CUTS])
    axes.minorticks_off()
    axes.set_xlim(right=CUTS[-1] * 2**0.2)
    axes.set_xlabel("words of a review")
    axes.set_ylabel("accuracy minus no positions (points)")
    _set_title(
        axes,
        "How much do positions help to classify film reviews?",
        "small classifiers; mean ± standard deviation over seeds",
    )
    lines["no_positions"], ends["no_positions"] = Line(GREY, ":"), 0.0
    label_lines(axes, ends, lines, strong=OURS)


def _draw_line(
    axes: Axes,
    values: Sequence[float] | np.ndarray,
    method: str,
    line: Line,
    *,
    places: Sequence[int] | np.ndarray = LENGTHS,
    marker: str = "",
) -> None:
    """Draw the line of a method. DA-Transformer is thick and in front."""
    ours = method == OURS
    axes.plot(
        places,
        values,
        color=line.colour,
        linestyle=line.style,
        linewidth=2.6 if ours else 1.5,
        marker=marker,
        markersize=3.5,
        zorder=3 if ours else 2,
    )


def _set_perplexity_axis(axes: Axes) -> None:
    """Make the vertical axis logarithmic, with round numbers."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.2, 1.5, 2, 2.5, 3, 4, 6, 8)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylabel("perplexity (lower is better)")


def _finish_lengths(axes: Axes, *, trained: Sequence[int] = (TRAINED_LENGTH,)) -> None:
    """Set the horizontal axis of language models, and mark the trained lengths."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(LENGTHS, [str(length) for length in LENGTHS])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("tokens of a text")
    axes.set_xlim(right=LENGTHS[-1])
    for length in trained:
        axes.axvline(length, color=GREY, linewidth=0.8, linestyle=":", zorder=0)


def _set_title(axes: Axes, question: str, explanation: str) -> None:
    """Write a question above a panel, and below it in grey what was measured."""
    axes.set_title(question, loc="left", pad=19, fontweight="bold")
    axes.annotate(
        explanation,
        (0, 1),
        xytext=(0, 6),
        xycoords="axes fraction",
        textcoords="offset points",
        color="#666666",
        fontsize=7.5,
    )
