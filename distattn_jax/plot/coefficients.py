"""Figures of the learnable sigmoid f, which multiplies attention scores in the DA-Transformer.

f(x; v) = (1 + eᵛ) / (1 + eᵛ⁻ˣ),   x = wR   (DA-Transformer, eq. 5)

R is the distance between query and key. Each head has two parameters: the distance weight w, and
the parameter v, which determines the shape of the sigmoid. A head with w < 0 is local: it shrinks
the scores of distant keys. A head with w > 0 is global: it multiplies the scores of distant keys by
up to 1 + eᵛ. f = 1 leaves a score unchanged.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
from jaxtyping import Array
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from distattn_jax.attention import learnable_sigmoid
from distattn_jax.plot import style

Vector = np.ndarray | Array | Sequence[float | int]


def mapping_curves(shapes: Vector, *, limit: float | int = 10) -> Figure:
    """Plot the learnable sigmoid f(x; v) against x, one curve for each v (Figure 1 of the paper).

    Args:
      shapes: Values of the parameter v, one for each curve, shape (M,).
      limit: Largest |x|. The horizontal axis runs from -limit to limit.
    """
    shapes = style.check_array("shapes", shapes, ("M",))
    if limit <= 0:
        raise ValueError(f"limit must be above 0; got {limit}.")
    x = np.linspace(-limit, limit, 401)
    ranks = shapes.argsort().argsort() / max(len(shapes) - 1, 1)
    colours = [matplotlib.colormaps["viridis"](0.85 * rank) for rank in ranks]
    with style.use_style():
        figure = _plot_curves(
            x,
            _evaluate(np.broadcast_to(x, (len(shapes), len(x))), shapes),
            order=shapes.argsort()[::-1],
            colours=colours,
            labels=[f"$v$ = {_format(v)}" for v in shapes],
            xlabel="weighted distance $x = wR$",
            ylabel="coefficient $f(x; v)$",
        )
        (axes,) = figure.axes
        axes.axvline(0, color=style.GREY, linewidth=0.8, linestyle=":", zorder=0)
        axes.xaxis.set_major_locator(MaxNLocator(10, steps=[1, 2, 5, 10]))
        return style.finish_layout(figure)


def coefficient_curves(
    weight: np.ndarray | Array, shape: np.ndarray | Array, *, max_distance: int
) -> Figure:
    """Plot the coefficient f(wR; v) of every head against the distance R between query and key.

    The legend lists the heads from the largest w to the smallest, and counts heads from 1.

    Args:
      weight: Distance weights w of the heads, shape (N,).
      shape: Parameters v of the sigmoids of the heads, shape (N,).
      max_distance: Largest distance R on the horizontal axis.
    """
    weight = style.check_array("weight", weight, ("N",))
    shape = style.check_array("shape", shape, weight.shape)
    if max_distance < 1:
        raise ValueError(f"max_distance must be at least 1; got {max_distance}.")
    distances = np.linspace(0, max_distance, 201)
    with style.use_style():
        figure = _plot_curves(
            distances,
            _evaluate(np.outer(weight, distances), shape),
            order=weight.argsort(kind="stable")[::-1],
            colours=style.head_colours(weight),
            labels=[
                f"head {i + 1}: $w$ = {_format(w, 2)}, $v$ = {_format(v, 2)}"
                for i, (w, v) in enumerate(zip(weight, shape, strict=True))
            ],
            xlabel="distance $R$",
            ylabel="coefficient $f(wR; v)$",
        )
        return style.finish_layout(figure)


def coefficient_matrices(weights: Vector, shapes: Vector, *, length: int) -> Figure:
    """Draw the matrix f(w|i - j|; v) for every pair of w and v (Figure 2 of the paper).

    All matrices share one colour scale: white where f = 1, blue below 1, red above 1.

    Args:
      weights: Values of the distance weight w, one for each column of the figure.
      shapes: Values of the parameter v of the sigmoid, one for each row of the figure.
      length: Number of query positions i (rows) and of key positions j (columns) of each matrix.
    """
    weights = style.check_array("weights", weights, ("columns",))
    shapes = style.check_array("shapes", shapes, ("rows",))
    if length < 1:
        raise ValueError(f"length must be at least 1; got {length}.")
    positions = np.arange(length)
    distances = np.abs(positions[:, None] - positions)
    pairs = [(w, v) for v in shapes for w in weights]
    matrices = _evaluate(
        np.stack([w * distances for w, _ in pairs]), np.asarray([v for _, v in pairs])
    )
    scale = TwoSlopeNorm(1, vmin=0, vmax=max(2, matrices.max()))
    edges = (0.5, length + 0.5, length + 0.5, 0.5)
    with style.use_style():
        figure, grid = style.make_panels(len(shapes), len(weights), width=2.4, height=2.2)
        figure.set_layout_engine("compressed")  # It leaves no gaps between square maps.
        for i, (axes, (w, v), matrix) in enumerate(zip(grid, pairs, matrices, strict=True)):
            image = axes.imshow(matrix, cmap="RdBu_r", norm=scale, extent=edges)
            style.frame_panel(axes, f"$w$ = {_format(w)}, $v$ = {_format(v)}")
            if i >= len(grid) - len(weights):
                axes.set_xlabel("key position $j$")
            if i % len(weights) == 0:
                axes.set_ylabel("query position $i$")
        label = "coefficient $f(w|i-j|; v)$"
        style.add_colour_bar(figure, image, label, ticks=8, ax=grid, aspect=30)
        return style.finish_layout(figure)


def _evaluate(x: np.ndarray, shape: np.ndarray) -> np.ndarray:
    """Return the learnable sigmoid f(x[m]; v[m]) for every index m of the first axis.

    Args:
      x: Weighted distances, shape (M, ...).
      shape: Values of v, shape (M,).
    """
    return np.asarray(jax.vmap(learnable_sigmoid)(jnp.asarray(x), jnp.asarray(shape)))


def _plot_curves(
    x: np.ndarray,
    coefficients: np.ndarray,
    *,
    order: np.ndarray,
    colours: Sequence[Any],
    labels: Sequence[str],
    xlabel: str,
    ylabel: str,
) -> Figure:
    """Plot M curves of K points in one panel, with a legend on the right.

    Args:
      x: Horizontal coordinates, shape (K,).
      coefficients: Vertical coordinates, shape (M, K).
      order: Indices of the curves in the order of the legend.
      colours: Colour of each curve.
      labels: Text of each curve in the legend.
      xlabel: Label of the horizontal axis.
      ylabel: Label of the vertical axis.
    """
    legend_columns = -(-len(labels) // 16)
    font_size = style.SETTINGS["legend.fontsize"]
    entry = max(style.text_width(label, font_size) for label in labels) + 0.6
    figure, (axes,) = style.make_panels(1, 1, width=3.8 + entry * legend_columns, height=3.2)
    axes.axhline(1, color=style.GREY, linewidth=0.8, linestyle=":")
    for i in order.tolist():
        # Clipping would halve the width of a curve along the axis.
        axes.plot(x, coefficients[i], color=colours[i], clip_on=False, label=labels[i])
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.set_xlim(x[0], x[-1])
    axes.set_ylim(bottom=0)
    figure.legend(loc="outside right center", ncols=legend_columns)
    return figure


def _format(x: float, digits: int = 3) -> str:
    """Format a number with `digits` significant digits, and with "−" instead of "-"."""
    return f"{x:.{digits}g}".replace("-", "\N{MINUS SIGN}")
