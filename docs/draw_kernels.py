"""Draw tiles.png and saturation.png, the figures of kernels.md: `python docs/draw_kernels.py`."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from distattn_jax import plot
from distattn_jax.attention import learnable_sigmoid

FOLDER = Path(__file__).parent
LENGTH, TILE = 4096, 256  # tokens; rows and columns of a drawn tile
RADIUS = 420  # tokens: beyond it, a head with |w| = 0.03 is saturated
COLOURS = {
    "f is evaluated": plot.PALETTE["vermilion"],
    "f is a constant": plot.PALETTE["sky"],
    "never visited: one sum": "#e4e4e4",
}


def draw_tiles() -> Figure:
    """Draw the tiles of a local head, of a global head, and of a causal local head."""
    evaluated, constant, skipped = COLOURS.values()
    heads = {
        "local head, w < 0": skipped,
        "global head, w > 0": constant,
        "causal local head": skipped,
    }
    with plot.use_style():
        figure = Figure((8.4, 3.3), layout="constrained")
        for axes, (title, far) in zip(figure.subplots(1, 3), heads.items(), strict=True):
            for i in range(LENGTH // TILE):
                for j in range(LENGTH // TILE):
                    if title.startswith("causal") and j > i:
                        continue
                    near = (abs(i - j) - 1) * TILE < RADIUS
                    box = Rectangle(
                        (j, i), 1, 1, color=evaluated if near else far, ec="white", lw=0.6
                    )
                    axes.add_patch(box)
            axes.set(
                xlim=(0, LENGTH // TILE), ylim=(LENGTH // TILE, 0), aspect="equal", title=title
            )
            axes.set(xlabel="blocks of keys", ylabel="blocks of queries", xticks=[], yticks=[])
        handles = [Patch(color=colour, label=label) for label, colour in COLOURS.items()]
        figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure


def draw_saturation() -> Figure:
    """Draw f against the distance, and the pairs that a local head scores against the length."""
    with plot.use_style():
        figure = Figure((8.4, 2.9), layout="constrained")
        curve, cost = figure.subplots(1, 2)
        distance = jnp.arange(0, 600)
        for w, colour in ((0.03, plot.PALETTE["vermilion"]), (-0.03, plot.PALETTE["blue"])):
            curve.plot(
                distance, learnable_sigmoid(w * distance, 1.0), color=colour, label=f"w = {w}"
            )
        curve.axvspan(RADIUS, 600, color="#f0f0f0", zorder=0)
        curve.text(510, 1.9, "constant", ha="center")
        curve.set(xlabel="distance |i - j|", ylabel="coefficient f", xlim=(0, 600), ylim=(0, None))
        curve.legend()
        lengths = 2.0 ** np.arange(9, 16)
        cost.plot(lengths, lengths**2, "o-", color=plot.PALETTE["black"], label="all pairs: L²")
        pairs = np.minimum(lengths**2, lengths * 2 * (RADIUS + TILE))
        cost.plot(
            lengths, pairs, "o-", color=plot.PALETTE["blue"], label="local head: L · 2 (R* + tile)"
        )
        cost.set(xscale="log", yscale="log", xlabel="length L", ylabel="scored pairs")
        cost.set_xticks(lengths, [f"{n:.0f}" for n in lengths], rotation=30)
        cost.minorticks_off()
        cost.legend()
    return figure


if __name__ == "__main__":
    plot.save(draw_tiles(), FOLDER / "tiles.png", dpi=110)
    plot.save(draw_saturation(), FOLDER / "saturation.png", dpi=110)
