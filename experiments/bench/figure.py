"""How long things take, side by side."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from distattn_jax.plot.style import (
    METHOD_COLOURS,
    PALETTE,
    QUIET,
    SETTINGS,
    arranged,
    panels,
    printed_width,
    settled,
    styled,
)

Figures = Mapping[str, Mapping[str, float | int | None]]  # panel -> what was timed -> time
LONGEST = 2.5  # how many times as long as the median bar a bar may be


def timing_bars(figures: Figures, *, unit: str, one: bool = False, columns: int = 3) -> Figure:
    """A panel per shape, in it a bar for each thing timed, and its figure in print.

    A bar much longer than the others is cut, with an arrow, so that these can be told apart. What
    was timed in no panel is left out.

    Args:
      figures: panel title -> what was timed -> its time, or None if it was not.
      unit: what the bars are in.
      one: whether they are ratios, so that 1 is marked.
      columns: how many panels stand side by side at most.
    """
    timed = [name for by in figures.values() for name, time in by.items() if time is not None]
    rows = [
        name for name in dict.fromkeys(n for by in figures.values() for n in by) if name in timed
    ]
    if not rows:
        raise ValueError(f"figures must hold at least one time; got none in {list(figures)}.")
    names = [name.replace("_", " ") for name in rows]
    side = max(printed_width(name, SETTINGS["ytick.labelsize"]) for name in names) + 0.3
    down, across = arranged(len(figures), most=columns)
    with styled():
        height = 0.6 + 0.22 * len(rows)
        figure, grid = panels(down, across, width=2.3 + side / across, height=height)
        for i, (axes, (title, of_panel)) in enumerate(zip(grid, figures.items(), strict=False)):
            axes.set_title(title)
            axes.set_ylim(len(rows) - 0.4, -0.6)
            axes.set_yticks(range(len(rows)), names if i % across == 0 else [])
            axes.tick_params(axis="y", length=0)
            times = [time for time in of_panel.values() if time is not None]
            end = min(max(times), LONGEST * float(np.median(times))) if times else 1.0
            axes.set_xlim(0, 1.3 * end)
            for row, name in enumerate(rows):
                time = of_panel.get(name)
                if time is None:
                    axes.text(0.03 * end, row, "not timed", color=QUIET, va="center")
                    continue
                shown = min(time, end)
                axes.barh(row, shown, height=0.65, color=_colour(name))
                arrow = " \N{RIGHTWARDS ARROW}" if time > end else ""
                axes.text(shown + 0.03 * end, row, f"{time:.3g}{arrow}", va="center")
            if one:
                axes.axvline(1, color=QUIET, linewidth=0.8, linestyle=":", zorder=0)
        for axes in grid[len(figures) :]:
            axes.remove()
        figure.supxlabel(unit, fontsize=SETTINGS["axes.labelsize"])
        return settled(figure)


def _colour(name: str) -> str:
    """That of the method a name begins with; others are blue."""
    methods = [method for method in METHOD_COLOURS if name.startswith(method)]
    return METHOD_COLOURS[min(methods, key=len)] if methods else PALETTE["blue"]
