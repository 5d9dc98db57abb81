"""Names of methods at the right ends of the lines of a figure, without overlaps."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes

from distattn_jax.plot.style import INK
from experiments.papers.formatting import method_title

LABEL_GAP = 0.062  # height of a line of text, as a share of the height of a panel
HIGHEST_LABEL = 0.97  # place of the highest label, as a share of the height of a panel


class Line(NamedTuple):
    """Appearance of the line of a method."""

    colour: str
    style: str = "-"


def label_lines(
    axes: Axes, ends: Mapping[str, float], lines: Mapping[str, Line], *, strong: str | None = None
) -> None:
    """Write the name of each method at the right of its line, joined by a thin line of its colour.

    Names that would overlap are moved apart, by as little as possible.

    Args:
      axes: Panel with the lines.
      ends: Last value of the line of each method.
      lines: Appearance of the line of each method.
      strong: Method whose name is bold.
    """
    to_share = axes.transData + axes.transAxes.inverted()
    right = axes.get_xlim()[1]
    shares = {m: float(to_share.transform((right, value))[1]) for m, value in ends.items()}
    ordered = sorted(shares, key=shares.__getitem__)
    places = spread_labels([shares[method] for method in ordered])
    for method, place in zip(ordered, places, strict=True):
        axes.annotate(
            method_title(method),
            (1.0, shares[method]),
            xytext=(1.07, place),
            xycoords="axes fraction",
            textcoords="axes fraction",
            color=INK,
            fontsize=7.5,
            fontweight="bold" if method == strong else "normal",
            va="center",
            arrowprops={
                "arrowstyle": "-",
                "color": lines[method].colour,
                "linewidth": 1.2,
                "linestyle": lines[method].style,
                "shrinkA": 1,
                "shrinkB": 0,
                "relpos": (0, 0.5),
            },
            annotation_clip=False,
        )


def spread_labels(places: Sequence[float], *, gap: float = LABEL_GAP) -> list[float]:
    """Move labels apart so that neighbours are at least `gap` apart, below HIGHEST_LABEL.

    Neighbours that are too close form a group, which is centred on the mean of its places.

    Args:
      places: Wanted places, sorted, as shares of the height of a panel.
      gap: Smallest distance of two labels.
    """
    groups: list[list[float]] = []
    for place in places:
        groups.append([place])
        while (
            len(groups) > 1
            and _place_group(groups[-2], gap)[-1] + gap > _place_group(groups[-1], gap)[0]
        ):
            groups[-2:] = [groups[-2] + groups[-1]]
    return [place for group in groups for place in _place_group(group, gap)]


def _place_group(group: Sequence[float], gap: float) -> list[float]:
    """Return the places of labels that touch each other."""
    size = gap * (len(group) - 1)
    lowest = max(0.0, min(float(np.mean(group)) - size / 2, HIGHEST_LABEL - size))
    return [lowest + gap * i for i in range(len(group))]
