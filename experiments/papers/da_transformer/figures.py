"""Figures 1 to 8 of the DA-Transformer paper, and figures of the attention at each distance."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from distattn_jax import plot
from distattn_jax.train.results import values_by_seed
from experiments.papers.bars import grouped_bars
from experiments.papers.da_transformer.distance_profile import distance_profile
from experiments.papers.da_transformer.published import SCORES
from experiments.papers.da_transformer.settings import ADJUSTMENTS, DATA_SETS, MAPPINGS, OURS, ROWS
from experiments.papers.formatting import PERCENT_METRICS, method_title, metric_title
from experiments.papers.pictures import Picture

# Panels of Figures 4 and 5: experiment -> title, two metrics.
PANELS = {
    "ag": ("AG's News", "accuracy", "macro_f"),
    "amazon": ("Amazon", "accuracy", "macro_f"),
    "mind": ("MIND", "auc", "ndcg@10"),
}


def list_pictures(contents: Mapping[str, Any]) -> Iterator[Picture]:
    """Yield every figure for which results are stored.

    Args:
      contents: Stored results by experiment. The value is None if the experiment was not run.
    """
    curves = functools.partial(plot.mapping_curves, [-2, -1, 0, 1, 2])
    yield Picture("figure_1", "Figure 1: the learnable sigmoid", curves)
    matrices = functools.partial(plot.coefficient_matrices, [1, -1], [-1, 1], length=20)
    yield Picture("figure_2", "Figure 2: coefficients of four heads", matrices)
    yield from _list_bars(contents)
    for name, caption, experiment in (
        ("figure_6", "Figure 6: w and v of all heads, AG's News", "ag"),
        ("figure_7", "Figure 7: w and v of all heads, MIND", "mind"),
        ("figure_7_made_up", "Instead of Figure 7: w and v, artificial log", "mind_made_up"),
    ):
        heads = (contents[experiment] or {}).get("heads")
        if heads:
            yield Picture(name, caption, functools.partial(_draw_heads, heads))
    attention = (contents["ag"] or {}).get("attention")
    if attention:
        draw = functools.partial(_draw_maps, attention)
        yield Picture("figure_8", "Figure 8: attention maps of one sentence", draw)
    for experiment in ("ag", "sst"):
        profiles = (contents[experiment] or {}).get("distances")
        if profiles:
            caption = f"Attention by distance: {DATA_SETS[experiment]}"
            draw = functools.partial(_draw_profile, profiles)
            yield Picture(f"distances_{experiment}", caption, draw)


def _list_bars(contents: Mapping[str, Any]) -> Iterator[Picture]:
    """Yield Figures 3, 4 and 5. Figures without results are left out."""
    if contents["amazon_rating"] is not None:
        panels = {metric_title(metric): ("amazon_rating", metric) for metric in ("rmse", "mae")}
        draw = functools.partial(_draw_bars, contents, panels, ROWS, lower_is_better=tuple(panels))
        yield Picture("figure_3", "Figure 3: ratings as numbers", draw)
    panels = {
        f"{title}, {metric_title(metric)}": (experiment, metric)
        for experiment, (title, *metrics) in PANELS.items()
        for metric in metrics
    }
    for name, caption, methods in (
        ("figure_4", "Figure 4: mappings", MAPPINGS),
        ("figure_5", "Figure 5: adjustments", ADJUSTMENTS),
    ):
        if any(_select_runs(contents, experiment, methods) for experiment in PANELS):
            draw = functools.partial(_draw_bars, contents, panels, (*methods, OURS), columns=2)
            yield Picture(name, caption, draw)


def _draw_bars(
    contents: Mapping[str, Any],
    panels: Mapping[str, tuple[str, str]],
    methods: Sequence[str],
    **options: Any,
) -> Figure:
    """Draw a bar for our result with each method, and mark the published results.

    Args:
      contents: Stored results by experiment. The value is None if the experiment was not run.
      panels: (experiment, metric) by panel title. A panel without results is marked "not run".
      methods: Methods to compare.
      **options: Further arguments of `grouped_bars`.
    """
    values: dict[str, dict[str, np.ndarray]] = {}
    published: dict[str, dict[str, tuple[float, float]]] = {}
    for panel, (experiment, metric) in panels.items():
        scale = 100 if metric in PERCENT_METRICS else 1
        values[panel] = {
            method: scale * np.asarray(list(values_by_seed(run["result"], "test", metric).values()))
            for method, run in _select_runs(contents, experiment, methods).items()
        }
        scores = SCORES.get(experiment, {})
        published[panel] = {
            method: _parse_score(scores[method][metric])
            for method in values[panel]
            if method in scores
        }
    labels = {method: method_title(method) for method in methods}
    return grouped_bars(values, labels=labels, published=published, **options)


def _select_runs(
    contents: Mapping[str, Any], experiment: str, methods: Sequence[str]
) -> dict[str, Any]:
    """Return the stored runs of `methods` by method. Methods without a run are omitted.

    Return {} if no method other than DA-Transformer was run.
    """
    runs = (contents[experiment] or {}).get("runs", {})
    found = {method: runs[method] for method in methods if method in runs}
    return found if set(found) - {OURS} else {}


def _draw_heads(heads: Mapping[str, Any]) -> Figure:
    """Draw the distance weight w and the sigmoid shape v of all heads.

    As in the paper (footnote 6), w and v are sorted separately.
    """
    weight, shape = (
        {level: np.asarray(found[part]) for level, found in heads.items()}
        for part in ("weight", "shape")
    )
    return plot.head_parameters(weight, shape, paired=False)


def _draw_maps(attention: Mapping[str, Any]) -> Figure:
    """Draw attention maps: first of vanilla heads, then of distance-aware heads.

    Local heads (distance weight w < 0) come before global heads (w > 0).
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
    """Draw the share of attention at each distance, for all methods in `profiles`."""
    heads = {method: np.asarray(found["heads"]) for method, found in profiles.items()}
    weights = {OURS: np.asarray(profiles[OURS]["weight"])} if OURS in profiles else {}
    uniform = np.asarray(next(iter(profiles.values()))["uniform"])
    labels = {method: method_title(method) for method in heads}
    return distance_profile(heads, uniform=uniform, weights=weights, labels=labels)


def _parse_score(printed: str) -> tuple[float, float]:
    """Return mean and standard deviation of a printed number such as "93.01 ± 0.13"."""
    mean, spread = printed.split("±")
    return float(mean), float(spread)
