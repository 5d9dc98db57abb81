"""Figures 3 to 6 of the attention-guiding paper, and one of its Table 2."""

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from distattn_jax import plot
from experiments.papers.attention_guiding import models, sweeps
from experiments.papers.attention_guiding.head_components import head_components
from experiments.papers.attention_guiding.published import METRICS, TABLE_2, table
from experiments.papers.attention_guiding.sweep_figure import sweep
from experiments.papers.bars import grouped_bars
from experiments.papers.formatting import ORDER, PERCENT, spelled, title
from experiments.papers.report_sections import Picture
from experiments.papers.results import of_seeds

DARKEST = 0.05  # share of all weights, those on the first token mostly, that would hide the others


def pictures(kept: Mapping[str, Any]) -> Iterator[Picture]:
    """What there are results for."""
    compared = {name: kept[name] for name in models.CALLED if _gains(kept[name])}
    if compared:
        caption = "Table 2 as a picture: gains over no guide, seed by seed, of "
        caption += models.names(compared.values())
        caption += "; the paper's are of BERT" if compared.keys() & METRICS.keys() else ""
        yield "guiding_table_2", caption, functools.partial(_guides, compared)
    on = f"MultiNLI, {models.names([kept['multinli']])}"
    layers = sweeps.layered(kept)
    if any(layers.values()):
        caption = f"Figure 3: one layer is guided; {on}"
        yield "guiding_figure_3", caption, functools.partial(_layers, kept, layers)
    guided = (kept["multinli"] or {}).get("guided")
    if guided:
        caption = (
            "Figure 4: the mean map of all heads, of one pair and the model with the best "
            f"validation of each guide; one weight in twenty is darker than the scale; {on}"
        )
        yield "guiding_figure_4", caption, functools.partial(_maps, guided)
        caption = (
            "Figure 5: the heads of these models as points, by the principal components of their "
            "maps of this pair"
        )
        yield "guiding_figure_5", caption, functools.partial(_components, guided)
    shares = sweeps.shared(kept)
    if any(set(by_share) - {100} for by_share in shares.values()):
        caption = f"Figure 6: a part of the training set; {on}"
        yield "guiding_figure_6", caption, functools.partial(_shares, shares)


def _guides(compared: Mapping[str, Any]) -> Figure:
    """Points gained by every guide, and the paper's gains with BERT."""
    figures: dict[str, dict[str, np.ndarray]] = {}
    paper: dict[str, dict[str, tuple[float, None]]] = {}
    for name, content in compared.items():
        found, criterion = _gains(content), _criterion(content)
        unit = " (points)" if criterion in PERCENT else ""
        panel = f"{models.CALLED[name]}: gain in {spelled(criterion, unit=False)}{unit}"
        figures[panel], paper[panel] = found, {}
        published = table(TABLE_2, name)
        if criterion in published["none"]:
            none = float(published["none"][criterion])
            for method in found:
                figure = published.get(method, {}).get(criterion)
                if figure is not None:
                    paper[panel][method] = (float(figure.rstrip("*")) - none, None)
    labels = {method: title(method) for of in figures.values() for method in of}
    return grouped_bars(figures, labels=labels, paper=paper, from_zero=True, columns=2)


def _gains(content: Mapping[str, Any] | None) -> dict[str, np.ndarray]:
    """Guide -> its figure minus that without a guide, in points, for every seed both have."""
    runs = (content or {}).get("runs", {})
    if "none" not in runs:
        return {}
    found = {}
    for method in ORDER:
        if method in runs and method != "none":
            gained = _differences(runs[method]["result"], runs["none"]["result"])
            if gained.size:
                found[method] = gained
    return found


def _layers(kept: Mapping[str, Any], layers: sweeps.Results) -> Figure:
    figures = {
        title(guide): {guide: {layer: _values(result) for layer, result in by_layer.items()}}
        if by_layer
        else {}
        for guide, by_layer in layers.items()
    }
    none = sweeps.unguided(kept)
    return sweep(
        figures,
        places=list(sweeps.layers_of(kept)),
        xlabel="the layer that is guided",
        ylabel=f"test {spelled(_of(layers))}",
        baseline=None if none is None else ("no guide ± standard deviation", _values(none)),
        labels={guide: title(guide) for guide in layers},
    )


def _shares(shares: sweeps.Results) -> Figure:
    """The figures as they are, and what they are above those without a guide."""
    criterion = _of(shares)
    whole = {g: {s: _values(r) for s, r in by.items()} for g, by in shares.items() if by}
    none = shares["none"]
    gained = {
        guide: {s: _differences(r, none[s]) for s, r in by.items() if s in none}
        for guide, by in shares.items()
        if by and guide != "none"
    }
    gains = "minus no guide, seed by seed"
    panels = {spelled(criterion, unit=False): whole, gains: gained}
    labels = (f"test {spelled(criterion)}", "points")
    return sweep(
        panels,
        places=list(sweeps.SHARES),
        xlabel="share of the training set (%)",
        ylabel=dict(zip(panels, labels, strict=True)),
        differences=[gains],
        labels={guide: title(guide) for guide in shares},
    )


def _maps(guided: Mapping[str, Any]) -> Figure:
    maps = {title(method): np.asarray(weights) for method, weights in guided["maps"].items()}
    every = np.concatenate([weights.reshape(-1) for weights in maps.values()])
    darkest = float(np.quantile(every, 1 - DARKEST))
    return plot.attention_maps(maps, guided["tokens"], columns=2, darkest=darkest)


def _components(guided: Mapping[str, Any]) -> Figure:
    points = {title(method): np.asarray(heads) for method, heads in guided["points"].items()}
    return head_components(points, explained=guided["explained"])


def _values(result: Any) -> np.ndarray:
    criterion = result["criterion"]
    scale = 100 if criterion in PERCENT else 1
    return scale * np.asarray(list(of_seeds(result, "test", criterion).values()))


def _differences(result: Any, none: Any) -> np.ndarray:
    """In points, for every seed that both have."""
    criterion = result["criterion"]
    first, second = (of_seeds(one, "test", criterion) for one in (result, none))
    scale = 100 if criterion in PERCENT else 1
    return scale * np.asarray([first[seed] - second[seed] for seed in first if seed in second])


def _criterion(content: Mapping[str, Any]) -> str:
    return next(run["result"]["criterion"] for run in content["runs"].values())


def _of(results: sweeps.Results) -> str:
    return next(result["criterion"] for by in results.values() for result in by.values())
