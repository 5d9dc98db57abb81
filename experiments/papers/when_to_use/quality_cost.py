"""Figure of quality beside cost: scores of attention methods, and the time of their attention.

The horizontal axis is the time of a forward and backward pass of attention alone, divided by the
time of cuDNN. The times are stored results of the command `bench`. Methods without a stored time or
without scores are left out.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from distattn_jax.plot import style
from distattn_jax.plot.style import GREY, METHOD_COLOURS
from distattn_jax.train.results import LOWER_IS_BETTER
from experiments.papers.figures import Line, label_lines
from experiments.papers.formatting import metric_title
from experiments.papers.results import Results
from experiments.papers.stored_results import read_results
from experiments.papers.when_to_use import language_models as lm
from experiments.papers.when_to_use.settings import (
    BEST_FORMS,
    OTHER_FORMS,
    OURS,
    TAGGING,
    TWO_SIDED,
)

SHAPE = "long"  # of the benchmark: 8,192 tokens
# Case of the benchmark for methods with another name. Rotary positions and sinusoids are added
# before the attention: their time is not included. The decay of the case "two_sided" is a
# logarithm, and no key is forgotten. That of "two_sided_buckets" makes all heads forget at 8,192
# tokens, which trained heads may not do. Kernels read all biases from a table, so that both forms
# get one time.
CASES = {
    **dict.fromkeys(("no_positions", "vanilla", "rotary"), "vanilla"),
    **dict.fromkeys(BEST_FORMS, "two_sided"),
}
TICKS = (0.15, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 4)


class Panel(NamedTuple):
    """Panel of the figure.

    Attributes:
      title: Name of the task.
      metric: Name of the metric.
      scores: Dict from each method to its mean over seeds, a number of the metric.
      costs: Dict from each method to its time, as a multiple of the time of cuDNN.
    """

    title: str
    metric: str
    scores: Mapping[str, float]
    costs: Mapping[str, float]


def list_panels(results: Results) -> list[Panel]:
    """Return the panels of the figure. A panel needs scores and times of at least two methods."""
    titles = {
        f"Tagging, mean of {len(TAGGING)} data sets": ("accuracy", average_tagging(results)),
        **{
            f"Language model, {length} tokens": (lm.METRIC, lm.perplexities(results, length).mean())
            for length in (lm.SHORT, lm.LONGEST)
        },
    }
    costs = find_costs()
    panels = []
    for title, (metric, means) in titles.items():
        scores = {str(method): float(mean) for method, mean in means.items() if method in costs}
        if len(scores) > 1:
            panels.append(Panel(title, metric, scores, {m: costs[m] for m in scores}))
    return panels


def average_tagging(results: Results) -> pd.Series:
    """Return the mean score of each method that was run on all data sets of tagging.

    A score is the accuracy, or F1 for named entities.
    """
    means = pd.DataFrame([results.main_scores(name).mean() for name in TAGGING])
    return means.mean(skipna=False).dropna()


def find_costs() -> dict[str, float]:
    """Return the stored time of each method, as a multiple of the time of cuDNN.

    Of the forms of two-sided attention, only the best are among them.
    """
    stored = read_results("bench")
    if stored is None:
        return {}
    times = {
        line["case"]: line["both_ratio"]
        for line in stored["lines"]
        if line["shape"] == SHAPE and line["both_ratio"] is not None
    }
    return {
        method: times[CASES.get(method, method)]
        for method in METHOD_COLOURS
        if method not in OTHER_FORMS and CASES.get(method, method) in times
    }


def draw_quality_and_cost(panels: Sequence[Panel]) -> Figure:
    """Draw one panel for each task, in which better methods are higher and cheaper ones left."""
    with style.use_style():
        figure, grid = style.make_panels(1, len(panels), width=4.4, height=3.6)
        for axes, panel in zip(grid, panels, strict=True):
            _draw_panel(axes, panel)
        return style.finish_layout(figure)


def _draw_panel(axes: Axes, panel: Panel) -> None:
    """Draw a point for each method, and a thin line from the point to its name at the right."""
    lines = {method: Line(METHOD_COLOURS[method]) for method in panel.scores}
    is_perplexity = panel.metric == lm.METRIC
    values = {m: score if is_perplexity else 100 * score for m, score in panel.scores.items()}
    axes.set_xscale("log", base=2)
    if is_perplexity:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(FixedLocator([80, 90, 100, 120, 150, 200]))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_locator(NullLocator())
    for method, value in values.items():
        emphasis: dict[str, Any] = {"s": 46, "zorder": 3} if _is_ours(method) else {"s": 22}
        axes.scatter(panel.costs[method], value, color=lines[method].colour, **emphasis)
    right = 1.15 * max(panel.costs.values())
    axes.set_xlim(right=right)
    if panel.metric in LOWER_IS_BETTER:
        axes.invert_yaxis()
    for method, value in values.items():
        colour = lines[method].colour
        axes.hlines(value, panel.costs[method], right, color=colour, linewidth=0.5, alpha=0.5)
    axes.axvline(1, color=GREY, linewidth=0.8, linestyle=":", zorder=0)
    low = axes.get_xlim()[0]
    ticks = [tick for tick in TICKS if low <= tick <= right]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("time of attention / time of cuDNN, 8,192 tokens")
    better = " (lower is better)" if panel.metric in LOWER_IS_BETTER else ""
    unit = metric_title(panel.metric) if is_perplexity else "accuracy or F1 (%)"
    axes.set_ylabel(f"{unit}{better}")
    axes.set_title(panel.title, loc="left", fontweight="bold")
    label_lines(axes, values, lines, strong=OURS)


def _is_ours(method: str) -> bool:
    return method.startswith((OURS, TWO_SIDED))
