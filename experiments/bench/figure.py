"""Plot of the times that `bench` measured: one panel per shape, one bar per case."""

import collections
from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from distattn_jax.plot.style import (
    GREY,
    METHOD_COLOURS,
    SETTINGS,
    finish_layout,
    grid_shape,
    make_panels,
    text_width,
    use_style,
)

# Panel -> case -> time, or a message if there is no time.
Times = Mapping[str, Mapping[str, float | int | str]]
MAX_LENGTH = 2.5  # A bar is cut at this multiple of the median time of its panel.


def timing_bars(times: Times, *, unit: str, mark_one: bool = False, columns: int = 3) -> Figure:
    """Draw one panel per shape, with one bar per case. The time is printed beside its bar.

    A bar that is much longer than the other bars of its panel is cut, and an arrow marks the cut. A
    case that was not timed in any panel is omitted.

    Args:
      times: Times in `unit`: `times[panel title][case name]`. A case that could not be timed has a
        short message instead of a time. A case that is missing is marked "not timed".
      unit: Common label of the horizontal axes, below all panels.
      mark_one: If True, draw a dotted vertical line at 1. Use it if `times` are ratios.
      columns: Maximum number of panels in a row.
    """
    panels = times.values()
    timed = {case for one in panels for case, time in one.items() if not isinstance(time, str)}
    cases = [case for case in dict.fromkeys(c for one in panels for c in one) if case in timed]
    if not cases:
        raise ValueError(f"times must hold at least one time; got none in {list(times)}.")
    names = [case.replace("_", " ") for case in cases]
    side = max(text_width(name, SETTINGS["ytick.labelsize"]) for name in names) + 0.3
    rows, columns = grid_shape(len(times), max_columns=columns)
    with use_style():
        title_lines = 1 + max(title.count("\n") for title in times)
        label_lines = 1 + unit.count("\n")
        height = 0.45 + 0.15 * title_lines + 0.22 * len(cases) + 0.2 * label_lines / rows
        figure, grid = make_panels(rows, columns, width=2.3 + side / columns, height=height)
        for i, (axes, (title, panel)) in enumerate(zip(grid, times.items(), strict=False)):
            axes.set_title(title)
            axes.set_ylim(len(cases) - 0.4, -0.6)
            axes.set_yticks(range(len(cases)), names if i % columns == 0 else [])
            axes.tick_params(axis="y", length=0)
            known = [time for time in panel.values() if not isinstance(time, str)]
            end = min(max(known), MAX_LENGTH * float(np.median(known))) if known else 1.0
            axes.set_xlim(0, 1.3 * end)
            for row, case in enumerate(cases):
                time = panel.get(case, "not timed")
                if isinstance(time, str):
                    axes.text(0.03 * end, row, time, color=GREY, va="center")
                    continue
                length = min(time, end)
                axes.barh(row, length, height=0.65, color=_case_colour(case))
                arrow = " \N{RIGHTWARDS ARROW}" if time > end else ""
                shown = f"{time:.3g}" if time < 1000 else f"{time:,.0f}"
                text = axes.text(length + 0.03 * end, row, f"{shown}{arrow}", va="center")
                text.set_path_effects([withStroke(linewidth=2.5, foreground="white")])
            if mark_one:
                axes.axvline(1, color=GREY, linewidth=0.8, linestyle=":", zorder=0)
        for axes in grid[len(times) :]:
            axes.remove()
        figure.supxlabel(unit, fontsize=SETTINGS["axes.labelsize"])
        return finish_layout(figure)


def select_common(times: Times) -> Times:
    """Select panels with many cases, and the cases that most of the selected panels have.

    A panel is selected if it has at least half as many cases as the panel with the most cases. If
    no case is in more than half of the selected panels, return `times` unchanged.

    Args:
      times: Time or message of each case: `times[panel title][case name]`.
    """
    largest = max(map(len, times.values()))
    panels = {title: panel for title, panel in times.items() if 2 * len(panel) >= largest}
    counts = collections.Counter(case for panel in panels.values() for case in panel)
    common = {case for case, count in counts.items() if 2 * count > len(panels)}
    if not common:
        return times
    return {
        title: {case: time for case, time in panel.items() if case in common}
        for title, panel in panels.items()
    }


def _case_colour(case: str) -> str:
    """Return the colour of the bar of a benchmark case.

    A case name starts with the name of its attention variant, e.g. "vanilla_xla". The result is the
    colour of this variant, or grey for other names, such as those of other libraries.
    """
    methods = [method for method in METHOD_COLOURS if case.startswith(method)]
    return METHOD_COLOURS[min(methods, key=len)] if methods else GREY
