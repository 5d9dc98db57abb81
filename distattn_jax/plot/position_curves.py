"""Figure of what the heads of a layer compute from positions alone, such as a factor or a bias."""

from collections.abc import Mapping
from typing import Any

import jax
import matplotlib
import numpy as np
from matplotlib.figure import Figure

from distattn_jax.attention import Variant
from distattn_jax.plot import style
from distattn_jax.plot.head_positions import describe_heads

LABELLED = 2  # numbers of a head in the legend, such as w before and after the query


def position_curves(variant: Variant, *, max_distance: int, causal: bool = False) -> Figure:
    """Plot the functions of the distance or relative position of all heads, one panel for each.

    `attention.TwoSided` has two panels: the factor f and the bias g, with keys before the query on
    the left and keys after it on the right. A head with w < 0 on both sides is blue, one with w > 0
    on both sides is orange. It is green if w < 0 only for keys after the query, and purple if w < 0
    only for keys before. The curves of other variants are those of the page that `explore` makes.

    The legend counts heads from 1.

    Args:
      variant: Attention variant of a layer, with arrays whose first axis is the head axis.
      max_distance: Largest distance between query and key on the horizontal axis.
      causal: True if no query attends to a later key. Keys after the query are then left out.
    """
    if max_distance < 1:
        raise ValueError(f"max_distance must be at least 1; got {max_distance}.")
    heads = max((leaf.shape[0] for leaf in jax.tree.leaves(variant)), default=1)
    length = max_distance + 1
    numbers, curves, _ = describe_heads(variant, heads, length, length, causal=causal)
    if not curves:
        raise ValueError(
            f"variant must have a function of the distance; got {type(variant).__name__}."
        )
    labels = [_label_head(head, numbers) for head in range(heads)]
    colours = _choose_colours(numbers, heads)
    columns = -(-heads // 16)
    font_size = style.SETTINGS["legend.fontsize"]
    legend = columns * (max(style.text_width(label, font_size) for label in labels) + 0.6)
    with style.use_style():
        width = 3.4 + legend / len(curves)
        figure, panels = style.make_panels(1, len(curves), width=width, height=3.2)
        for axes, curve in zip(panels, curves, strict=True):
            if curve.baseline is not None:
                axes.axhline(curve.baseline, color=style.GREY, linewidth=0.8, linestyle=":")
            if curve.x[0] < 0 < curve.x[-1]:
                axes.axvline(0, color=style.GREY, linewidth=0.8, linestyle=":")
            for y, colour in zip(curve.y, colours, strict=True):
                # Clipping would halve the width of a curve along the axis.
                axes.plot(curve.x, y, color=colour, clip_on=False)
            axes.set(title=curve.title, xlabel=curve.x_label)
            axes.set_xlim(curve.x[0], curve.x[-1])
        lines = panels[0].lines[-heads:]
        figure.legend(lines, labels, loc="outside right center", ncols=columns)
        return style.finish_layout(figure)


def _label_head(head: int, numbers: Mapping[str, np.ndarray]) -> str:
    """Return the name of a head with its first numbers, such as w before and after the query."""
    shown = [f"{name} = {values[head]:.2g}" for name, values in list(numbers.items())[:LABELLED]]
    return f"head {head + 1}{': ' if shown else ''}{', '.join(shown)}".replace(
        "-", "\N{MINUS SIGN}"
    )


def _choose_colours(numbers: Mapping[str, np.ndarray], heads: int) -> list[Any]:
    """Return a colour for each head, by the signs of its distance weights if it has any."""
    weights = [numbers[name] for name in ("w", "w before", "w after") if name in numbers]
    if weights:
        return style.head_colours(np.stack(weights, axis=1))
    return [matplotlib.colormaps["viridis"](0.85 * i / max(heads - 1, 1)) for i in range(heads)]
