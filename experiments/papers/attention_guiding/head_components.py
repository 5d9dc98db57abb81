"""Heads as points: where principal components put their attention maps."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from jaxtyping import Array
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from distattn_jax.plot.style import QUIET, arranged, checked, panels, settled, styled

MARKERS = "osD^vP*X"  # layers differ in shape too, for eyes that cannot tell their colours


def head_components(
    points: Mapping[str, np.ndarray | Array],
    *,
    explained: Sequence[float] | None = None,
    columns: int = 4,
) -> Figure:
    """A panel per model, in it a point for each head, coloured by its layer.

    All panels have the same axes: models whose heads lie further apart look so.

    Args:
      points: title -> (L, N, 2), of components that are the same for all; a title may have
        several lines.
      explained: the shares of the variance that the two components have.
      columns: how many panels stand in a row at most.
    """
    if not points:
        raise ValueError("points must hold at least one model; got none.")
    if columns < 1:
        raise ValueError(f"columns must be at least 1; got {columns}.")
    layers = len(np.asarray(next(iter(points.values()))))
    arrays = {
        title: checked(f"points[{title!r}]", of_model, (layers, "N", 2))
        for title, of_model in points.items()
    }
    every = np.concatenate([array.reshape(-1, 2) for array in arrays.values()])
    middle = (every.max(0) + every.min(0)) / 2
    half = 1.08 * max((every.max(0) - every.min(0)).max() / 2, 1e-9)
    shares = [""] * 2 if explained is None else [f" ({100 * share:.0f} %)" for share in explained]
    colours = matplotlib.colormaps["viridis"](np.linspace(0, 0.92, layers))
    with styled():
        rows, columns = arranged(len(arrays), most=columns)
        figure, grid = panels(rows, columns, width=2.4, height=2.5)
        for i, (axes, (title, heads)) in enumerate(zip(grid, arrays.items(), strict=False)):
            axes.set_title(title)
            axes.axhline(0, color=QUIET, linewidth=0.6, linestyle=":", zorder=0)
            axes.axvline(0, color=QUIET, linewidth=0.6, linestyle=":", zorder=0)
            for layer, (of_layer, colour) in enumerate(zip(heads, colours, strict=True)):
                axes.plot(*of_layer.T, **_mark(layer), color=colour, clip_on=False)
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
        handles = [Line2D([], [], **_mark(layer), color=colours[layer]) for layer in range(layers)]
        names = [str(layer + 1) for layer in range(layers)]
        figure.legend(handles, names, loc="outside right center", title="layer", title_fontsize=8)
        return settled(figure)


def _mark(layer: int) -> dict[str, Any]:
    return {
        "marker": MARKERS[layer % len(MARKERS)],
        "markersize": 5,
        "markeredgecolor": "white",
        "markeredgewidth": 0.4,
        "linestyle": "none",
    }
