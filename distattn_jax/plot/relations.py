"""Figures of the position vectors of relative position attention (Shaw et al. 2018).

Each head of each layer has a table for keys and a table for values. A table has one vector a_r for
every relative position r = j - i of query i and key j, clipped to -k..k.
"""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Array
from matplotlib.figure import Figure

from distattn_jax.plot import style

Vector = np.ndarray | Array


def relation_norms(norms: Mapping[str, Vector], positions: Vector) -> Figure:
    """Draw the norms of position vectors as heat maps, one panel per layer.

    Rows of a panel are heads, columns are relative positions. A row of panels shows one table, such
    as the table for keys, and has its own colour scale.

    Args:
      norms: Dict from the title of each table to the norms of its vectors, shape (L, N, R) for L
        layers, N heads and R relative positions.
      positions: The R relative positions, in ascending order without gaps.
    """
    positions = style.check_array("positions", positions, ("R",))
    arrays, layers = _check_tables("norms", norms, ("L", "N", len(positions)))
    most_heads = max(x.shape[1] for x in arrays.values())
    with style.use_style():
        width = min(max(2.2, 0.9 + 0.045 * len(positions)), 4.0)
        height = 0.9 + 0.14 * most_heads
        figure, grid = style.make_panels(len(arrays), layers, width=width, height=height)
        for row, (title, values) in enumerate(arrays.items()):
            panels = grid[row * layers : (row + 1) * layers]
            edges = (positions[0] - 0.5, positions[-1] + 0.5, values.shape[1] + 0.5, 0.5)
            largest = values.max() or 1
            for layer, axes in enumerate(panels):
                axes.imshow(
                    values[layer], aspect="auto", cmap="Blues", vmin=0, vmax=largest, extent=edges
                )
                style.frame_panel(axes, f"{title}, layer {layer + 1}")
                if layer == 0:
                    axes.set_ylabel("head")
            label = r"$\|a_r - \overline{a}\|$"
            style.add_colour_bar(figure, panels[0].images[0], label, ticks=3, ax=panels, aspect=12)
        figure.supxlabel(style.KEY_OFFSET_LABEL, fontsize="medium")
        return style.finish_layout(figure)


def relation_similarities(similarities: Mapping[str, Vector], positions: Vector) -> Figure:
    """Draw the cosine similarities of all pairs of position vectors as heat maps.

    A row of panels shows one table, such as the table for keys, and a column shows one layer. A
    similarity near 1 means that two relative positions have nearly the same effect.

    Args:
      similarities: Dict from the title of each table to its cosine similarities, shape (L, R, R)
        for L layers and R relative positions.
      positions: The R relative positions, in ascending order without gaps.
    """
    positions = style.check_array("positions", positions, ("R",))
    shape = ("L", len(positions), len(positions))
    arrays, layers = _check_tables("similarities", similarities, shape)
    first, last = positions[0] - 0.5, positions[-1] + 0.5
    edges = (first, last, last, first)
    with style.use_style():
        width = max(2.3, 1.85 + 1.5 / layers)  # Labels and colour bar need 1.5 inches.
        figure, grid = style.make_panels(len(arrays), layers, width=width, height=2.2)
        figure.set_layout_engine("compressed")  # It leaves no gaps between square maps.
        for i, axes in enumerate(grid):
            title, layer = list(arrays)[i // layers], i % layers
            axes.imshow(arrays[title][layer], cmap="RdBu_r", vmin=-1, vmax=1, extent=edges)
            style.frame_panel(axes, f"{title}, layer {layer + 1}")
        label = "cosine similarity"
        style.add_colour_bar(figure, grid[0].images[0], label, ticks=5, ax=grid, aspect=30)
        figure.supxlabel(style.KEY_OFFSET_LABEL, fontsize="medium")
        figure.supylabel(style.KEY_OFFSET_LABEL, fontsize="medium")
        return style.finish_layout(figure)


def _check_tables(
    name: str, tables: Mapping[str, Vector], shape: tuple[str | int, ...]
) -> tuple[dict[str, np.ndarray], int]:
    """Return all arrays of a dict as float64, and the number of layers (size of the first axis).

    Raise a ValueError if an array has a wrong shape, or if the arrays differ in the number of
    layers.

    Args:
      name: Name of the argument, for the error message.
      tables: Dict from the title of each table to its array.
      shape: Expected size of each axis. A string stands for any size above 0.
    """
    arrays = {
        title: style.check_array(f"{name}[{title!r}]", table, shape)
        for title, table in tables.items()
    }
    layers = {len(array) for array in arrays.values()}
    if len(layers) != 1:
        raise ValueError(
            f"{name} must have at least one table, all of the same number of layers; "
            f"got layers {sorted(layers)}."
        )
    return arrays, layers.pop()
