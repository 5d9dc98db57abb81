"""Learning curves: the mean over seeds, and the band from the worst seed to the best."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from distattn_jax.plot.style import (
    arranged,
    checked,
    legend_above,
    method_colours,
    panels,
    settled,
    styled,
)

# method -> metric -> (steps (K,), values (seeds, K))
History = Mapping[str, Mapping[str, tuple[np.ndarray, np.ndarray]]]

FEW = 12  # points of a curve that are marked


def learning_curves(
    history: History, metrics: Sequence[str], *, labels: Mapping[str, str] | None = None
) -> Figure:
    """One panel per metric, one line per method.

    Args:
      history: method -> metric -> (steps (K,), values (seeds, K)). Methods may differ in their
        steps and seeds. One that lacks a metric is left out of that panel.
      metrics: what to draw, in that order.
      labels: what the legend calls a method; one without a label is called by its name.
    """
    known = {metric for of_method in history.values() for metric in of_method}
    unknown = [metric for metric in metrics if metric not in known]
    if not metrics or unknown:
        raise ValueError(f"metrics must be some of {sorted(known)}; got {list(metrics)}.")
    colours = method_colours(history)
    rows, columns = arranged(len(metrics), most=3)
    with styled():
        figure, grid = panels(rows, columns, width=3.4, height=2.6)
        lines = {}
        for axes, metric in zip(grid, metrics, strict=False):
            for method, of_method in history.items():
                if metric not in of_method:
                    continue
                name = f"history[{method!r}][{metric!r}]"
                steps = checked(f"steps of {name}", of_method[metric][0], ("K",))
                values = checked(f"values of {name}", of_method[metric][1], ("seeds", len(steps)))
                lines[method] = axes.plot(
                    steps,
                    values.mean(0),
                    color=colours[method],
                    marker="o" if len(steps) <= FEW else None,
                    markersize=3.5,
                    label=method,
                )[0]
                axes.fill_between(
                    steps, values.min(0), values.max(0), color=colours[method], alpha=0.2, lw=0
                )
            axes.set(xlabel="step", ylabel=metric.replace("_", " "))
            axes.margins(x=0.02)
            axes.set_xlim(left=min(0, axes.get_xlim()[0]))  # so that all panels begin alike
            axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10], integer=True))
        for axes in grid[len(metrics) :]:
            axes.remove()
        shown = {method: lines[method] for method in history if method in lines}
        names = [(labels or {}).get(method, method.replace("_", " ")) for method in shown]
        legend_above(figure, list(shown.values()), names)
        return settled(figure)
