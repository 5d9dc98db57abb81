"""Plots that several reports share: bars, sweeps of an option, labelled lines, translators."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from distattn_jax import plot
from distattn_jax.plot import style
from experiments.papers.formatting import method_title

Seeds = np.ndarray | Array  # values (seeds,)
Published = tuple[float | int, float | int | None]  # mean, standard deviation
Panel = Mapping[str, Mapping[int, Seeds]]  # method -> option value -> values (seeds,)

SEED: dict[str, Any] = {
    **{"marker": "o", "markersize": 3, "markerfacecolor": "white", "markeredgecolor": style.INK},
    **{"markeredgewidth": 0.6, "linestyle": "none", "label": "one seed"},
}
SPREAD: dict[str, Any] = {
    "color": style.INK,
    "linewidth": 1.2,
    "path_effects": [withStroke(linewidth=2.8, foreground="white")],  # visible on dark bars
    "label": "mean ± standard deviation",
}
PUBLISHED: dict[str, Any] = {
    **{"marker": "D", "markersize": 4, "color": style.GREY, "linewidth": 1.2},
    "label": "published",
}
MAX_WIDTH = 14.0  # inches
METHOD_OFFSET, SEED_OFFSET = 0.11, 0.05  # Option values are 1 apart on the horizontal axis.
DEVIATION: dict[str, Any] = {"linewidth": SPREAD["linewidth"], "label": SPREAD["label"]}
LABEL_GAP = 0.062  # height of a line of text, as a share of the height of a panel
HIGHEST_LABEL = 0.97  # place of the highest label, as a share of the height of a panel


def grouped_bars(
    values: Mapping[str, Mapping[str, Seeds]],
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
      labels: Dict from method to the label of its row. A method that is not in this dict appears
        under its own name.
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
    side = max(style.text_width(name, style.SETTINGS["ytick.labelsize"]) for name in names) + 0.3
    title_width = (
        max(style.text_width(title, style.SETTINGS["axes.titlesize"]) for title in values) + 0.3
    )
    rows, columns = style.grid_shape(len(values), max_columns=columns)
    with style.use_style():
        bar_height = 0.32 if published else 0.25
        height = 0.65 + len(methods) * bar_height + 0.8 / rows  # The last term is for the legend.
        width = max(2.1, title_width) + side / columns
        figure, grid = style.make_panels(rows, columns, width=width, height=height)
        for i, (axes, (title, panel)) in enumerate(zip(grid, values.items(), strict=False)):
            axes.set_title(title)
            axes.set_ylim(len(methods) - 0.4, -0.6)
            axes.set_yticks(range(len(methods)), names if i % columns == 0 else [])
            axes.tick_params(axis="y", length=0)
            if panel:
                drawn = _draw_bars(axes, title, methods, panel, published.get(title, {}))
                axes.set_xlim(_limits_with_zero(drawn) if from_zero else _limits(drawn))
                if from_zero:
                    axes.axvline(0, color=style.INK, linewidth=0.6)
                axes.set_xlabel("lower is better" if title in lower_is_better else "")
            else:
                axes.text(
                    0.5, 0.5, "not run", transform=axes.transAxes, color=style.GREY, ha="center"
                )
                axes.set_xticks([])
        for axes in grid[len(values) :]:
            axes.remove()
        _add_note_and_legend(figure)
        return style.finish_layout(figure)


def _draw_bars(
    axes: Axes,
    title: str,
    methods: Sequence[str],
    panel: Mapping[str, Seeds],
    published: Mapping[str, Published],
) -> list[float]:
    """Draw the bars of one panel. Return all drawn values, from which the axis limits follow."""
    colours = style.method_colours(methods)
    drawn: list[float] = []
    for row, method in enumerate(methods):
        if method in panel:
            name = f"values[{title!r}][{method!r}]"
            seeds = style.check_array(name, panel[method], ("seeds",))
            if not np.isfinite(seeds).all():
                raise ValueError(f"{name} must be finite; got {seeds}.")
            drawn += _draw_bar(axes, row, seeds, colours[method])
        else:
            across = axes.get_yaxis_transform()
            text = axes.text(0.03, row, "not run", transform=across, color=style.GREY, va="center")
            text.set_path_effects([withStroke(linewidth=3, foreground="white")])
        if method in published:
            mean, spread = published[method]
            axes.errorbar(mean, row + 0.42, xerr=spread, **PUBLISHED)
            drawn += [mean - (spread or 0), mean + (spread or 0)]
    axes.xaxis.set_major_locator(MaxNLocator(4))
    return drawn


def _draw_bar(axes: Axes, row: int, values: np.ndarray, colour: str) -> list[float]:
    """Draw the bar of one method. Return all drawn values, from which the axis limits follow.

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
        figure.supxlabel(f"{which} do not begin at 0", fontsize=8, color=style.GREY)
    found = [axes.get_legend_handles_labels() for axes in figure.axes]
    handles = {label: handle for pair in found for handle, label in zip(*pair, strict=True)}
    shown = [mark["label"] for mark in (SPREAD, SEED, PUBLISHED) if mark["label"] in handles]
    style.add_legend_above(figure, [handles[label] for label in shown], shown)


def _limits(drawn: list[float]) -> tuple[float, float]:
    """Return the axis limits of a panel whose drawn values are `drawn`.

    The lower limit is below the lowest value, so that the lowest bar is visible. If no value is
    negative, the lower limit is at least 0.
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


def sweep_figure(
    panels: Mapping[str, Panel],
    *,
    option_values: Sequence[int],
    xlabel: str,
    ylabel: str | Mapping[str, str],
    baselines: Mapping[str, Mapping[str, Seeds]] | None = None,
    differences: Collection[str] = (),
    from_zero: bool = False,
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
      baselines: baselines[title][method] is the metric of each seed, shape (seeds,), of a method
        that does not have the option. Its mean is drawn as a dashed line, and one standard
        deviation as a band.
      differences: Titles of the panels that show differences. These panels have a line at 0.
      from_zero: Whether the vertical axes begin at 0.
      labels: Dict from method to its text in the legend. A method that is not in this dict appears
        under its own name.
    """
    if not option_values or not any(panels.values()):
        counts = f"{list(panels)} and {len(option_values)} option values"
        raise ValueError(f"panels and option_values must not be empty; got {counts}.")
    methods = list(dict.fromkeys(method for panel in panels.values() for method in panel))
    colours, shares_axis = style.method_colours(methods), isinstance(ylabel, str)
    with style.use_style():
        width = 0.7 + (0.2 + 0.13 * max(map(len, panels.values()))) * len(option_values)
        width = max(2.3, width)
        fitting = min(max(int(MAX_WIDTH // width), 1), 3)
        rows, columns = style.grid_shape(len(panels), max_columns=fitting)
        figure, grid = style.make_panels(rows, columns, width=width, height=2.7)
        for i, (axes, (title, panel)) in enumerate(zip(grid, panels.items(), strict=False)):
            axes.set_title(title)
            axes.set(xlabel=xlabel, xlim=(-0.5, len(option_values) - 0.5))
            axes.set_xticks(range(len(option_values)), [str(value) for value in option_values])
            if not shares_axis or i % columns == 0:
                axes.set_ylabel(ylabel if isinstance(ylabel, str) else ylabel[title])
            if not panel:
                axes.text(
                    0.5, 0.5, "not run", transform=axes.transAxes, color=style.GREY, ha="center"
                )
                axes.set_yticks([])
                continue
            _draw_sweep(axes, title, option_values, panel, colours)
            if title in differences:
                axes.axhline(0, color=style.INK, linewidth=0.6, zorder=1)
            for method, seeds in (baselines or {}).get(title, {}).items():
                _draw_baseline(axes, method, style.check_array("baseline", seeds, ("seeds",)))
            if from_zero:
                axes.set_ylim(bottom=0)
        for axes in grid[len(panels) :]:
            axes.remove()
        if shares_axis:
            _share_limits([axes for axes in figure.axes if axes.lines])
        handles = {
            _label(labels, method): Line2D([], [], **_baseline_style(method))
            for panel in (baselines or {}).values()
            for method in panel
        }
        for method in methods:
            line = Line2D([], [], color=colours[method], marker="o", markersize=4)
            handles[_label(labels, method)] = line
        values = [
            seeds for panel in panels.values() for by in panel.values() for seeds in by.values()
        ]
        if not all(np.size(seeds) == 1 for seeds in values):
            bar = Line2D([], [], color=style.INK, marker="|", markersize=10, linestyle="none")
            handles[DEVIATION["label"]] = bar
        handles[SEED["label"]] = Line2D([], [], **SEED)
        style.add_legend_above(figure, list(handles.values()), list(handles))
        return style.finish_layout(figure)


def _draw_sweep(
    axes: Axes, title: str, option_values: Sequence[int], panel: Panel, colours: Mapping[str, str]
) -> None:
    """Draw the line of every method in one panel, and mark the option values without results."""
    for k, (method, by_value) in enumerate(panel.items()):
        name = f"panels[{title!r}][{method!r}]"
        unknown = [value for value in by_value if value not in option_values]
        if unknown:
            expected = list(option_values)
            raise ValueError(f"{name} must be of the option values {expected}; got {unknown}.")
        found = {
            value: style.check_array(f"{name}[{value}]", seeds, ("seeds",))
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
                color=style.GREY,
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


def _draw_baseline(axes: Axes, method: str, values: np.ndarray) -> None:
    """Draw the mean of a baseline as a dashed line, and one standard deviation as a band."""
    mean, line = values.mean(), _baseline_style(method)
    spread = values.std(ddof=1) if len(values) > 1 else 0.0
    axes.axhspan(mean - spread, mean + spread, color=line["color"], alpha=0.08, lw=0)
    axes.axhline(mean, **line)


def _baseline_style(method: str) -> dict[str, Any]:
    """Return Matplotlib's line properties for the mean of a baseline."""
    colour = plot.METHOD_COLOURS.get(method, style.INK)
    return {"color": colour, "linestyle": "--", "linewidth": 1.2}


def _label(labels: Mapping[str, str] | None, method: str) -> str:
    return (labels or {}).get(method, method.replace("_", " "))


def _share_limits(grid: Sequence[Axes]) -> None:
    """Set the vertical limits of all axes to the lowest and the highest of the current limits."""
    lowest, highest = zip(*(axes.get_ylim() for axes in grid), strict=True)
    for axes in grid:
        axes.set_ylim(min(lowest), max(highest))


class Line(NamedTuple):
    """Colour and Matplotlib line style of the line of a method."""

    colour: str
    style: str = "-"


def label_lines(
    axes: Axes, ends: Mapping[str, float], lines: Mapping[str, Line], *, strong: str | None = None
) -> None:
    """Write the name of each method to the right of its line, and connect name and line.

    Names that would overlap are moved apart, by as little as possible.

    Args:
      axes: Panel with the lines.
      ends: Dict from method to the last value of its line.
      lines: Dict from method to the appearance of its line.
      strong: Method whose name is bold.
    """
    to_share = axes.transData + axes.transAxes.inverted()
    right = axes.get_xlim()[1]
    shares = {m: float(to_share.transform((right, value))[1]) for m, value in ends.items()}
    ordered = sorted(shares, key=shares.__getitem__)
    places = spread_labels([shares[method] for method in ordered])
    for method, place in zip(ordered, places, strict=True):
        axes.annotate(
            method_title(method),
            (1.0, shares[method]),
            xytext=(1.07, place),
            xycoords="axes fraction",
            textcoords="axes fraction",
            color=style.INK,
            fontsize=7.5,
            fontweight="bold" if method == strong else "normal",
            va="center",
            arrowprops={
                "arrowstyle": "-",
                "color": lines[method].colour,
                "linewidth": 1.2,
                "linestyle": lines[method].style,
                "shrinkA": 1,
                "shrinkB": 0,
                "relpos": (0, 0.5),
            },
            annotation_clip=False,
        )


def spread_labels(places: Sequence[float], *, gap: float = LABEL_GAP) -> list[float]:
    """Return vertical label positions that are at least `gap` apart, and at most HIGHEST_LABEL.

    Labels that are too close to each other form a group. The labels of a group are `gap` apart, and
    the group is centred on the mean of its wanted positions.

    Args:
      places: Wanted positions in ascending order, as fractions of the height of a panel.
      gap: Smallest distance of two labels, as a fraction of the height.
    """
    groups: list[list[float]] = []
    for place in places:
        groups.append([place])
        while (
            len(groups) > 1
            and _place_group(groups[-2], gap)[-1] + gap > _place_group(groups[-1], gap)[0]
        ):
            groups[-2:] = [groups[-2] + groups[-1]]
    return [place for group in groups for place in _place_group(group, gap)]


def _place_group(group: Sequence[float], gap: float) -> list[float]:
    """Return the positions of the labels of one group, exactly `gap` apart.

    The positions are centred on the mean of the wanted positions in `group`. They are moved if they
    would leave the panel.
    """
    size = gap * (len(group) - 1)
    lowest = max(0.0, min(float(np.mean(group)) - size / 2, HIGHEST_LABEL - size))
    return [lowest + gap * i for i in range(len(group))]


def draw_relations(tables: Mapping[str, Mapping[str, Any]], field: str) -> Figure:
    """Draw the norms or the similarities of the position vectors of an encoder or decoder.

    Args:
      tables: Dict from "keys" and "values" to a dict with the fields of `RelationTable`.
      field: "norms" or "similarities".
    """
    draw = plot.relation_norms if field == "norms" else plot.relation_similarities
    positions = np.asarray(next(iter(tables.values()))["positions"])
    return draw({kind: np.asarray(table[field]) for kind, table in tables.items()}, positions)


def draw_alignment(alignment: Mapping[str, Any]) -> Figure:
    """Draw the attention from the words of a translation to those of its source, for each layer.

    Args:
      alignment: Dict with the fields of `Alignment`.
    """
    maps = {
        f"decoder layer {layer + 1}\nmean of heads": np.asarray(weights)
        for layer, weights in enumerate(alignment["weights"])
    }
    return plot.attention_maps(
        maps, alignment["source"], query_tokens=alignment["target"], axis_names=("target", "source")
    )
