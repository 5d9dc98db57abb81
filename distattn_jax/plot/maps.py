"""Attention maps side by side: rows are queries, columns are keys, one scale for all."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Array
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from distattn_jax.plot.style import SETTINGS, arranged, checked, printed_width, settled, styled

# All in inches: maps are laid out by hand, so that a cell has room for the name of its token.
LEAST_MAP, WIDEST_FIGURE = 1.8, 13.0
TITLE_LINE, AXIS_LABEL, AIR, GAP, COLOUR_BAR = 0.16, 0.35, 0.1, 0.15, 0.85


def attention_maps(
    maps: Mapping[str, np.ndarray | Array],
    tokens: Sequence[str],
    *,
    queries: Sequence[str] | None = None,
    columns: int | None = None,
    darkest: float | None = None,
) -> Figure:
    """Heatmaps with the tokens on both axes; readable up to about 40 of them.

    Args:
      maps: title -> weights (T, S); a title may have several lines.
      tokens: the S keys.
      queries: the T queries; None: the same tokens.
      columns: how many maps stand in a row; None: as many as there is room for. Figure 8 of the
        paper has two rows of 4: heads of the Transformer, then distance-aware ones.
      darkest: the weight from which on all look alike, so that the others can be told apart; None:
        the greatest there is.
    """
    queries = tokens if queries is None else queries
    if not maps or not tokens or not queries:
        counts = f"{len(maps)} maps, {len(tokens)} tokens, {len(queries)} queries"
        raise ValueError(f"maps, tokens and queries must not be empty; got {counts}.")
    if columns is not None and columns < 1:
        raise ValueError(f"columns must be at least 1; got {columns}.")
    arrays = {
        title: checked(f"maps[{title!r}]", weights, (len(queries), len(tokens)))
        for title, weights in maps.items()
    }
    least = min(0.0, *(weights.min() for weights in arrays.values()))
    greatest = max(weights.max() for weights in arrays.values())
    most = greatest if darkest is None else min(darkest, greatest)
    if darkest is not None and darkest <= least:
        raise ValueError(f"darkest must be above {least:g}, the least weight; got {darkest}.")

    lines = [title.split("\n") for title in arrays]
    above = AIR + TITLE_LINE * max(map(len, lines))
    title_width = max(
        printed_width(line, SETTINGS["axes.titlesize"]) for title in lines for line in title
    )
    longest = max(len(queries), len(tokens))
    cell, font_size = (0.15, 7) if longest <= 24 else (0.12, 6)
    cell = max(cell, LEAST_MAP / longest, title_width / len(tokens))
    map_width, map_height = cell * len(tokens), cell * len(queries)
    left = AXIS_LABEL + AIR + max(printed_width(name, font_size) for name in set(queries))
    below = AXIS_LABEL + AIR + max(printed_width(name, font_size) for name in set(tokens))
    if columns is None:
        _, columns = arranged(len(arrays), most=max(1, int(WIDEST_FIGURE // map_width)))
    rows, columns = -(-len(arrays) // columns), min(columns, len(arrays))
    width = left + columns * (map_width + GAP) + COLOUR_BAR
    height = rows * (above + map_height + below)

    with styled():
        figure = Figure((width, height))

        def axes_at(x: float, row: int, wide: float):
            y = height - row * (above + map_height + below) - above - map_height
            return figure.add_axes((x / width, y / height, wide / width, map_height / height))

        named = {"fontsize": font_size, "parse_math": False}  # a token may be a dollar
        for i, (title, weights) in enumerate(arrays.items()):
            row, column = divmod(i, columns)
            axes = axes_at(left + column * (map_width + GAP), row, map_width)
            image = axes.imshow(weights, cmap="Blues", vmin=least, vmax=most)
            axes.set_title(title, parse_math=False)
            axes.spines[:].set_visible(True)
            axes.tick_params(length=0, pad=2)
            axes.set_xticks(range(len(tokens)), tokens, rotation=90, **named)
            axes.set_xlabel("key")
            if column == 0:
                axes.set_yticks(range(len(queries)), queries, **named)
                axes.set_ylabel("query")
            else:
                axes.set_yticks([])
        bar_axes = axes_at(left + columns * (map_width + GAP), 0, 0.12)
        beyond = "max" if most < greatest else "neither"
        bar = figure.colorbar(image, cax=bar_axes, label="attention weight", extend=beyond)
        bar.outline.set_linewidth(0.6)
        bar.locator = MaxNLocator(5)
        return settled(figure)
