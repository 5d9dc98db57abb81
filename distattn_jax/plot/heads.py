"""What distance-aware heads have learned: w and v of eq. 5 (see `coefficients`)."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Array
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from distattn_jax.plot.style import (
    GLOBAL,
    INK,
    LOCAL,
    QUIET,
    checked,
    legend_above,
    panels,
    settled,
    styled,
)

Heads = np.ndarray | Array | Mapping[str, np.ndarray | Array]


def head_parameters(weight: Heads, shape: Heads, *, paired: bool = True) -> Figure:
    """w and v of every head, as Figures 6 and 7 of the paper.

    Heads have no order that seeds share. So those of a seed, of all layers, are sorted by w, and
    the bars are means over seeds of the first, of the second, ...; the whiskers go from the least
    seed to the greatest.

    Args:
      weight: w (seeds, L, N); or title -> w for parts of a model that are drawn apart.
      shape: v likewise.
      paired: each v stays with its w; else v is sorted on its own, as in the paper.
    """
    weights = weight if isinstance(weight, Mapping) else {"": weight}
    shapes = shape if isinstance(shape, Mapping) else {"": shape}
    if not weights or weights.keys() != shapes.keys():
        raise ValueError(
            "weight and shape must be of the same parts, one at least; "
            f"got {list(weights)} and {list(shapes)}."
        )
    parts = {title: _ranked(title, weights[title], shapes[title], paired) for title in weights}
    most = max(of_w.shape[1] for of_w, _ in parts.values())
    seeds = max(len(of_w) for of_w, _ in parts.values())
    with styled():
        wide = most > 24
        width = min(max(2.6, 0.6 + 0.16 * most), 8.0)
        rows, columns = (2 * len(parts), 1) if wide else (len(parts), 2)
        figure, grid = panels(rows, columns, width=width, height=2.2 if wide else 2.6)
        for i, (title, (of_w, of_v)) in enumerate(parts.items()):
            by_sign = [LOCAL if mean < 0 else GLOBAL for mean in of_w.mean(0)]
            left, right = grid[2 * i : 2 * i + 2]
            _bars(left, of_w, by_sign, "w", "w")
            _bars(right, of_v, by_sign if paired else QUIET, "v", "w" if paired else "v")
            left.set_title(title)
            right.set_title(title)
        handles: dict[str, Any] = {
            "local ($w<0$)": Patch(color=LOCAL),
            "global ($w>0$)": Patch(color=GLOBAL),
        }
        if seeds > 1:
            whisker = Line2D([], [], color=INK, marker="|", markersize=11, linestyle="none")
            handles["least to greatest seed"] = whisker
        legend_above(figure, list(handles.values()), list(handles))
        return settled(figure)


def _ranked(title: str, weight: Any, shape: Any, paired: bool) -> tuple[np.ndarray, np.ndarray]:
    """w and v as (seeds, heads of all layers), each seed in order."""
    of_part = f"[{title!r}]" if title else ""
    weight = checked(f"weight{of_part}", weight, ("seeds", "L", "N"))
    shape = checked(f"shape{of_part}", shape, weight.shape)
    weight, shape = (array.reshape(len(array), -1) for array in (weight, shape))
    order = weight.argsort(1, kind="stable")
    ranked = np.take_along_axis(shape, order, 1) if paired else np.sort(shape, 1)
    return np.take_along_axis(weight, order, 1), ranked


def _bars(axes: Any, values: np.ndarray, colours: Any, name: str, sorted_by: str) -> None:
    """Means over the seeds, and from the least of them to the greatest."""
    ranks = np.arange(1, values.shape[1] + 1)
    axes.bar(ranks, values.mean(0), color=colours, width=0.75)
    if len(values) > 1:
        axes.vlines(ranks, values.min(0), values.max(0), color=INK, linewidth=0.9)
    axes.axhline(0, color=INK, linewidth=0.6)
    axes.set(xlabel=f"head, in order of ${sorted_by}$", ylabel=f"${name}$")
    axes.set_xlim(0.25, len(ranks) + 0.75)
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1))
