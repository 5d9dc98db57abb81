"""Figures 1 to 8 of the DA-Transformer paper, and figures of the attention at each distance."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Array
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from distattn_jax import plot
from distattn_jax.plot import style
from experiments.papers.da_transformer.settings import ADJUSTMENTS, MAPPINGS, OURS, ROWS
from experiments.papers.figures import grouped_bars
from experiments.papers.formatting import PERCENT_METRICS, method_title, metric_title
from experiments.papers.page import Pictures, read_published
from experiments.papers.results import Results

# Panels of Figures 4 and 5: experiment -> title, two metrics.
PANELS = {
    "ag": ("AG's News", "accuracy", "macro_f"),
    "amazon": ("Amazon", "accuracy", "macro_f"),
    "mind": ("MIND", "auc", "ndcg@10"),
}


def list_pictures(results: Results) -> Pictures:
    """Return a dict from file name to a function that draws the figure.

    Figures without stored results are left out.
    """
    found: Pictures = {
        "figure_1": functools.partial(plot.mapping_curves, [-2, -1, 0, 1, 2]),
        "figure_2": functools.partial(plot.coefficient_matrices, [1, -1], [-1, 1], length=20),
    }
    ratings = {metric_title(metric): ("amazon_rating", metric) for metric in ("rmse", "mae")}
    forms = {
        f"{title}, {metric_title(metric)}": (experiment, metric)
        for experiment, (title, *metrics) in PANELS.items()
        for metric in metrics
    }
    for name, panels, methods, options in (
        ("figure_3", ratings, ROWS, {"lower_is_better": tuple(ratings)}),
        ("figure_4", forms, (*MAPPINGS, OURS), {"columns": 2}),
        ("figure_5", forms, (*ADJUSTMENTS, OURS), {"columns": 2}),
    ):
        values, published = _select_bars(results, panels, methods)
        if any(values.values()):
            labels = {method: method_title(method) for method in methods}
            found[name] = functools.partial(
                grouped_bars, values, labels=labels, published=published, **options
            )
    for name, draw, experiment, part in (
        ("figure_6", _draw_heads, "ag", "heads"),
        ("figure_7", _draw_heads, "mind", "heads"),
        ("figure_7_made_up", _draw_heads, "mind_made_up", "heads"),
        ("figure_8", _draw_maps, "ag", "attention"),
        ("distances_ag", _draw_profile, "ag", "distances"),
        ("distances_sst", _draw_profile, "sst", "distances"),
    ):
        if selected := results.part(experiment, part):
            found[name] = functools.partial(draw, selected)
    return found


def _select_bars(
    results: Results, panels: Mapping[str, tuple[str, str]], methods: Sequence[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return our values and the published numbers, for the bars of a figure.

    Both results are nested dicts: `result[panel title][method]`. A panel is empty if no method
    except DA-Transformer was run.

    Args:
      results: Stored results of all experiments.
      panels: Dict from panel title to (experiment, metric).
      methods: Methods to compare.
    """
    values: dict[str, dict[str, np.ndarray]] = {}
    published: dict[str, dict[str, tuple[float, float]]] = {}
    printed = read_published("da_transformer")
    for panel, (experiment, metric) in panels.items():
        frame = results.scores(experiment, metric) * (100 if metric in PERCENT_METRICS else 1)
        found = {m: frame[m].dropna().to_numpy() for m in methods if m in frame}
        values[panel] = found if set(found) - {OURS} else {}
        rows = printed.get(experiment, {})
        published[panel] = {m: _parse_score(rows[m][metric]) for m in values[panel] if m in rows}
    return values, published


def _draw_heads(heads: Mapping[str, Any]) -> Figure:
    """Draw the distance weight w and the sigmoid shape v of all heads.

    As in the paper (footnote 6), w and v are sorted separately. `heads` is the entry "heads" of the
    result of `collect_heads`.
    """
    weight, shape = (
        {level: np.asarray(found[part]) for level, found in heads.items()}
        for part in ("weight", "shape")
    )
    return plot.head_parameters(weight, shape, paired=False)


def _draw_maps(attention: Mapping[str, Any]) -> Figure:
    """Draw attention maps: first of vanilla heads, then of distance-aware heads.

    Local heads (distance weight w < 0) come before global heads (w > 0). `attention` is the entry
    "attention" of the result of `collect_heads`.
    """
    maps, tokens = {}, []
    for method in ("vanilla", OURS):
        if method in attention:
            found = attention[method]
            tokens = found["tokens"]
            weights = found.get("weight", [None] * len(found["heads"]))
            for head, weight, one_map in zip(found["heads"], weights, found["maps"], strict=True):
                w = "" if weight is None else f", w = {weight:.2g}".replace("-", "\N{MINUS SIGN}")
                maps[f"{method_title(method)}\nhead {head + 1}{w}"] = np.asarray(one_map)
    return plot.attention_maps(maps, tokens, columns=4)


def _draw_profile(profiles: Mapping[str, Any]) -> Figure:
    """Draw the share of attention at each distance, for all methods in `profiles`.

    `profiles` is the entry "distances" of the result of `collect_heads`.
    """
    heads = {method: np.asarray(found["heads"]) for method, found in profiles.items()}
    weights = {OURS: np.asarray(profiles[OURS]["weight"])} if OURS in profiles else {}
    uniform = np.asarray(next(iter(profiles.values()))["uniform"])
    labels = {method: method_title(method) for method in heads}
    return distance_profile(heads, uniform=uniform, weights=weights, labels=labels)


def _parse_score(printed: str) -> tuple[float, float]:
    """Return mean and standard deviation of a printed number such as "93.01 ± 0.13"."""
    mean, spread = printed.split("±")
    return float(mean), float(spread)


def distance_profile(
    profiles: Mapping[str, np.ndarray | Array],
    *,
    uniform: np.ndarray | Array,
    weights: Mapping[str, np.ndarray | Array] | None = None,
    labels: Mapping[str, str] | None = None,
) -> Figure:
    """Plot the share of attention at each distance |i - j|, with a logarithmic vertical axis.

    Each distance-aware head has its own line: blue for a distance weight w < 0, orange for w > 0,
    darker for larger |w|. A method without distance weights has a single line, the mean over heads.
    The lines end at the largest distance in the texts.

    Args:
      profiles: For each method, the shares of attention at distances 0 to K - 1, averaged over
        queries and texts, shape (N heads, K).
      uniform: Shares of attention at the same distances if all keys had equal weights, shape (K,).
      weights: For each distance-aware method, the distance weights w of its heads, shape (N,).
      labels: Dict from method to its text in the legend. A method that is not in this dict appears
        under its own name.
    """
    weights, labels = weights or {}, labels or {}
    if not profiles:
        raise ValueError("profiles must hold at least one method; got none.")
    if any(method not in profiles for method in weights):
        raise ValueError(f"weights must be of methods in {list(profiles)}; got {list(weights)}.")
    uniform = _check_shares("uniform", uniform, ("K",))
    count = np.flatnonzero(uniform)[-1] + 1  # No text has pairs of tokens beyond.
    distances = np.arange(count)
    colours = style.method_colours(profiles)
    handles: dict[str, Line2D] = {}
    with style.use_style():
        figure, (axes,) = style.make_panels(1, 1, width=6.4, height=3.2)
        for method, profile in profiles.items():
            heads = _check_shares(f"profiles[{method!r}]", profile, ("N", len(uniform)))[:, :count]
            label = labels.get(method, method.replace("_", " "))
            if method not in weights:
                mean = heads.mean(0)
                line = axes.plot(distances, mean, "--", color=colours[method], zorder=3)[0]
                handles[f"{label},\nmean of {_count_heads(len(heads))}"] = line
                continue
            weight = style.check_array(f"weights[{method!r}]", weights[method], (len(heads),))
            lines = [
                axes.plot(distances, shares, color=colour, linewidth=1.1)[0]
                for shares, colour in zip(heads, style.head_colours(weight), strict=True)
            ]
            for kind, chosen in (("local ($w<0$)", weight < 0), ("global ($w>0$)", weight >= 0)):
                if chosen.any():
                    darkest = np.argmax(np.where(chosen, np.abs(weight), -1))
                    handles[f"{label},\n{kind}, {_count_heads(chosen.sum())}"] = lines[darkest]
        handles["uniform attention"] = axes.plot(
            distances, uniform[:count], ":", color=style.GREY, zorder=3
        )[0]
        axes.set(xlabel="distance $|i-j|$", ylabel="share of attention", yscale="log")
        axes.set_xlim(0, max(len(distances) - 1, 1))
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        figure.legend(
            list(handles.values()),
            list(handles),
            loc="outside right center",
            labelspacing=0.8,
            title="darker: larger $|w|$" if weights else None,
            title_fontsize=8,
        )
        return style.finish_layout(figure)


def _check_shares(name: str, array: np.ndarray | Array, shape: tuple[str | int, ...]) -> np.ndarray:
    """Return an array of shares of attention as float64.

    Raise a ValueError if the array has another shape than `shape`, has negative values, or is all
    0. `name` is the name of the array in the error message.
    """
    shares = style.check_array(name, array, shape)
    if not (shares.min() >= 0 and shares.max() > 0):
        span = f"{shares.min():g} to {shares.max():g}"
        raise ValueError(f"{name} must be shares, none below 0 and not all 0; got {span}.")
    return shares


def _count_heads(count: int | np.integer) -> str:
    """Format a number of heads as "1 head" or "2 heads"."""
    return f"{count} head{'' if count == 1 else 's'}"
