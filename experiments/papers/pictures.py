"""Save the figures of a paper as files, and link to the files in a report."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from etils import epath
from matplotlib.figure import Figure

from distattn_jax import plot
from experiments.papers.stored_results import AnyPath

DOTS_PER_INCH = 120


class Picture(NamedTuple):
    """A figure of a paper that can be drawn from stored results.

    Attributes:
      name: File name without the ending ".png".
      caption: Caption in the report.
      draw: Function that draws the figure.
    """

    name: str
    caption: str
    draw: Callable[[], Figure]


def save_pictures(pictures: Iterable[Picture], folder: AnyPath) -> None:
    """Draw all pictures and save them as PNG files in `folder/figures`."""
    for name, _, draw in pictures:
        plot.save(draw(), epath.Path(folder) / "figures" / f"{name}.png", dpi=DOTS_PER_INCH)


def link_pictures(pictures: Iterable[Picture], folder: str) -> str:
    """Return Markdown with a link to each picture in `folder`, or "" if there is none."""
    links = ", ".join(f"[{caption}]({folder}/{name}.png)" for name, caption, _ in pictures)
    return f"Figures: {links}." if links else ""
