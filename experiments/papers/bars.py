"""Methods side by side: means over seeds, every seed, and the published figure beside them."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from jaxtyping import Array
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from distattn_jax.plot.style import (
    INK,
    QUIET,
    SETTINGS,
    arranged,
    checked,
    legend_above,
    method_colours,
    panels,
    printed_width,
    settled,
    styled,
)

Figures = Mapping[str, Mapping[str, np.ndarray | Array]]  # panel -> method -> values (seeds,)
Published = tuple[float | int, float | int | None]  # the mean, and its ±
Paper = Mapping[str, Mapping[str, Published]]  # panel -> method -> ...

SEED: dict[str, Any] = {
    "marker": "o",
    "markersize": 3,
    "markerfacecolor": "white",
    "markeredgecolor": INK,
    "markeredgewidth": 0.6,
    "linestyle": "none",
    "label": "one seed",
}
SPREAD: dict[str, Any] = {
    "color": INK,
    "linewidth": 1.2,
    "path_effects": [withStroke(linewidth=2.8, foreground="white")],  # to be seen on dark bars
    "label": "mean ± standard deviation",
}
PUBLISHED: dict[str, Any] = {
    "marker": "D",
    "markersize": 4,
    "color": QUIET,
    "linewidth": 1.2,
    "label": "the paper",
}


def grouped_bars(
    figures: Figures,
    *,
    labels: Mapping[str, str] | None = None,
    paper: Paper | None = None,
    lower_is_better: Collection[str] = (),
    from_zero: bool = False,
    columns: int = 3,
) -> Figure:
    """A panel per metric or data set, in it a bar for each method, as Figures 3 to 5 of the paper.

    A bar is the mean over seeds, its whisker one sample standard deviation to either side, and
    each seed is a dot. The axes begin where methods can be told apart, and the figure says so.
    What was not run is named as such: a method that only other panels have, a panel without any.

    Args:
      figures: panel title -> method -> values (seeds,).
      labels: what the figure calls a method; one without a label is called by its name.
      paper: panel title -> method -> the published (mean, ±), the latter None if not known.
      lower_is_better: the panels of errors and the like.
      from_zero: whether every axis has 0 and a line there, as gains and losses need it.
      columns: how many panels stand side by side at most.
    """
    labels, paper = labels or {}, paper or {}
    if columns < 1:
        raise ValueError(f"columns must be at least 1; got {columns}.")
    for name, named in (("paper", list(paper)), ("lower_is_better", list(lower_is_better))):
        if any(panel not in figures for panel in named):
            raise ValueError(f"{name} must name panels of {list(figures)}; got {named}.")
    methods = list(dict.fromkeys(m for by in (figures, paper) for of in by.values() for m in of))
    if not methods:
        raise ValueError(f"figures must hold at least one method; got none in {list(figures)}.")
    names = [labels.get(method, method.replace("_", " ")) for method in methods]
    side = max(printed_width(name, SETTINGS["ytick.labelsize"]) for name in names) + 0.3
    wide = max(printed_width(title, SETTINGS["axes.titlesize"]) for title in figures) + 0.3
    rows, columns = arranged(len(figures), most=columns)
    with styled():
        height = 0.65 + len(methods) * (0.32 if paper else 0.25) + 0.8 / rows  # legend and note
        figure, grid = panels(rows, columns, width=max(2.1, wide) + side / columns, height=height)
        for i, (axes, (title, of_panel)) in enumerate(zip(grid, figures.items(), strict=False)):
            axes.set_title(title)
            axes.set_ylim(len(methods) - 0.4, -0.6)
            axes.set_yticks(range(len(methods)), names if i % columns == 0 else [])
            axes.tick_params(axis="y", length=0)
            if of_panel:
                drawn = _panel(axes, title, methods, of_panel, paper.get(title, {}))
                axes.set_xlim(_limits_from_zero(drawn) if from_zero else _limits(drawn))
                if from_zero:
                    axes.axvline(0, color=INK, linewidth=0.6)
                axes.set_xlabel("lower is better" if title in lower_is_better else "")
            else:
                axes.text(0.5, 0.5, "not run", transform=axes.transAxes, color=QUIET, ha="center")
                axes.set_xticks([])
        for axes in grid[len(figures) :]:
            axes.remove()
        cut = [axes.get_xlim()[0] > 0 for axes in figure.axes if axes.patches]
        if any(cut):
            which = "axes" if all(cut) else "some axes"
            figure.supxlabel(f"{which} do not begin at 0", fontsize=8, color=QUIET)
        found = [axes.get_legend_handles_labels() for axes in figure.axes]
        handles = {label: handle for pair in found for handle, label in zip(*pair, strict=True)}
        shown = [kind["label"] for kind in (SPREAD, SEED, PUBLISHED) if kind["label"] in handles]
        legend_above(figure, [handles[label] for label in shown], shown)
        return settled(figure)


def _panel(
    axes: Axes,
    title: str,
    methods: list[str],
    of_panel: Mapping[str, np.ndarray | Array],
    published: Mapping[str, Published],
) -> list[float]:
    """A row for each method: its bar or the words "not run", and the paper's figure if known.

    Returns what must be within the limits.
    """
    colours = method_colours(methods)
    drawn: list[float] = []
    for row, method in enumerate(methods):
        if method in of_panel:
            name = f"figures[{title!r}][{method!r}]"
            values = checked(name, of_panel[method], ("seeds",))
            if not np.isfinite(values).all():
                raise ValueError(f"{name} must be finite; got {values}.")
            drawn += _bar(axes, row, values, colours[method])
        else:
            across = axes.get_yaxis_transform()
            words = axes.text(0.03, row, "not run", transform=across, color=QUIET, va="center")
            words.set_path_effects([withStroke(linewidth=3, foreground="white")])
        if method in published:
            mean, spread = published[method]
            axes.errorbar(mean, row + 0.42, xerr=spread, **PUBLISHED)
            drawn += [mean - (spread or 0), mean + (spread or 0)]
    axes.xaxis.set_major_locator(MaxNLocator(4))
    return drawn


def _bar(axes: Axes, row: int, values: np.ndarray, colour: str) -> list[float]:
    """Draws one method; returns what must be within the limits."""
    axes.barh(row, values.mean(), height=0.6, color=colour)
    spread = values.std(ddof=1) if len(values) > 1 else 0.0
    if spread:
        axes.hlines(row + 0.11, values.mean() - spread, values.mean() + spread, **SPREAD)
    apart = 0.08 * (np.arange(len(values)) % 2)  # so that neighbours do not hide each other
    axes.plot(np.sort(values), row - 0.17 + apart, **SEED)
    return [*values, values.mean() - spread, values.mean() + spread]


def _limits(drawn: list[float]) -> tuple[float, float]:
    """A third of the spread below the least, so that its bar is seen; not across 0 for that."""
    least, greatest = min(drawn), max(drawn)
    spread = (greatest - least) or abs(least) or 1.0
    start = least - spread / 3
    return max(start, 0.0) if least >= 0 else start, greatest + spread / 12


def _limits_from_zero(drawn: list[float]) -> tuple[float, float]:
    """All of it and 0, and a little more to either side."""
    least, greatest = min(0.0, *drawn), max(0.0, *drawn)
    more = ((greatest - least) or 1.0) / 12
    return least - more, greatest + more
