"""Bar charts that compare methods by our results and by published numbers."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Array
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from distattn_jax.plot.style import (
    GREY,
    INK,
    SETTINGS,
    add_legend_above,
    check_array,
    finish_layout,
    grid_shape,
    make_panels,
    method_colours,
    text_width,
    use_style,
)

Values = Mapping[str, Mapping[str, np.ndarray | Array]]  # panel -> method -> values (seeds,)
Published = tuple[float | int, float | int | None]  # mean, standard deviation

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
    "path_effects": [withStroke(linewidth=2.8, foreground="white")],  # visible on dark bars
    "label": "mean ± standard deviation",
}
PUBLISHED: dict[str, Any] = {
    "marker": "D",
    "markersize": 4,
    "color": GREY,
    "linewidth": 1.2,
    "label": "published",
}


def grouped_bars(
    values: Values,
    *,
    labels: Mapping[str, str] | None = None,
    published: Mapping[str, Mapping[str, Published]] | None = None,
    lower_is_better: Collection[str] = (),
    from_zero: bool = False,
    columns: int = 3,
) -> Figure:
    """Draw one panel per metric or data set, with one bar per method.

    A bar is the mean over seeds. The line on a bar spans one sample standard deviation to either
    side, and each dot is one seed. A method without values in a panel is marked "not run". An axis
    may begin above 0, so that small differences are visible. In this case, a note below the figure
    says so.

    Args:
      values: values[panel title][method] is the value of each seed, shape (seeds,).
      labels: Row labels by method. A method without a label appears under its own name.
      published: published[panel title][method] is (mean, standard deviation or None).
      lower_is_better: Titles of the panels that are marked "lower is better".
      from_zero: Whether every axis includes 0 and has a line at 0, as is useful for differences.
      columns: Maximum number of panels in a row.
    """
    labels, published = labels or {}, published or {}
    if columns < 1:
        raise ValueError(f"columns must be at least 1; got {columns}.")
    for name, titles in (("published", published), ("lower_is_better", lower_is_better)):
        if any(title not in values for title in titles):
            raise ValueError(f"{name} must name panels of {list(values)}; got {list(titles)}.")
    methods = list(dict.fromkeys(m for by in (values, published) for of in by.values() for m in of))
    if not methods:
        raise ValueError(f"values must hold at least one method; got none in {list(values)}.")
    names = [labels.get(method, method.replace("_", " ")) for method in methods]
    side = max(text_width(name, SETTINGS["ytick.labelsize"]) for name in names) + 0.3
    title_width = max(text_width(title, SETTINGS["axes.titlesize"]) for title in values) + 0.3
    rows, columns = grid_shape(len(values), max_columns=columns)
    with use_style():
        bar_height = 0.32 if published else 0.25
        height = 0.65 + len(methods) * bar_height + 0.8 / rows  # The last term is for the legend.
        width = max(2.1, title_width) + side / columns
        figure, grid = make_panels(rows, columns, width=width, height=height)
        for i, (axes, (title, panel)) in enumerate(zip(grid, values.items(), strict=False)):
            axes.set_title(title)
            axes.set_ylim(len(methods) - 0.4, -0.6)
            axes.set_yticks(range(len(methods)), names if i % columns == 0 else [])
            axes.tick_params(axis="y", length=0)
            if panel:
                drawn = _draw_panel(axes, title, methods, panel, published.get(title, {}))
                axes.set_xlim(_limits_with_zero(drawn) if from_zero else _limits(drawn))
                if from_zero:
                    axes.axvline(0, color=INK, linewidth=0.6)
                axes.set_xlabel("lower is better" if title in lower_is_better else "")
            else:
                axes.text(0.5, 0.5, "not run", transform=axes.transAxes, color=GREY, ha="center")
                axes.set_xticks([])
        for axes in grid[len(values) :]:
            axes.remove()
        _add_note_and_legend(figure)
        return finish_layout(figure)


def _draw_panel(
    axes: Axes,
    title: str,
    methods: Sequence[str],
    panel: Mapping[str, np.ndarray | Array],
    published: Mapping[str, Published],
) -> list[float]:
    """Draw the bars of one panel, and return the values that the horizontal axis must cover."""
    colours = method_colours(methods)
    drawn: list[float] = []
    for row, method in enumerate(methods):
        if method in panel:
            name = f"values[{title!r}][{method!r}]"
            seeds = check_array(name, panel[method], ("seeds",))
            if not np.isfinite(seeds).all():
                raise ValueError(f"{name} must be finite; got {seeds}.")
            drawn += _draw_bar(axes, row, seeds, colours[method])
        else:
            across = axes.get_yaxis_transform()
            text = axes.text(0.03, row, "not run", transform=across, color=GREY, va="center")
            text.set_path_effects([withStroke(linewidth=3, foreground="white")])
        if method in published:
            mean, spread = published[method]
            axes.errorbar(mean, row + 0.42, xerr=spread, **PUBLISHED)
            drawn += [mean - (spread or 0), mean + (spread or 0)]
    axes.xaxis.set_major_locator(MaxNLocator(4))
    return drawn


def _draw_bar(axes: Axes, row: int, values: np.ndarray, colour: str) -> list[float]:
    """Draw the bar of one method, and return the values that the axis must cover.

    The bar ends at the mean over seeds, the line on it spans one standard deviation to either side,
    and each dot is one seed.
    """
    axes.barh(row, values.mean(), height=0.6, color=colour)
    spread = values.std(ddof=1) if len(values) > 1 else 0.0
    if spread:
        axes.hlines(row + 0.11, values.mean() - spread, values.mean() + spread, **SPREAD)
    offset = 0.08 * (np.arange(len(values)) % 2)  # Neighbouring dots must not hide each other.
    axes.plot(np.sort(values), row - 0.17 + offset, **SEED)
    return [*values, values.mean() - spread, values.mean() + spread]


def _add_note_and_legend(figure: Figure) -> None:
    """Add a note if any axis begins above 0, and a legend of the marks in the figure."""
    cut = [axes.get_xlim()[0] > 0 for axes in figure.axes if axes.patches]
    if any(cut):
        which = "axes" if all(cut) else "some axes"
        figure.supxlabel(f"{which} do not begin at 0", fontsize=8, color=GREY)
    found = [axes.get_legend_handles_labels() for axes in figure.axes]
    handles = {label: handle for pair in found for handle, label in zip(*pair, strict=True)}
    shown = [mark["label"] for mark in (SPREAD, SEED, PUBLISHED) if mark["label"] in handles]
    add_legend_above(figure, [handles[label] for label in shown], shown)


def _limits(drawn: list[float]) -> tuple[float, float]:
    """Return axis limits with room below the lowest value, so that the lowest bar stays visible.

    If no value is negative, the axis does not begin below 0.
    """
    lowest, highest = min(drawn), max(drawn)
    spread = (highest - lowest) or abs(lowest) or 1.0
    start = lowest - spread / 3
    return max(start, 0.0) if lowest >= 0 else start, highest + spread / 12


def _limits_with_zero(drawn: list[float]) -> tuple[float, float]:
    """Return axis limits that include all values and 0, with a margin on both sides."""
    lowest, highest = min(0.0, *drawn), max(0.0, *drawn)
    margin = ((highest - lowest) or 1.0) / 12
    return lowest - margin, highest + margin
