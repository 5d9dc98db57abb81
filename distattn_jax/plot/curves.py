"""Learning curves: mean over seeds, with a band from the minimum to the maximum over seeds."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from distattn_jax.plot import style

# method -> metric -> (steps (K,), values (seeds, K))
History = Mapping[str, Mapping[str, tuple[np.ndarray, np.ndarray]]]

MAX_MARKED_POINTS = 12  # A curve with more points is drawn without markers.


def learning_curves(
    history: History,
    metrics: Sequence[str],
    *,
    labels: Mapping[str, str] | None = None,
    unit: str = "seeds",
) -> Figure:
    """Plot metrics against training steps: one panel per metric, one line per method.

    If a method has several seeds, its line is the mean over seeds, and a band runs from the lowest
    to the highest value. A caption then explains the band. All panels have the same horizontal
    axis.

    Args:
      history: `history[method][metric]` is a pair (steps, values) of shapes (K,) and (seeds, K).
        Steps and seeds may differ between methods. If a method has no values of a metric, the panel
        of this metric omits the method.
      metrics: Names of the metrics to plot, one panel each, in this order.
      labels: Dict from the name of a method to its text in the legend. A method without an entry
        has its name as text.
      unit: Plural noun in the caption for the first axis of the values, such as "seeds".
    """
    known = {metric for curves in history.values() for metric in curves}
    unknown = [metric for metric in metrics if metric not in known]
    if not metrics or unknown:
        raise ValueError(f"metrics must be some of {sorted(known)}; got {list(metrics)}.")
    colours = style.method_colours(history)
    rows, columns = style.grid_shape(len(metrics), max_columns=3)
    with style.use_style():
        figure, grid = style.make_panels(rows, columns, width=3.4, height=2.6)
        lines, seeds, last_step = {}, set(), 0.0
        for axes, metric in zip(grid, metrics, strict=False):
            for method, curves in history.items():
                if metric not in curves:
                    continue
                name = f"history[{method!r}][{metric!r}]"
                steps = style.check_array(f"steps of {name}", curves[metric][0], ("K",))
                values = style.check_array(
                    f"values of {name}", curves[metric][1], ("seeds", len(steps))
                )
                lines[method] = axes.plot(
                    steps,
                    values.mean(0),
                    color=colours[method],
                    marker="o" if len(steps) <= MAX_MARKED_POINTS else None,
                    markersize=3.5,
                    label=method,
                )[0]
                if len(values) > 1:
                    axes.fill_between(
                        steps, values.min(0), values.max(0), color=colours[method], alpha=0.2, lw=0
                    )
                seeds.add(len(values))
                last_step = max(last_step, steps.max())
            axes.set(xlabel="step", ylabel=metric.replace("_", " "))
            axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10], integer=True))
        for axes in grid[: len(metrics)]:
            axes.set_xlim(-0.02 * (last_step or 1), 1.02 * (last_step or 1))
        for axes in grid[len(metrics) :]:
            axes.remove()
        plotted = {method: lines[method] for method in history if method in lines}
        names = [(labels or {}).get(method, method.replace("_", " ")) for method in plotted]
        style.add_legend_above(figure, list(plotted.values()), names)
        if max(seeds) > 1:
            count = f"{max(seeds)} {unit}" if len(seeds) == 1 else f"all {unit}"
            caption = f"line: mean of {count}; band: lowest to highest value"
            figure.supxlabel(caption, fontsize=8, color=style.GREY)
        return style.finish_layout(figure)
