"""Figures 1 to 8 of the DA-Transformer paper, and one of how far heads look."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from distattn_jax import plot
from experiments.da import ADJUSTMENTS, MAPPINGS, OURS, ROWS
from experiments.papers.bars import grouped_bars
from experiments.papers.da_transformer.distance_profile import distance_profile
from experiments.papers.da_transformer.published import FIGURES
from experiments.papers.formatting import PERCENT, spelled, title
from experiments.papers.report_sections import Picture
from experiments.papers.results import of_seeds

PANELS = {
    "ag": ("AG's News", "accuracy", "macro_f"),
    "amazon": ("Amazon", "accuracy", "macro_f"),
    "mind": ("MIND", "auc", "ndcg@10"),
}  # of Figures 4 and 5


def pictures(kept: Mapping[str, Any]) -> Iterator[Picture]:
    """What there are results for."""
    curves = functools.partial(plot.mapping_curves, [-2, -1, 0, 1, 2])
    yield "figure_1", "Figure 1: the learnable sigmoid", curves
    matrices = functools.partial(plot.coefficient_matrices, [1, -1], [-1, 1], length=20)
    yield "figure_2", "Figure 2: coefficients of four heads", matrices
    if kept["amazon_rating"] is not None:
        panels = {spelled(metric): ("amazon_rating", metric) for metric in ("rmse", "mae")}
        bars = functools.partial(_bars, kept, panels, ROWS, lower_is_better=tuple(panels))
        yield "figure_3", "Figure 3: ratings as numbers", bars
    forms = {
        f"{shown}, {spelled(metric)}": (name, metric)
        for name, (shown, *metrics) in PANELS.items()
        for metric in metrics
    }
    for name, caption, methods in (
        ("figure_4", "Figure 4: mappings", MAPPINGS),
        ("figure_5", "Figure 5: adjustments", ADJUSTMENTS),
    ):
        if any(_runs(kept, experiment, methods) for experiment in PANELS):
            bars = functools.partial(_bars, kept, forms, (*methods, OURS), columns=2)
            yield name, caption, bars
    for name, caption, experiment in (
        ("figure_6", "Figure 6: w and v, AG's News", "ag"),
        ("figure_7", "Figure 7: w and v, MIND", "mind"),
        ("figure_7_made_up", "In place of Figure 7: w and v, a made-up log", "mind_made_up"),
    ):
        heads = (kept[experiment] or {}).get("heads")
        if heads:
            yield name, caption, functools.partial(_heads, heads)
    seen = (kept["ag"] or {}).get("attention")
    if seen:
        caption = "Figure 8: attention of a sentence"
        yield "figure_8", caption, functools.partial(_maps, seen)
    for experiment in ("ag", "sst"):
        profiles = (kept[experiment] or {}).get("distances")
        if profiles:
            caption = f"How far heads look: {experiment}"
            yield f"distances_{experiment}", caption, functools.partial(_profile, profiles)


def _bars(
    kept: Mapping[str, Any],
    panels: Mapping[str, tuple[str, str]],
    methods: Sequence[str],
    **arguments: Any,
) -> Figure:
    """A panel for each (experiment, metric); one without any of the methods was not run."""
    figures: dict[str, dict[str, np.ndarray]] = {}
    paper: dict[str, dict[str, tuple[float, float]]] = {}
    for panel, (experiment, metric) in panels.items():
        scale = 100 if metric in PERCENT else 1
        figures[panel] = {
            method: scale * np.asarray(list(of_seeds(run["result"], "test", metric).values()))
            for method, run in _runs(kept, experiment, methods).items()
        }
        published = FIGURES.get(experiment, {})
        paper[panel] = {
            method: _numbers(published[method][metric])
            for method in figures[panel]
            if method in published
        }
    labels = {method: title(method) for method in methods}
    return grouped_bars(figures, labels=labels, paper=paper, **arguments)


def _runs(kept: Mapping[str, Any], experiment: str, methods: Sequence[str]) -> dict[str, Any]:
    """The runs of these methods, where there are any but the paper's own form."""
    runs = (kept[experiment] or {}).get("runs", {})
    found = {method: runs[method] for method in methods if method in runs}
    return found if set(found) - {OURS} else {}


def _heads(heads: Mapping[str, Any]) -> Figure:
    """w and v, each in its own order, as the paper's footnote 6 says."""
    weight, shape = (
        {level: np.asarray(found[part]) for level, found in heads.items()}
        for part in ("weight", "shape")
    )
    return plot.head_parameters(weight, shape, paired=False)


def _maps(seen: Mapping[str, Any]) -> Figure:
    """The vanilla heads above, distance-aware ones below, local before global."""
    maps, tokens = {}, []
    for method in ("vanilla", OURS):
        if method in seen:
            found = seen[method]
            tokens = found["tokens"]
            weights = found.get("weight", [None] * len(found["heads"]))
            for head, weight, weighed in zip(found["heads"], weights, found["maps"], strict=True):
                w = "" if weight is None else f", w = {weight:.2g}".replace("-", "\N{MINUS SIGN}")
                maps[f"{title(method)}\nhead {head + 1}{w}"] = np.asarray(weighed)
    return plot.attention_maps(maps, tokens, columns=4)


def _profile(profiles: Mapping[str, Any]) -> Figure:
    heads = {method: np.asarray(found["heads"]) for method, found in profiles.items()}
    weights = {OURS: np.asarray(profiles[OURS]["weight"])} if OURS in profiles else {}
    uniform = np.asarray(next(iter(profiles.values()))["uniform"])
    labels = {method: title(method) for method in heads}
    return distance_profile(heads, uniform=uniform, weights=weights, labels=labels)


def _numbers(published: str) -> tuple[float, float]:
    """The mean and the ± of a figure as it is printed."""
    mean, spread = published.split("±")
    return float(mean), float(spread)
