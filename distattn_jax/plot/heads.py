"""Bar charts of the distance weight w and the parameter v of heads (DA-Transformer, eq. 5)."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Array
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from distattn_jax.plot import style

Heads = np.ndarray | Array | Mapping[str, np.ndarray | Array]


def head_parameters(weight: Heads, shape: Heads, *, paired: bool = True) -> Figure:
    """Draw w and v of every distance-aware head as bars (Figures 6 and 7 of the paper).

    w is the distance weight of a head, and v is the parameter of its sigmoid. In models with
    different seeds, head 1 of one model does not correspond to head 1 of another. The heads of all
    layers of a model are therefore sorted by w, and the first bar shows the mean, over seeds, of
    the smallest w of each model, and so on. The horizontal axis is this rank, not the number of a
    head. A vertical line at each bar runs from the lowest to the
    highest value over seeds.

    Args:
      weight: Values of w, shape (seeds, L, N) for L layers of N heads. To draw several parts of a
        model separately, pass a dict from the title of each part to its values of w.
      shape: Values of v, with the same titles and shapes as `weight`.
      paired: If True, bars at the same place show w and v of the same heads. If False, the values
        of v are sorted separately, as in the paper.
    """
    weights = weight if isinstance(weight, Mapping) else {"": weight}
    shapes = shape if isinstance(shape, Mapping) else {"": shape}
    if not weights or weights.keys() != shapes.keys():
        raise ValueError(
            "weight and shape must have the same titles, at least one; "
            f"got {list(weights)} and {list(shapes)}."
        )
    parts = {title: _rank_heads(title, weights[title], shapes[title], paired) for title in weights}
    most_heads = max(w.shape[1] for w, _ in parts.values())
    seeds = max(len(w) for w, _ in parts.values())
    with style.use_style():
        stacked = most_heads > 24  # Many bars need the full width: v goes below w.
        width = min(max(2.6, 0.6 + 0.16 * most_heads), 8.0)
        rows, columns = (2 * len(parts), 1) if stacked else (len(parts), 2)
        figure, grid = style.make_panels(rows, columns, width=width, height=2.2 if stacked else 2.6)
        for i, (title, (w, v)) in enumerate(parts.items()):
            by_sign = [
                style.LOCAL_COLOUR if mean < 0 else style.GLOBAL_COLOUR for mean in w.mean(0)
            ]
            w_axes, v_axes = grid[2 * i : 2 * i + 2]
            _draw_bars(w_axes, w, by_sign, "w", "w")
            _draw_bars(v_axes, v, by_sign if paired else style.GREY, "v", "w" if paired else "v")
            w_axes.set_title(title)
            v_axes.set_title(title)
        handles: dict[str, Any] = {
            "local ($w<0$)": Patch(color=style.LOCAL_COLOUR),
            "global ($w>0$)": Patch(color=style.GLOBAL_COLOUR),
        }
        if seeds > 1:
            line = Line2D([], [], color=style.INK, marker="|", markersize=11, linestyle="none")
            handles[f"lowest to highest of {seeds} seeds"] = line
        style.add_legend_above(figure, list(handles.values()), list(handles))
        return style.finish_layout(figure)


def _rank_heads(title: str, weight: Any, shape: Any, paired: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return w and v, each of shape (seeds, L * N), with the heads of each seed sorted by w.

    Args:
      title: Title of the part of the model, for error messages.
      weight: Values of w, shape (seeds, L, N).
      shape: Values of v, shape (seeds, L, N).
      paired: If False, v is sorted by its own values instead.
    """
    suffix = f"[{title!r}]" if title else ""
    weight = style.check_array(f"weight{suffix}", weight, ("seeds", "L", "N"))
    shape = style.check_array(f"shape{suffix}", shape, weight.shape)
    weight, shape = (array.reshape(len(array), -1) for array in (weight, shape))
    order = weight.argsort(1, kind="stable")
    ranked = np.take_along_axis(shape, order, 1) if paired else np.sort(shape, 1)
    return np.take_along_axis(weight, order, 1), ranked


def _draw_bars(axes: Axes, values: np.ndarray, colours: Any, name: str, sorted_by: str) -> None:
    """Draw one bar per head: the mean over seeds, with a line from the minimum to the maximum.

    Args:
      axes: Matplotlib axes.
      values: Values of w or v, shape (seeds, heads).
      colours: One colour, or one for each head.
      name: "w" or "v", the name of the values.
      sorted_by: "w" or "v", the values by which the heads are sorted.
    """
    ranks = np.arange(1, values.shape[1] + 1)
    axes.bar(ranks, values.mean(0), color=colours, width=0.75)
    if len(values) > 1:
        axes.vlines(ranks, values.min(0), values.max(0), color=style.INK, linewidth=0.9)
    axes.axhline(0, color=style.INK, linewidth=0.6)
    axes.set(xlabel=f"rank of the head by ${sorted_by}$", ylabel=f"${name}$")
    axes.set_xlim(0.25, len(ranks) + 0.75)
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1))
