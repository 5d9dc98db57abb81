"""Figure of a metric against an option that varies, such as the guided layer."""

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
    GREY,
    INK,
    add_legend_above,
    check_array,
    finish_layout,
    grid_shape,
    make_panels,
    method_colours,
    use_style,
)
from experiments.papers.bars import SEED, SPREAD

Seeds = np.ndarray | Array  # values (seeds,)
Panel = Mapping[str, Mapping[int, Seeds]]  # method -> option value -> values (seeds,)
MAX_WIDTH = 14.0  # inches
METHOD_OFFSET, SEED_OFFSET = 0.11, 0.05  # Option values are 1 apart on the horizontal axis.
BASELINE: dict[str, Any] = {"color": INK, "linestyle": "--", "linewidth": 1.2}
DEVIATION: dict[str, Any] = {"linewidth": SPREAD["linewidth"], "label": SPREAD["label"]}


def sweep_figure(
    panels: Mapping[str, Panel],
    *,
    option_values: Sequence[int],
    xlabel: str,
    ylabel: str | Mapping[str, str],
    baseline: tuple[str, Seeds] | None = None,
    differences: Collection[str] = (),
    labels: Mapping[str, str] | None = None,
) -> Figure:
    """Plot a metric against an option, with one line per method in every panel.

    A line connects the means over seeds. Vertical bars span one sample standard deviation to
    either side, and each dot is one seed. Option values without results are marked "not run".

    Args:
      panels: panels[title][method][option value] is the metric of each seed, shape (seeds,).
      option_values: Values of the option, in the order of the horizontal axis.
      xlabel: Label of the horizontal axis.
      ylabel: Label of the vertical axis. If it is a string, all panels have the same vertical axis.
        If it is a mapping from panel titles to labels, every panel has its own vertical axis.
      baseline: (legend entry, metric of each seed with shape (seeds,)). Every panel shows the mean
        as a dashed line and one standard deviation as a band. None draws no baseline.
      differences: Titles of the panels that show differences. These panels have a line at 0.
      labels: Legend entries by method. A method without an entry appears under its own name.
    """
    if not option_values or not any(panels.values()):
        counts = f"{list(panels)} and {len(option_values)} option values"
        raise ValueError(f"panels and option_values must not be empty; got {counts}.")
    methods = list(dict.fromkeys(method for panel in panels.values() for method in panel))
    colours, shares_axis = method_colours(methods), isinstance(ylabel, str)
    with use_style():
        width = 0.7 + (0.2 + 0.13 * max(map(len, panels.values()))) * len(option_values)
        width = max(2.3, width)
        fitting = min(max(int(MAX_WIDTH // width), 1), 3)
        rows, columns = grid_shape(len(panels), max_columns=fitting)
        figure, grid = make_panels(rows, columns, width=width, height=2.7)
        for i, (axes, (title, panel)) in enumerate(zip(grid, panels.items(), strict=False)):
            axes.set_title(title)
            axes.set(xlabel=xlabel, xlim=(-0.5, len(option_values) - 0.5))
            axes.set_xticks(range(len(option_values)), [str(value) for value in option_values])
            if not shares_axis or i % columns == 0:
                axes.set_ylabel(ylabel if isinstance(ylabel, str) else ylabel[title])
            if not panel:
                axes.text(0.5, 0.5, "not run", transform=axes.transAxes, color=GREY, ha="center")
                axes.set_yticks([])
                continue
            _draw_panel(axes, title, option_values, panel, colours)
            if title in differences:
                axes.axhline(0, color=INK, linewidth=0.6, zorder=1)
            if baseline is not None:
                _draw_baseline(axes, check_array("baseline", baseline[1], ("seeds",)))
        for axes in grid[len(panels) :]:
            axes.remove()
        if shares_axis:
            _share_limits([axes for axes in figure.axes if axes.lines])
        handles = _legend_handles(methods, colours, labels or {}, baseline)
        values = [
            seeds for panel in panels.values() for by in panel.values() for seeds in by.values()
        ]
        if all(np.size(seeds) == 1 for seeds in values):
            del handles[DEVIATION["label"]]
        add_legend_above(figure, list(handles.values()), list(handles))
        return finish_layout(figure)


def _draw_panel(
    axes: Axes,
    title: str,
    option_values: Sequence[int],
    panel: Panel,
    colours: Mapping[str, str],
) -> None:
    """Draw the line of every method in one panel, and mark the option values without results."""
    for k, (method, by_value) in enumerate(panel.items()):
        name = f"panels[{title!r}][{method!r}]"
        unknown = [value for value in by_value if value not in option_values]
        if unknown:
            expected = list(option_values)
            raise ValueError(f"{name} must be of the option values {expected}; got {unknown}.")
        found = {
            value: check_array(f"{name}[{value}]", seeds, ("seeds",))
            for value, seeds in by_value.items()
        }
        x = np.arange(len(option_values)) + METHOD_OFFSET * (k - (len(panel) - 1) / 2)
        _draw_line(axes, x, [found.get(value) for value in option_values], colours[method])
    for k, value in enumerate(option_values):
        if not any(value in by_value for by_value in panel.values()):
            axes.text(
                *(k, 0.04, "not run"),
                transform=axes.get_xaxis_transform(),
                rotation=90,
                color=GREY,
                ha="center",
                path_effects=[withStroke(linewidth=3, foreground="white")],
                zorder=3,
            )
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))


def _draw_line(axes: Axes, x: np.ndarray, values: Sequence[np.ndarray | None], colour: str) -> None:
    """Draw the means of one method as a line, with standard deviations as bars and seeds as dots.

    Args:
      axes: Axes of the panel.
      x: Horizontal position of each option value, shape (option values,).
      values: For each option value, the metric of each seed, shape (seeds,). An option value
        whose entry is None has no point, so that the line has a gap.
      colour: Colour of the method.
    """
    means = [np.nan if seeds is None else seeds.mean() for seeds in values]
    axes.plot(x, means, color=colour, marker="o", markersize=4, zorder=3)
    for at, seeds in zip(x, values, strict=True):
        if seeds is None:
            continue
        if len(seeds) > 1:
            mean, spread = seeds.mean(), seeds.std(ddof=1)
            axes.vlines(at, mean - spread, mean + spread, color=colour, **DEVIATION)
        beside = np.full(len(seeds), at + SEED_OFFSET)
        axes.plot(beside, seeds, **SEED | {"markeredgecolor": colour, "zorder": 2})


def _draw_baseline(axes: Axes, values: np.ndarray) -> None:
    """Draw the mean of the baseline as a dashed line, and one standard deviation as a band."""
    mean, spread = values.mean(), values.std(ddof=1) if len(values) > 1 else 0.0
    axes.axhspan(mean - spread, mean + spread, color=INK, alpha=0.08, lw=0)
    axes.axhline(mean, **BASELINE)


def _share_limits(grid: Sequence[Axes]) -> None:
    """Set the vertical limits of all axes to the lowest and the highest of the current limits."""
    lowest, highest = zip(*(axes.get_ylim() for axes in grid), strict=True)
    for axes in grid:
        axes.set_ylim(min(lowest), max(highest))


def _legend_handles(
    methods: Sequence[str],
    colours: Mapping[str, str],
    labels: Mapping[str, str],
    baseline: tuple[str, Seeds] | None,
) -> dict[str, Line2D]:
    """Return a dict from legend labels to lines: baseline, methods, standard deviation, seed."""
    handles = {} if baseline is None else {baseline[0]: Line2D([], [], **BASELINE)}
    for method in methods:
        name = labels.get(method, method.replace("_", " "))
        handles[name] = Line2D([], [], color=colours[method], marker="o", markersize=4)
    bar = Line2D([], [], color=INK, marker="|", markersize=10, linestyle="none")
    return {**handles, DEVIATION["label"]: bar, SEED["label"]: Line2D([], [], **SEED)}
