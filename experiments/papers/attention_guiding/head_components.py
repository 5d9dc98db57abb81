"""Figure of attention heads as points, at the first two principal components of their maps."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from jaxtyping import Array
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from distattn_jax.plot.style import (
    GREY,
    check_array,
    finish_layout,
    grid_shape,
    make_panels,
    use_style,
)

LAYERS_IN_A_COLUMN = 12  # of the legend, for each row of panels
MARKERS = "osD^vP*X"  # Layers differ in marker too, for readers who cannot tell the colours apart.


def head_components(
    points: Mapping[str, np.ndarray | Array],
    *,
    explained: Sequence[float] | None = None,
    columns: int = 4,
) -> Figure:
    """Draw one panel per model, with one point per head. The colour shows the layer of the head.

    All panels share the same axes, so that distances between heads can be compared.

    Args:
      points: Coordinates of the heads of one model by panel title, shape (L, N, 2). The principal
        components are the same for all models. A title may have several lines.
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
        title: check_array(f"points[{title!r}]", heads, (layers, "N", 2))
        for title, heads in points.items()
    }
    every = np.concatenate([array.reshape(-1, 2) for array in arrays.values()])
    middle = (every.max(0) + every.min(0)) / 2
    half = 1.08 * float((every.max(0) - every.min(0)).max() / 2 or 1)  # All points may coincide.
    shares = [""] * 2 if explained is None else [f" ({100 * share:.0f} %)" for share in explained]
    colours = matplotlib.colormaps["viridis"](np.linspace(0, 0.92, layers))
    with use_style():
        rows, columns = grid_shape(len(arrays), max_columns=columns)
        legend_columns = -(-layers // (LAYERS_IN_A_COLUMN * rows))
        width = 2.4 + 0.5 * (legend_columns - 1) / columns
        figure, grid = make_panels(rows, columns, width=width, height=2.5)
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
        return finish_layout(figure)


def _draw_heads(axes: Axes, heads: np.ndarray, colours: np.ndarray) -> None:
    """Draw the heads (L, N, 2) of one model as points, and two dotted lines through the origin."""
    axes.axhline(0, color=GREY, linewidth=0.6, linestyle=":", zorder=0)
    axes.axvline(0, color=GREY, linewidth=0.6, linestyle=":", zorder=0)
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
