"""Figures 3 to 6 of the attention-guiding paper, and its Table 2 as a figure."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from jaxtyping import Array
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from distattn_jax import plot
from distattn_jax.plot import style
from experiments.papers import formatting
from experiments.papers.attention_guiding import selections
from experiments.papers.attention_guiding.selections import BASE, DATA, LAYER_GUIDES, SHARE_GUIDES
from experiments.papers.figures import grouped_bars, sweep_figure
from experiments.papers.formatting import PERCENT_METRICS, method_title, metric_title
from experiments.papers.page import Pictures, read_published
from experiments.papers.results import Results

# Share of the weights beyond the colour scale: the first token would hide all others.
BEYOND_SCALE = 0.05
LAYERS_IN_A_COLUMN = 12  # of the legend, for each row of panels
MARKERS = "osD^vP*X"  # Layers differ in marker too, for readers who cannot tell the colours apart.


def list_pictures(results: Results) -> Pictures:
    """Return a dict from file name to a function that draws the figure.

    Figures without stored results are left out.
    """
    found: Pictures = {}
    gains = {data: of_data for data in DATA if (of_data := _guide_gains(results, data))}
    if gains:
        found["guiding_table_2"] = functools.partial(_draw_gains, results, gains)
    if results.runs(selections.LAYERS):
        found["guiding_figure_3"] = functools.partial(_draw_layers, results)
    if guided := results.part(BASE, "guided"):
        found["guiding_figure_4"] = functools.partial(_draw_maps, guided)
        found["guiding_figure_5"] = functools.partial(_draw_components, guided)
    if any(len(one) for share, one in selections.share_frames(results).items() if share < 100):
        found["guiding_figure_6"] = functools.partial(_draw_shares, results)
    return found


def _scale(metric: str) -> int:
    return 100 if metric in PERCENT_METRICS else 1


def _values(frames: Mapping[int, pd.DataFrame], guide: str, metric: str) -> dict[int, np.ndarray]:
    """Return the values of one guide: a dict from the key of each frame to an array over seeds.

    `frames` is a dict from a layer number or a share of the training set to a DataFrame of the
    metric, with one column per guide. Frames without this guide are left out.
    """
    found = {
        k: _scale(metric) * frame[guide].dropna() for k, frame in frames.items() if guide in frame
    }
    return {k: values.to_numpy() for k, values in found.items() if len(values)}


def _subtract_none(frame: pd.DataFrame) -> pd.DataFrame:
    """Subtract the column "none" (no guide) from the column of each guide, seed by seed."""
    if "none" not in frame:
        return frame[[]]
    return frame.drop(columns="none").sub(frame["none"], axis=0)


def _guide_gains(results: Results, data: str) -> dict[str, np.ndarray]:
    """Return a dict from guide to its gain in the main test metric over no guide, for each seed."""
    gains = _scale(results.test_metric(data)) * _subtract_none(results.main_scores(data))
    found = {guide: gains[guide].dropna().to_numpy() for guide in gains}
    return {guide: values for guide, values in found.items() if values.size}


def _draw_gains(results: Results, found: Mapping[str, Mapping[str, np.ndarray]]) -> Figure:
    """Draw one panel per data set: the gain of every guide as a bar, and the published gains.

    `found` is a dict from data set to the gains that `_guide_gains` returns. The published gains
    are those of BERT.
    """
    gains: dict[str, Mapping[str, np.ndarray]] = {}
    published: dict[str, dict[str, tuple[float, None]]] = {}
    numbers = read_published("attention_guiding")["2"]
    for data, by_guide in found.items():
        metric = results.criterion(data)
        unit = " (points)" if metric in PERCENT_METRICS else ""
        title = (
            f"{formatting.experiment_title(data)}: gain in {metric_title(metric, unit=False)}{unit}"
        )
        printed = {
            guide: float(row[f"{data} {metric}"].rstrip("*"))
            for guide, row in numbers.items()
            if f"{data} {metric}" in row
        }
        gains[title] = by_guide
        published[title] = {
            guide: (printed[guide] - printed["none"], None)
            for guide in by_guide
            if guide in printed
        }
    labels = {guide: method_title(guide) for panel in gains.values() for guide in panel}
    return grouped_bars(gains, labels=labels, published=published, from_zero=True, columns=2)


def _draw_layers(results: Results) -> Figure:
    """Draw Figure 3: the main test metric against the guided layer, one panel per guide."""
    frames, metric = selections.layer_frames(results), selections.find_criterion(results)
    found = {guide: _values(frames, guide, metric) for guide in LAYER_GUIDES}
    panels = {method_title(g): {g: by_layer} if by_layer else {} for g, by_layer in found.items()}
    none = _values({0: results.scores(BASE, metric)}, "none", metric)
    return sweep_figure(
        panels,
        option_values=list(frames),
        xlabel="guided layer",
        ylabel=f"test {metric_title(metric)}",
        baselines=dict.fromkeys(panels, {"no guide ± standard deviation": none[0]} if none else {}),
        labels={guide: method_title(guide) for guide in LAYER_GUIDES},
    )


def _draw_shares(results: Results) -> Figure:
    """Draw Figure 6: test metric and gain of every guide against the share of the training set."""
    frames, metric = selections.share_frames(results), selections.find_criterion(results)
    differences = {share: _subtract_none(frame) for share, frame in frames.items()}
    values, gains = (
        {guide: by for guide in SHARE_GUIDES if (by := _values(one, guide, metric))}
        for one in (frames, differences)
    )
    gain_title = "minus no guide, paired by seed"
    panels = {metric_title(metric, unit=False): values, gain_title: gains}
    return sweep_figure(
        panels,
        option_values=list(selections.SHARES),
        xlabel="share of the training set (%)",
        ylabel=dict(zip(panels, (f"test {metric_title(metric)}", "points"), strict=True)),
        differences=[gain_title],
        labels={guide: method_title(guide) for guide in SHARE_GUIDES},
    )


def _draw_maps(guided: Mapping[str, Any]) -> Figure:
    """Draw Figure 4: for each guide, the attention map averaged over heads.

    `guided` is the dict `found` of `collect_guided_heads`.
    """
    maps = {method_title(guide): np.asarray(weights) for guide, weights in guided["maps"].items()}
    every = np.concatenate([weights.reshape(-1) for weights in maps.values()])
    max_weight = float(np.quantile(every, 1 - BEYOND_SCALE))
    return plot.attention_maps(maps, guided["tokens"], columns=2, max_weight=max_weight)


def _draw_components(guided: Mapping[str, Any]) -> Figure:
    """Draw Figure 5: for each guide, one point per head at its first two principal components.

    `guided` is the dict `found` of `collect_guided_heads`.
    """
    points = {method_title(guide): np.asarray(heads) for guide, heads in guided["points"].items()}
    return head_components(points, explained=guided["explained"])


def head_components(
    points: Mapping[str, np.ndarray | Array],
    *,
    explained: Sequence[float] | None = None,
    columns: int = 4,
) -> Figure:
    """Draw one panel per model, with one point per head. The colour shows the layer of the head.

    All panels share the same axes, so that distances between heads can be compared.

    Args:
      points: Dict from panel title to the coordinates of the heads of one model, shape (L, N, 2).
        The principal components are the same for all models. A title may have several lines.
      explained: Share of the variance that each of the two components explains, for the axis
        labels. None omits the shares.
      columns: Maximum number of panels in a row.
    """
    if not points:
        raise ValueError("points must hold at least one model; got none.")
    if columns < 1:
        raise ValueError(f"columns must be at least 1; got {columns}.")
    layers = len(np.asarray(next(iter(points.values()))))
    arrays = {
        title: style.check_array(f"points[{title!r}]", heads, (layers, "N", 2))
        for title, heads in points.items()
    }
    every = np.concatenate([array.reshape(-1, 2) for array in arrays.values()])
    middle = (every.max(0) + every.min(0)) / 2
    half = 1.08 * float((every.max(0) - every.min(0)).max() / 2 or 1)  # All points may coincide.
    shares = [""] * 2 if explained is None else [f" ({100 * share:.0f} %)" for share in explained]
    colours = matplotlib.colormaps["viridis"](np.linspace(0, 0.92, layers))
    with style.use_style():
        rows, columns = style.grid_shape(len(arrays), max_columns=columns)
        legend_columns = -(-layers // (LAYERS_IN_A_COLUMN * rows))
        width = 2.4 + 0.5 * (legend_columns - 1) / columns
        figure, grid = style.make_panels(rows, columns, width=width, height=2.5)
        for i, (axes, (title, heads)) in enumerate(zip(grid, arrays.items(), strict=False)):
            axes.set_title(title)
            _draw_heads(axes, heads, colours)
            axes.set_xlim(middle[0] - half, middle[0] + half)
            axes.set_ylim(middle[1] - half, middle[1] + half)
            axes.set_aspect("equal")
            axes.xaxis.set_major_locator(MaxNLocator(4))
            axes.yaxis.set_major_locator(MaxNLocator(4))
            axes.set_xlabel(f"component 1{shares[0]}")
            if i % columns == 0:
                axes.set_ylabel(f"component 2{shares[1]}")
            else:
                axes.tick_params(labelleft=False)
        for axes in grid[len(arrays) :]:
            axes.remove()
        handles = [
            Line2D([], [], **_marker(layer), color=colours[layer]) for layer in range(layers)
        ]
        names = [str(layer + 1) for layer in range(layers)]
        figure.legend(
            handles,
            names,
            loc="outside right center",
            ncols=legend_columns,
            title="layer",
            title_fontsize=8,
        )
        return style.finish_layout(figure)


def _draw_heads(axes: Axes, heads: np.ndarray, colours: np.ndarray) -> None:
    """Draw the heads (L, N, 2) of one model as points, and two dotted lines through the origin."""
    axes.axhline(0, color=style.GREY, linewidth=0.6, linestyle=":", zorder=0)
    axes.axvline(0, color=style.GREY, linewidth=0.6, linestyle=":", zorder=0)
    for layer, (coordinates, colour) in enumerate(zip(heads, colours, strict=True)):
        axes.plot(*coordinates.T, **_marker(layer), color=colour, clip_on=False)


def _marker(layer: int) -> dict[str, Any]:
    """Return Matplotlib's line properties for the points of a layer, counted from 0."""
    return {
        "marker": MARKERS[layer % len(MARKERS)],
        "markersize": 5,
        "markeredgecolor": "white",
        "markeredgewidth": 0.4,
        "linestyle": "none",
    }
