"""Figures of the report on relative positions (Shaw et al. 2018)."""

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from distattn_jax import plot
from distattn_jax.plot.style import GREY, add_legend_above, finish_layout, make_panels, use_style
from experiments.papers.pictures import Picture
from experiments.papers.shaw import tables
from experiments.papers.shaw.published import TABLE_2
from experiments.papers.shaw.settings import (
    DATA_SETS,
    DISTANCES,
    RELATIVE,
    SIZES,
    experiment_name,
)
from experiments.papers.translation_figures import draw_alignment, draw_relations

SEED: dict[str, Any] = {
    "marker": "o",
    "markersize": 3,
    "markerfacecolor": "white",
    "markeredgecolor": plot.METHOD_COLOURS[RELATIVE],
    "markeredgewidth": 0.8,
    "linestyle": "none",
}
DASHED: dict[str, Any] = {"linewidth": 1, "linestyle": "--"}


def list_pictures(contents: Mapping[str, Any]) -> Iterator[Picture]:
    """Yield every figure for which results are stored.

    Args:
      contents: Stored results by experiment. The value is None if the experiment was not run.
    """
    if any(_find_distances(contents, data) for data in DATA_SETS):
        draw = functools.partial(_draw_distances, contents)
        yield Picture("shaw_distances", "Table 2: BLEU by clipping distance", draw)
    for data, title in DATA_SETS.items():
        content = contents[experiment_name(data, SIZES[0])] or {}
        alignment = content.get("alignment")
        if alignment:
            caption = f"Attention from target to source words, {title}"
            draw = functools.partial(draw_alignment, alignment)
            yield Picture(f"shaw_attention_{data}", caption, draw)
        for level, found in content.get("relations", {}).items():
            for kind in ("norms", "similarities"):
                caption = f"Position vectors of the {level}, {kind}, {title}"
                draw = functools.partial(draw_relations, found, kind)
                yield Picture(f"shaw_{level}_{kind}_{data}", caption, draw)


def _draw_distances(contents: Mapping[str, Any]) -> Figure:
    """Draw BLEU against the clipping distance k, one panel per data set, and the published BLEU."""
    colours = plot.METHOD_COLOURS
    found = {data: _find_distances(contents, data) for data in DATA_SETS}
    run = {data: values for data, values in found.items() if values}
    with use_style():
        figure, grid = make_panels(1, len(run) + 1, width=2.6, height=2.4)
        for axes, (data, values) in zip(grid, run.items(), strict=False):
            places = [_place(k) for k in values]
            means = [np.mean(of) for of in values.values()]
            axes.plot(places, means, color=colours[RELATIVE])
            for place, of in zip(places, values.values(), strict=True):
                axes.plot([place] * len(of), of, **SEED)
            content = contents[experiment_name(data, SIZES[0])]
            for method in ("vanilla", "no_positions"):
                level = list(tables.find_values(content, method).values())
                if level:
                    axes.axhline(float(np.mean(level)), color=colours[method], **DASHED)
            axes.set_title(DATA_SETS[data])
        published = [float(number) for number in TABLE_2.values()]
        grid[-1].plot(list(map(_place, TABLE_2)), published, color=GREY, marker="D", markersize=3.5)
        grid[-1].set_title("WMT14 EN-DE, published")
        for axes in grid:
            axes.set(xlabel="clipping distance $k$", ylabel="BLEU")
            axes.set_ylim(bottom=0)
            axes.set_xticks(range(len(DISTANCES)), [str(k) for k in DISTANCES])
        handles = {
            "relative, mean": Line2D([], [], color=colours[RELATIVE]),
            "one seed": Line2D([], [], **SEED),
            "absolute": Line2D([], [], color=colours["vanilla"], **DASHED),
            "no positions": Line2D([], [], color=colours["no_positions"], **DASHED),
        }
        add_legend_above(figure, list(handles.values()), list(handles))
        return finish_layout(figure)


def _find_distances(contents: Mapping[str, Any], data: str) -> dict[int, list[float]]:
    """Return BLEU of every seed by clipping distance. Distances that were not run are left out."""
    found = {
        k: tables.find_values(contents[experiment_name(data, SIZES[0], k)], RELATIVE)
        for k in DISTANCES
    }
    return {k: list(values.values()) for k, values in found.items() if values}


def _place(k: int) -> int:
    """Return the horizontal coordinate of a clipping distance: its place among all of them."""
    return DISTANCES.index(k)
