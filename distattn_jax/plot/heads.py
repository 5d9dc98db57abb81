"""What distance-aware heads have learned: w, v, and what they make of distance.

f(wR; v) = (1 + eᵛ) / (1 + eᵛ⁻ʷᴿ)   (DA-Transformer, eq. 5). A head with w < 0 is local: it shrinks
the scores of distant keys. One with w > 0 is global: it makes them grow, up to 1 + eᵛ times.
"""

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
from jaxtyping import Array
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from distattn_jax.attention import learnable_sigmoid
from distattn_jax.plot.style import GLOBAL, INK, LOCAL, QUIET, checked, panels, settled, styled


def head_parameters(weight: np.ndarray | Array, shape: np.ndarray | Array) -> Figure:
    """w and v of every head, as Figures 6 and 7 of the paper.

    Heads have no order that seeds share. So those of a seed, of all layers, are sorted by w, and
    the bars are means over seeds of the first, of the second, ...; the whiskers go from the least
    seed to the greatest. Each v stays with its w.

    Args:
      weight: w (seeds, L, N).
      shape: v (seeds, L, N).
    """
    weight = checked("weight", weight, ("seeds", "L", "N"))
    seeds, heads = len(weight), weight[0].size
    shape = checked("shape", shape, weight.shape)
    order = weight.reshape(seeds, heads).argsort(1, kind="stable")
    ranked = {
        name: np.take_along_axis(array.reshape(seeds, heads), order, 1)
        for name, array in (("w", weight), ("v", shape))
    }
    colours = [LOCAL if mean < 0 else GLOBAL for mean in ranked["w"].mean(0)]
    ranks = np.arange(1, heads + 1)
    with styled():
        rows, columns = (1, 2) if heads <= 24 else (2, 1)
        width = min(max(2.6, 0.6 + 0.16 * heads), 8.0)
        figure, grid = panels(rows, columns, width=width, height=2.6 if rows == 1 else 2.2)
        for axes, (name, values) in zip(grid, ranked.items(), strict=True):
            mean = values.mean(0)
            axes.bar(ranks, mean, color=colours, width=0.75)
            if seeds > 1:
                axes.vlines(ranks, values.min(0), values.max(0), color=INK, linewidth=0.9)
            axes.axhline(0, color=INK, linewidth=0.6)
            axes.set(xlabel="head, in order of $w$", ylabel=f"${name}$")
            axes.set_xlim(0.25, heads + 0.75)
            axes.xaxis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1))
        kinds = {"local ($w<0$)": LOCAL, "global ($w>0$)": GLOBAL}
        figure.legend(
            [Patch(color=colour) for colour in kinds.values()],
            list(kinds),
            loc="outside upper center",
            ncols=2,
        )
        return settled(figure)


def coefficient_curves(
    weight: np.ndarray | Array, shape: np.ndarray | Array, *, furthest: int
) -> Figure:
    """f(wR; v) of every head against the distance R, as Figure 1 of the paper.

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
    coefficients = np.asarray(
        jax.vmap(learnable_sigmoid)(jnp.asarray(np.outer(weight, distances)), jnp.asarray(shape))
    )
    top_first = np.lexsort((weight, coefficients[:, -1]))[::-1]  # the legend, as the curves end
    with styled():
        legend_columns = -(-len(weight) // 16)
        figure, (axes,) = panels(1, 1, width=3.5 + 1.9 * legend_columns, height=3.2)
        axes.axhline(1, color=QUIET, linewidth=0.8, linestyle=":")
        for head in top_first.tolist():
            axes.plot(
                distances,
                coefficients[head],
                color=_colour(weight, head),
                clip_on=False,  # a curve along an edge is drawn in full
                label=f"$w$ = {_number(weight[head])}, $v$ = {_number(shape[head])}",
            )
        axes.set(xlabel="distance $R$", ylabel="coefficient $f(wR; v)$")
        axes.set_xlim(0, furthest)
        axes.set_ylim(bottom=0)
        figure.legend(loc="outside right center", ncols=legend_columns)
        return settled(figure)


def _colour(weight: np.ndarray, head: int) -> tuple[float, ...]:
    """Blues for local heads, oranges for global ones, darker the greater |w| is among its kind."""
    alike = np.abs(weight[(weight < 0) == (weight[head] < 0)])
    rank = np.sum(alike < abs(weight[head])) / max(len(alike) - 1, 1)
    colours = matplotlib.colormaps["Blues" if weight[head] < 0 else "Oranges"]
    return tuple(colours(0.45 + 0.5 * rank) if len(alike) > 1 else colours(0.8))


def _number(x: float) -> str:
    """Three significant digits, with a true minus."""
    return f"{x:.3g}".replace("-", "\N{MINUS SIGN}")
