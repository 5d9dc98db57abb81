"""Heat maps of attention weights, side by side. Rows of a map are queries, columns are keys."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array
from matplotlib.figure import Figure

from distattn_jax.plot import style

# Sizes in inches. Maps are positioned by hand, so that every named token has room.
MIN_MAP, MIN_BAR, MAX_WIDTH, MAX_HEIGHT = 1.8, 1.2, 14.0, 16.0
FONT_SIZES = {0.14: 7, 0.1: 6, 0.072: 5}  # smallest distance between two tokens: size in points
MAX_CHARACTERS = 24  # of a token on an axis; the rest is cut
TITLE_LINE, AXIS_LABEL, PADDING, GAP, COLOUR_BAR = 0.16, 0.35, 0.1, 0.15, 0.85


def attention_maps(
    maps: Mapping[str, np.ndarray | Array],
    tokens: Sequence[str],
    *,
    query_tokens: Sequence[str] | None = None,
    axis_names: tuple[str, str] = ("query", "key"),
    columns: int | None = None,
    max_weight: float | None = None,
) -> Figure:
    """Draw attention weights as heat maps with tokens on both axes.

    Up to a length of about 80 tokens, the axes name every token. For longer texts, the maps shrink
    to fit the figure, and the axes name only every second token, or every third, and so on. The
    axis labels then say so.

    Args:
      maps: Dict from the title of each map to its attention weights, shape (T, S). A title may have
        several lines.
      tokens: The S key tokens.
      query_tokens: The T query tokens. None means `tokens`.
      axis_names: Names of the query axis (vertical) and of the key axis (horizontal).
      columns: Number of maps in a row of the figure. None chooses the number with the largest maps.
      max_weight: Weight with the darkest colour, which larger weights also have. None means the
        largest weight.
    """
    query_tokens = tokens if query_tokens is None else query_tokens
    if not maps or not tokens or not query_tokens:
        counts = f"{len(maps)} maps, {len(tokens)} tokens, {len(query_tokens)} query_tokens"
        raise ValueError(f"maps, tokens and query_tokens must not be empty; got {counts}.")
    if columns is not None and columns < 1:
        raise ValueError(f"columns must be at least 1; got {columns}.")
    arrays = {
        title: style.check_array(f"maps[{title!r}]", weights, (len(query_tokens), len(tokens)))
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
    with style.use_style():
        figure = Figure((layout.width, layout.height))
        # A token may be a dollar sign, which must not start mathematical notation.
        text: dict[str, Any] = {"fontsize": layout.font_size, "parse_math": False}
        named = "" if layout.every == 1 else f", 1 of {layout.every} named"
        for i, (title, weights) in enumerate(arrays.items()):
            row, column = divmod(i, layout.columns)
            axes = figure.add_axes(layout.rectangle(row, column))
            image = axes.imshow(weights, cmap="Blues", vmin=lowest, vmax=upper)
            axes.set_title(title, parse_math=False)
            axes.spines[:].set_visible(True)
            axes.tick_params(length=0, pad=2)
            axes.set_xticks(*_name_tokens(tokens, layout.every), rotation=90, **text)
            axes.set_xlabel(f"{axis_names[1]}{named}")
            if column == 0:
                axes.set_yticks(*_name_tokens(query_tokens, layout.every), **text)
                axes.set_ylabel(f"{axis_names[0]}{named}")
            else:
                axes.set_yticks([])
        bar_axes = figure.add_axes(layout.colour_bar)
        extend = "max" if upper < highest else "neither"
        label = "attention weight"
        style.add_colour_bar(figure, image, label, ticks=5, cax=bar_axes, extend=extend)
        return style.finish_layout(figure)


class _Layout(NamedTuple):
    """Sizes and positions of all maps in a figure. Lengths are in inches.

    Attributes:
      rows: Number of rows of maps.
      columns: Number of maps in a row.
      map_width: Width of one map.
      map_height: Height of one map.
      left: Width of the space for the query tokens, left of the first map of a row.
      above: Height of the space for the title, above a map.
      below: Height of the space for the key tokens, below a map.
      font_size: Font size of the tokens in points.
      every: 1 if all tokens are named, 2 if every second token is named, and so on.
    """

    rows: int
    columns: int
    map_width: float
    map_height: float
    left: float
    above: float
    below: float
    font_size: int
    every: int

    @property
    def width(self) -> float:
        """Width of the figure in inches."""
        return self.left + self.columns * (self.map_width + GAP) + COLOUR_BAR

    @property
    def height(self) -> float:
        """Height of the figure in inches."""
        return self.rows * (self.above + self.map_height + self.below)

    @property
    def overflow(self) -> float:
        """Number of inches by which the figure is too wide or too high. It is 0 if it fits."""
        return max(0.0, self.width - MAX_WIDTH - 1e-9, self.height - MAX_HEIGHT - 1e-9)

    def rectangle(self, row: int, column: int) -> tuple[float, float, float, float]:
        """Return (left, bottom, width, height) of a map, as fractions of the figure."""
        x = self.left + column * (self.map_width + GAP)
        y = self.height - row * (self.above + self.map_height + self.below) - self.above
        return self._fractions(x, y, self.map_width, self.map_height)

    @property
    def colour_bar(self) -> tuple[float, float, float, float]:
        """(left, bottom, width, height) of the colour bar, as fractions of the figure."""
        x = self.left + self.columns * (self.map_width + GAP)
        return self._fractions(x, self.height - self.above, 0.12, max(self.map_height, MIN_BAR))

    def _fractions(
        self, x: float, top: float, width: float, height: float
    ) -> tuple[float, float, float, float]:
        """Convert a rectangle in inches to fractions of the figure: (left, bottom, width, height).

        `x` is the distance of its left side from the left side of the figure, and `top` is the
        distance of its upper side from the bottom of the figure.
        """
        bottom = (top - height) / self.height
        return x / self.width, bottom, width / self.width, height / self.height


def _arrange(
    titles: Sequence[str], tokens: Sequence[str], query_tokens: Sequence[str], columns: int | None
) -> _Layout:
    """Return the layout with the largest maps for which the figure is not too large.

    Args:
      titles: Titles of the maps.
      tokens: Key tokens.
      query_tokens: Query tokens.
      columns: Number of maps in a row. None tries all numbers.
    """
    lines = [title.split("\n") for title in titles]
    title_size = style.SETTINGS["axes.titlesize"]
    title_width = max(style.text_width(line, title_size) for title in lines for line in title)
    longest = max(len(query_tokens), len(tokens))
    least = max(MIN_MAP / longest, title_width / len(tokens))
    most = max(least, 0.15 if longest <= 24 else 0.12)
    above, margin = PADDING + TITLE_LINE * max(map(len, lines)), AXIS_LABEL + PADDING
    token_widths = [  # at a font size of 1 point
        max(style.text_width(name, 1) for name in {_shorten(token) for token in names})
        for names in (query_tokens, tokens)
    ]

    def fit(columns: int) -> _Layout:
        """Return the layout with this number of maps in a row."""
        rows = -(-len(titles) // columns)
        cell, font_size = most, max(FONT_SIZES.values())
        for _ in range(2):  # The margins depend on the font size, which depends on the cells.
            left, below = (margin + font_size * width for width in token_widths)
            width = (MAX_WIDTH - left - COLOUR_BAR) / columns - GAP
            height = MAX_HEIGHT / rows - above - below
            cell = min(most, max(least, min(width / len(tokens), height / len(query_tokens))))
            sizes = [size for room, size in FONT_SIZES.items() if cell >= room - 1e-9]
            font_size = max(sizes, default=6)
        return _Layout(
            rows=rows,
            columns=columns,
            map_width=cell * len(tokens),
            map_height=cell * len(query_tokens),
            left=left,
            above=above,
            below=max(below, MIN_BAR + PADDING - cell * len(query_tokens)),
            font_size=font_size,
            every=1 if sizes else math.ceil(0.1 / cell),
        )

    if columns is not None:
        return fit(min(columns, len(titles)))
    layouts = [fit(style.grid_shape(len(titles), max_columns=i + 1)[1]) for i in range(len(titles))]
    return min(layouts, key=lambda layout: (layout.overflow, -layout.map_width, layout.rows))


def _name_tokens(tokens: Sequence[str], every: int) -> tuple[range, list[str]]:
    """Return the positions and labels of the ticks of an axis, one for every n-th token.

    Args:
      tokens: Tokens on the axis.
      every: The number n. 1 means all tokens.
    """
    return range(0, len(tokens), every), [_shorten(token) for token in tokens[::every]]


def _shorten(token: str) -> str:
    """Shorten a token to at most `MAX_CHARACTERS` characters. An ellipsis marks the cut."""
    return token if len(token) <= MAX_CHARACTERS else f"{token[: MAX_CHARACTERS - 1]}…"
