"""Heat maps of attention weights, side by side: rows are queries, columns are keys."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from distattn_jax.plot.style import (
    SETTINGS,
    check_array,
    finish_layout,
    grid_shape,
    text_width,
    use_style,
)

# Sizes in inches. Maps are positioned by hand, so that every cell has room for its token.
MIN_MAP, MAX_FIGURE = 1.8, 13.0
TITLE_LINE, AXIS_LABEL, PADDING, GAP, COLOUR_BAR = 0.16, 0.35, 0.1, 0.15, 0.85


def attention_maps(
    maps: Mapping[str, np.ndarray | Array],
    tokens: Sequence[str],
    *,
    query_tokens: Sequence[str] | None = None,
    columns: int | None = None,
    max_weight: float | None = None,
) -> Figure:
    """Draw attention weights as heat maps with tokens on both axes.

    The maps are readable up to about 40 tokens.

    Args:
      maps: Dict from the title to attention weights of shape (T, S). A title may have several
        lines.
      tokens: The S key tokens.
      query_tokens: The T query tokens. None uses `tokens`.
      columns: Number of maps in a row. None fits as many as the width allows.
      max_weight: Upper end of the colour scale. Larger weights share the darkest colour. None
        uses the largest weight.
    """
    query_tokens = tokens if query_tokens is None else query_tokens
    if not maps or not tokens or not query_tokens:
        counts = f"{len(maps)} maps, {len(tokens)} tokens, {len(query_tokens)} query_tokens"
        raise ValueError(f"maps, tokens and query_tokens must not be empty; got {counts}.")
    if columns is not None and columns < 1:
        raise ValueError(f"columns must be at least 1; got {columns}.")
    arrays = {
        title: check_array(f"maps[{title!r}]", weights, (len(query_tokens), len(tokens)))
        for title, weights in maps.items()
    }
    lowest = min(0.0, *(weights.min() for weights in arrays.values()))
    highest = max(weights.max() for weights in arrays.values())
    upper = highest if max_weight is None else min(max_weight, highest)
    if max_weight is not None and max_weight <= lowest:
        raise ValueError(
            f"max_weight must be above {lowest:g}, the lowest weight; got {max_weight}."
        )

    layout = _arrange(list(arrays), tokens, query_tokens, columns)
    with use_style():
        figure = Figure((layout.width, layout.height))
        text: dict[str, Any] = {
            "fontsize": layout.font_size,
            "parse_math": False,
        }  # A token may be a dollar sign.
        for i, (title, weights) in enumerate(arrays.items()):
            row, column = divmod(i, layout.columns)
            axes = figure.add_axes(layout.rectangle(row, column, layout.map_width))
            image = axes.imshow(weights, cmap="Blues", vmin=lowest, vmax=upper)
            axes.set_title(title, parse_math=False)
            axes.spines[:].set_visible(True)
            axes.tick_params(length=0, pad=2)
            axes.set_xticks(range(len(tokens)), tokens, rotation=90, **text)
            axes.set_xlabel("key")
            if column == 0:
                axes.set_yticks(range(len(query_tokens)), query_tokens, **text)
                axes.set_ylabel("query")
            else:
                axes.set_yticks([])
        bar_axes = figure.add_axes(layout.rectangle(0, layout.columns, 0.12))
        extend = "max" if upper < highest else "neither"
        bar = figure.colorbar(image, cax=bar_axes, label="attention weight", extend=extend)
        bar.outline.set_linewidth(0.6)
        bar.locator = MaxNLocator(5)
        return finish_layout(figure)


class _Layout(NamedTuple):
    """Positions of all maps in a figure. Lengths are in inches.

    Attributes:
      rows: Number of rows of maps.
      columns: Number of maps in a row.
      map_width: Width of one map.
      map_height: Height of one map.
      left: Space for the query tokens of a row.
      above: Space for the title of a map.
      below: Space for the key tokens of a map.
      font_size: Font size of the tokens in points.
    """

    rows: int
    columns: int
    map_width: float
    map_height: float
    left: float
    above: float
    below: float
    font_size: int

    @property
    def width(self) -> float:
        """Width of the figure."""
        return self.left + self.columns * (self.map_width + GAP) + COLOUR_BAR

    @property
    def height(self) -> float:
        """Height of the figure."""
        return self.rows * (self.above + self.map_height + self.below)

    def rectangle(self, row: int, column: int, width: float) -> tuple[float, float, float, float]:
        """Return (left, bottom, width, height) of axes, as fractions of the figure."""
        x = self.left + column * (self.map_width + GAP)
        y = self.height - row * (self.above + self.map_height + self.below)
        y -= self.above + self.map_height
        return (
            x / self.width,
            y / self.height,
            width / self.width,
            self.map_height / self.height,
        )


def _arrange(
    titles: Sequence[str], tokens: Sequence[str], query_tokens: Sequence[str], columns: int | None
) -> _Layout:
    """Return a layout of the maps in which all titles and tokens fit."""
    lines = [title.split("\n") for title in titles]
    title_width = max(
        text_width(line, SETTINGS["axes.titlesize"]) for title in lines for line in title
    )
    longest = max(len(query_tokens), len(tokens))
    cell, font_size = (0.15, 7) if longest <= 24 else (0.12, 6)
    cell = max(cell, MIN_MAP / longest, title_width / len(tokens))
    if columns is None:
        fitting = max(1, int(MAX_FIGURE // (cell * len(tokens))))
        _, columns = grid_shape(len(titles), max_columns=fitting)
    margin = AXIS_LABEL + PADDING
    return _Layout(
        rows=-(-len(titles) // columns),
        columns=min(columns, len(titles)),
        map_width=cell * len(tokens),
        map_height=cell * len(query_tokens),
        left=margin + max(text_width(name, font_size) for name in set(query_tokens)),
        above=PADDING + TITLE_LINE * max(map(len, lines)),
        below=margin + max(text_width(name, font_size) for name in set(tokens)),
        font_size=font_size,
    )
