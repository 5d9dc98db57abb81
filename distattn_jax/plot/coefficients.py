"""What the learnable sigmoid makes of distance: as curves, and as matrices.

f(x; v) = (1 + eᵛ) / (1 + eᵛ⁻ˣ),   x = wR   (DA-Transformer, eq. 5)

A head with w < 0 is local: it shrinks the scores of distant keys. One with w > 0 is global: it
makes them grow, up to 1 + eᵛ times. f = 1 leaves a score as it is.
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
from distattn_jax.plot.style import QUIET, checked, head_colours, panels, settled, styled

Numbers = np.ndarray | Array | Sequence[float | int]


def mapping_curves(shapes: Numbers, *, furthest: float | int = 10) -> Figure:
    """f(x; v) against the weighted distance x, a curve for each v, as Figure 1 of the paper.

    Args:
      shapes: v (M,).
      furthest: x goes from minus this to this.
    """
    shapes = checked("shapes", shapes, ("M",))
    if furthest <= 0:
        raise ValueError(f"furthest must be above 0; got {furthest}.")
    x = np.linspace(-furthest, furthest, 401)
    ranks = shapes.argsort().argsort() / max(len(shapes) - 1, 1)
    colours = [matplotlib.colormaps["viridis"](0.85 * rank) for rank in ranks]
    with styled():
        figure = _curves(
            x,
            _coefficients(np.broadcast_to(x, (len(shapes), len(x))), shapes),
            colours=colours,
            labels=[f"$v$ = {_number(v)}" for v in shapes],
            xlabel="weighted distance $x = wR$",
            ylabel="coefficient $f(x; v)$",
        )
        (axes,) = figure.axes
        axes.axvline(0, color=QUIET, linewidth=0.8, linestyle=":", zorder=0)
        axes.xaxis.set_major_locator(MaxNLocator(10, steps=[1, 2, 5, 10]))
        return settled(figure)


def coefficient_curves(
    weight: np.ndarray | Array, shape: np.ndarray | Array, *, furthest: int
) -> Figure:
    """f(wR; v) of every head against the distance R.

    Args:
      weight: w (N,).
      shape: v (N,).
      furthest: the greatest distance drawn.
    """
    weight = checked("weight", weight, ("N",))
    shape = checked("shape", shape, weight.shape)
    if furthest < 1:
        raise ValueError(f"furthest must be at least 1; got {furthest}.")
    distances = np.linspace(0, furthest, 201)
    with styled():
        figure = _curves(
            distances,
            _coefficients(np.outer(weight, distances), shape),
            colours=head_colours(weight),
            labels=[
                f"$w$ = {_number(w)}, $v$ = {_number(v)}"
                for w, v in zip(weight, shape, strict=True)
            ],
            xlabel="distance $R$",
            ylabel="coefficient $f(wR; v)$",
        )
        return settled(figure)


def coefficient_matrices(weights: Numbers, shapes: Numbers, *, length: int) -> Figure:
    """f(w|i - j|; v) for each w beside each v, as Figure 2 of the paper: a row for each v.

    One scale for all: white where f = 1, blue where scores shrink, red where they grow.

    Args:
      weights: w, one for each column.
      shapes: v, one for each row.
      length: of the sequence.
    """
    weights = checked("weights", weights, ("columns",))
    shapes = checked("shapes", shapes, ("rows",))
    if length < 1:
        raise ValueError(f"length must be at least 1; got {length}.")
    positions = np.arange(length)
    distances = np.abs(positions[:, None] - positions)
    pairs = [(w, v) for v in shapes for w in weights]
    matrices = _coefficients(
        np.stack([w * distances for w, _ in pairs]), np.asarray([v for _, v in pairs])
    )
    scale = TwoSlopeNorm(1, vmin=0, vmax=max(2, matrices.max()))
    edges = (0.5, length + 0.5, length + 0.5, 0.5)
    with styled():
        figure, grid = panels(len(shapes), len(weights), width=2.4, height=2.2)
        figure.set_layout_engine("compressed")  # maps are square: no gaps between them
        for i, (axes, (w, v), matrix) in enumerate(zip(grid, pairs, matrices, strict=True)):
            image = axes.imshow(matrix, cmap="RdBu_r", norm=scale, extent=edges)
            axes.set_title(f"$w$ = {_number(w)}, $v$ = {_number(v)}")
            axes.spines[:].set_visible(True)
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))
            if i >= len(grid) - len(weights):
                axes.set_xlabel("key position $j$")
            if i % len(weights) == 0:
                axes.set_ylabel("query position $i$")
        bar = figure.colorbar(image, ax=grid, label="coefficient $f(w|i-j|; v)$", aspect=30)
        bar.ax.set_yscale("linear")  # as far on the bar, as far in f; the norm would halve it at 1
        bar.locator = MaxNLocator(8, steps=[1, 2, 5, 10])
        bar.outline.set_linewidth(0.6)
        return settled(figure)


def _coefficients(x: np.ndarray, shape: np.ndarray) -> np.ndarray:
    """f of each x[i] with shape[i]."""
    return np.asarray(jax.vmap(learnable_sigmoid)(jnp.asarray(x), jnp.asarray(shape)))


def _curves(
    x: np.ndarray,
    coefficients: np.ndarray,
    *,
    colours: Sequence[Any],
    labels: Sequence[str],
    xlabel: str,
    ylabel: str,
) -> Figure:
    """One panel, and beside it a legend in the order in which the curves end, the top one first."""
    legend_columns = -(-len(labels) // 16)
    figure, (axes,) = panels(1, 1, width=3.5 + 1.9 * legend_columns, height=3.2)
    axes.axhline(1, color=QUIET, linewidth=0.8, linestyle=":")
    top_first = np.lexsort((coefficients.sum(1), coefficients[:, -1]))[::-1]
    for i in top_first.tolist():
        axes.plot(
            x,
            coefficients[i],
            color=colours[i],
            clip_on=False,  # a curve along an edge is drawn in full
            label=labels[i],
        )
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.set_xlim(x[0], x[-1])
    axes.set_ylim(bottom=0)
    figure.legend(loc="outside right center", ncols=legend_columns)
    return figure


def _number(x: float) -> str:
    """Three significant digits, with a true minus."""
    return f"{x:.3g}".replace("-", "\N{MINUS SIGN}")
