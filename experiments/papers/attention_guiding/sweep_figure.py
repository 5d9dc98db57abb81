"""A metric against what was varied: the layer that is guided, the share of the training data."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Array
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from distattn_jax.plot.style import (
    INK,
    QUIET,
    arranged,
    checked,
    legend_above,
    method_colours,
    panels,
    settled,
    styled,
)
from experiments.papers.bars import SEED, SPREAD

Values = np.ndarray | Array  # (seeds,)
# panel -> method -> (what was varied -> values)
Sweeps = Mapping[str, Mapping[str, Mapping[int, Values]]]
APART, BESIDE = 0.11, 0.05  # methods at one place, and seeds beside their mean; places are 1 apart
BASELINE: dict[str, Any] = {"color": INK, "linestyle": "--", "linewidth": 1.2}
WHISKER: dict[str, Any] = {"linewidth": SPREAD["linewidth"], "label": SPREAD["label"]}


def sweep(
    figures: Sweeps,
    *,
    places: Sequence[int],
    xlabel: str,
    ylabel: str | Mapping[str, str],
    baseline: tuple[str, Values] | None = None,
    differences: Collection[str] = (),
    labels: Mapping[str, str] | None = None,
) -> Figure:
    """A panel per title, in it a line per method through its means over seeds.

    Each seed is a dot beside its mean, and a whisker goes one sample standard deviation to either
    side. Where a panel has nothing, it says "not run".

    Args:
      figures: panel title -> method -> place -> values (seeds,).
      places: what was to be varied, in this order, equally far apart.
      xlabel: what was varied.
      ylabel: what was measured, on one scale; or panel title -> that, each on a scale of its own.
      baseline: a name and its values (seeds,), drawn in every panel: a dashed line at the mean, and
        a band of one standard deviation to either side.
      differences: the panels in which 0 is drawn, a line for what nothing differs from.
      labels: what the figure calls a method; one without a label is called by its name.
    """
    if not places or not any(of_panel for of_panel in figures.values()):
        counts = f"{list(figures)} and {len(places)} places"
        raise ValueError(f"figures must hold a method, and places one place; got {counts}.")
    methods = list(dict.fromkeys(method for of in figures.values() for method in of))
    colours, own_scales = method_colours(methods), isinstance(ylabel, Mapping)
    with styled():
        rows, columns = arranged(len(figures), most=3)
        width = max(2.3, 0.7 + (0.2 + 0.13 * max(map(len, figures.values()))) * len(places))
        figure, grid = panels(rows, columns, width=width, height=2.7)
        for i, (axes, (title, of_panel)) in enumerate(zip(grid, figures.items(), strict=False)):
            axes.set_title(title)
            axes.set(xlabel=xlabel, xlim=(-0.5, len(places) - 0.5))
            axes.set_xticks(range(len(places)), [str(at) for at in places])
            if own_scales or i % columns == 0:
                axes.set_ylabel(ylabel[title] if isinstance(ylabel, Mapping) else ylabel)
            if of_panel:
                _panel(axes, title, places, of_panel, colours)
            else:
                axes.text(0.5, 0.5, "not run", transform=axes.transAxes, color=QUIET, ha="center")
                axes.set_yticks([])
            if of_panel and title in differences:
                axes.axhline(0, color=INK, linewidth=0.6, zorder=1)
            if baseline is not None and of_panel:
                _across(axes, checked("baseline", baseline[1], ("seeds",)))
        for axes in grid[len(figures) :]:
            axes.remove()
        if not own_scales:
            _alike([axes for axes in figure.axes if axes.lines])
        handles = _legend(methods, colours, labels or {}, baseline)
        legend_above(figure, list(handles.values()), list(handles))
        return settled(figure)


def _panel(
    axes: Axes,
    title: str,
    places: Sequence[int],
    of_panel: Mapping[str, Mapping[int, Values]],
    colours: Mapping[str, str],
) -> None:
    for k, (method, by_place) in enumerate(of_panel.items()):
        name = f"figures[{title!r}][{method!r}]"
        unknown = [at for at in by_place if at not in places]
        if unknown:
            raise ValueError(f"{name} must be of the places {list(places)}; got {unknown}.")
        found = {at: checked(f"{name}[{at}]", by_place[at], ("seeds",)) for at in by_place}
        across = np.arange(len(places)) + APART * (k - (len(of_panel) - 1) / 2)
        _line(axes, across, [found.get(at) for at in places], colours[method])
    for k, at in enumerate(places):
        if not any(at in by_place for by_place in of_panel.values()):
            axes.text(
                *(k, 0.04, "not run"),
                transform=axes.get_xaxis_transform(),
                rotation=90,
                color=QUIET,
                ha="center",
                path_effects=[withStroke(linewidth=3, foreground="white")],
                zorder=3,
            )
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))


def _line(axes: Axes, across: np.ndarray, found: Sequence[np.ndarray | None], colour: str) -> None:
    """Means, whiskers and seeds of one method; the line is broken where it was not run."""
    means = [np.nan if values is None else values.mean() for values in found]
    axes.plot(across, means, color=colour, marker="o", markersize=4, zorder=3)
    for x, values in zip(across, found, strict=True):
        if values is None:
            continue
        if len(values) > 1:
            mean, spread = values.mean(), values.std(ddof=1)
            axes.vlines(x, mean - spread, mean + spread, color=colour, **WHISKER)
        beside = np.full(len(values), x + BESIDE)
        axes.plot(beside, values, **SEED | {"markeredgecolor": colour, "zorder": 2})


def _across(axes: Axes, values: np.ndarray) -> None:
    """The mean as a dashed line, and a band of one standard deviation to either side."""
    mean, spread = values.mean(), values.std(ddof=1) if len(values) > 1 else 0.0
    axes.axhspan(mean - spread, mean + spread, color=INK, alpha=0.08, lw=0)
    axes.axhline(mean, **BASELINE)


def _alike(grid: Sequence[Axes]) -> None:
    """One scale for all panels."""
    least, greatest = zip(*(axes.get_ylim() for axes in grid), strict=True)
    for axes in grid:
        axes.set_ylim(min(least), max(greatest))


def _legend(
    methods: Sequence[str],
    colours: Mapping[str, str],
    labels: Mapping[str, str],
    baseline: tuple[str, Values] | None,
) -> dict[str, Line2D]:
    handles = {} if baseline is None else {baseline[0]: Line2D([], [], **BASELINE)}
    for method in methods:
        name = labels.get(method, method.replace("_", " "))
        handles[name] = Line2D([], [], color=colours[method], marker="o", markersize=4)
    bar = Line2D([], [], color=INK, marker="|", markersize=10, linestyle="none")
    return {**handles, WHISKER["label"]: bar, SEED["label"]: Line2D([], [], **SEED)}
