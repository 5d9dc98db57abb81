"""Figure of the report on where distance helps: language models on longer and longer texts."""

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from distattn_jax.plot.style import GREY, finish_layout, make_panels, method_colours, use_style
from experiments.papers.formatting import method_title
from experiments.papers.pictures import Picture
from experiments.papers.when_to_use import tables
from experiments.papers.when_to_use.settings import LENGTHS, OURS, TRAINED_LENGTH

NAME = "when_to_use_lengths"
UNIFORM = "uniform attention"
STRONG = (OURS, "distance_aware_score_bias", "vanilla")  # drawn with thick lines


def list_pictures(contents: Mapping[str, Any]) -> Iterator[Picture]:
    """Yield the figure if language models were run.

    Args:
      contents: Stored results by experiment. The value is None if the experiment was not run.
    """
    if tables.list_measured(contents):
        draw = functools.partial(draw_lengths, contents)
        yield Picture(NAME, "Perplexity and far attention by length of the text", draw)


def draw_lengths(contents: Mapping[str, Any]) -> Figure:
    """Draw perplexity and attention to far tokens against the length of the text.

    Args:
      contents: Stored results by experiment.
    """
    methods = tables.list_measured(contents)
    colours = method_colours(methods)
    with use_style():
        figure, (left, right) = make_panels(1, 2, width=4.6, height=3.4)
        for axes in (left, right):
            axes.set_xscale("log", base=2)
            axes.set_xticks(LENGTHS, [str(length) for length in LENGTHS])
            axes.minorticks_off()
            axes.set_xlabel(f"tokens of a text (trained on {TRAINED_LENGTH})")
            axes.axvline(TRAINED_LENGTH, color=GREY, linewidth=0.8, linestyle=":")
        ends: dict[str, dict[str, float]] = {"left": {}, "right": {}}
        for method in methods:
            style: dict[str, Any] = {
                "color": colours[method],
                "linewidth": 2.2 if method in STRONG else 1.1,
            }
            means = [
                np.mean(list(tables.perplexities(contents, method, n).values())) for n in LENGTHS
            ]
            left.plot(LENGTHS, means, **style)
            ends["left"][method] = float(means[-1])
            shares = [tables.far_shares(contents, method, n) for n in LENGTHS]
            if all(share is not None for share in shares):
                percent = [100 * float(np.mean(share)) for share in shares]  # type: ignore[arg-type]
                right.plot(LENGTHS, percent, **style)
                ends["right"][method] = percent[-1]
        left.set_yscale("log")
        for set_formatter in (left.yaxis.set_major_formatter, left.yaxis.set_minor_formatter):
            set_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        left.set_ylabel("perplexity of the test set")
        right.set_ylabel(f"attention (%) more than {TRAINED_LENGTH} tokens away")
        uniform = [100 * tables.uniform_share(contents, length) for length in LENGTHS]
        right.plot(LENGTHS, uniform, color=GREY, linestyle=":")
        ends["right"][UNIFORM], colours[UNIFORM] = uniform[-1], GREY
        left.set_title("How well are long texts predicted?")
        right.set_title("How much attention goes to far tokens?")
        _label_lines(left, ends["left"], colours, log=True)
        _label_lines(right, ends["right"], colours, log=False)
        return finish_layout(figure)


def _label_lines(
    axes: Axes, ends: Mapping[str, float], colours: Mapping[str, str], *, log: bool
) -> None:
    """Write the name of each method at the right end of its line, without overlaps.

    Args:
      axes: Panel with the lines.
      ends: Last value of the line of each method.
      colours: Colour of each method.
      log: True if the vertical axis is logarithmic.
    """
    low, high = axes.get_ylim()
    scale = np.log if log else np.asarray
    low, high = float(scale(low)), float(scale(high))
    gap = 0.055  # height of a line of text, as a share of the height of the panel
    place = -1.0
    for method, value in sorted(ends.items(), key=lambda entry: entry[1]):
        place = max((float(scale(value)) - low) / (high - low), place + gap)
        axes.annotate(
            method_title(method),
            (1.02, place),
            xycoords="axes fraction",
            color=colours[method],
            fontsize=7,
            va="center",
            annotation_clip=False,
        )
