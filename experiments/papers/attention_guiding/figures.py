"""Figures 3 to 6 of the attention-guiding paper, and its Table 2 as a figure."""

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from distattn_jax import plot
from distattn_jax.train.results import values_by_seed
from experiments.papers.attention_guiding import models, sweeps
from experiments.papers.attention_guiding.head_components import head_components
from experiments.papers.attention_guiding.published import METRICS, TABLE_2, select_data_set
from experiments.papers.attention_guiding.sweep_figure import sweep_figure
from experiments.papers.bars import grouped_bars
from experiments.papers.formatting import (
    METHOD_ORDER,
    PERCENT_METRICS,
    method_title,
    metric_title,
)
from experiments.papers.pictures import Picture

# Share of the weights beyond the colour scale: the first token would hide all others.
BEYOND_SCALE = 0.05


def list_pictures(contents: Mapping[str, Any]) -> Iterator[Picture]:
    """Yield every figure for which results are stored.

    Args:
      contents: Stored results by experiment. The value is None if the experiment was not run.
    """
    compared = {name: contents[name] for name in models.DATA_TITLES if _guide_gains(contents[name])}
    if compared:
        caption = "Table 2 as a figure: gain of every guide over no guide, paired by seed, with "
        caption += models.join_model_names(compared.values())
        caption += "; published gains are of BERT" if compared.keys() & METRICS.keys() else ""
        yield Picture("guiding_table_2", caption, functools.partial(_draw_gains, compared))
    suffix = f"MultiNLI, {models.join_model_names([contents['multinli']])}"
    layers = sweeps.group_by_layer(contents)
    if any(layers.values()):
        draw = functools.partial(_draw_layers, contents, layers)
        yield Picture("guiding_figure_3", f"Figure 3: one guided layer; {suffix}", draw)
    guided = (contents["multinli"] or {}).get("guided")
    if guided:
        caption = (
            "Figure 4: mean attention map over all heads, for one pair of texts and the best model "
            f"of each guide; {100 * BEYOND_SCALE:g} % of the weights exceed the scale; {suffix}"
        )
        yield Picture("guiding_figure_4", caption, functools.partial(_draw_maps, guided))
        caption = "Figure 5: heads of these models by the principal components of their maps"
        yield Picture("guiding_figure_5", caption, functools.partial(_draw_components, guided))
    shares = sweeps.group_by_share(contents)
    if any(set(by_share) - {100} for by_share in shares.values()):
        caption = f"Figure 6: part of the training set; {suffix}"
        yield Picture("guiding_figure_6", caption, functools.partial(_draw_shares, shares))


def _draw_gains(compared: Mapping[str, Any]) -> Figure:
    """Draw a bar for the gain of every guide, and the published gains for BERT.

    The gain is the main test metric with the guide minus the same metric without a guide.

    Args:
      compared: Stored results by data set. They must include the run without a guide and at least
        one run with a guide.
    """
    gains: dict[str, dict[str, np.ndarray]] = {}
    published: dict[str, dict[str, tuple[float, None]]] = {}
    for name, content in compared.items():
        found = _guide_gains(content)
        criterion = next(run["result"]["criterion"] for run in content["runs"].values())
        unit = " (points)" if criterion in PERCENT_METRICS else ""
        title = f"{models.DATA_TITLES[name]}: gain in {metric_title(criterion, unit=False)}{unit}"
        gains[title], published[title] = found, {}
        numbers = select_data_set(TABLE_2, name)
        if criterion in numbers["none"]:
            unguided = float(numbers["none"][criterion])
            for guide in found:
                number = numbers.get(guide, {}).get(criterion)
                if number is not None:
                    published[title][guide] = (float(number.rstrip("*")) - unguided, None)
    labels = {guide: method_title(guide) for panel in gains.values() for guide in panel}
    return grouped_bars(gains, labels=labels, published=published, from_zero=True, columns=2)


def _guide_gains(content: Mapping[str, Any] | None) -> dict[str, np.ndarray]:
    """Return, for each guide, the gains in the main test metric over the run without a guide.

    There is one gain for each seed that was run with and without the guide.
    """
    runs = (content or {}).get("runs", {})
    if "none" not in runs:
        return {}
    found = {}
    for guide in METHOD_ORDER:
        if guide in runs and guide != "none":
            gains = _subtract(runs[guide]["result"], runs["none"]["result"])
            if gains.size:
                found[guide] = gains
    return found


def _draw_layers(contents: Mapping[str, Any], layers: sweeps.Results) -> Figure:
    """Draw Figure 3: the main test metric against the guided layer, one panel per guide."""
    panels = {
        method_title(guide): {guide: {layer: _values(result) for layer, result in by_layer.items()}}
        if by_layer
        else {}
        for guide, by_layer in layers.items()
    }
    none = sweeps.find_unguided(contents)
    return sweep_figure(
        panels,
        option_values=list(sweeps.list_layers(contents)),
        xlabel="guided layer",
        ylabel=f"test {metric_title(_find_criterion(layers))}",
        baseline=None if none is None else ("no guide ± standard deviation", _values(none)),
        labels={guide: method_title(guide) for guide in layers},
    )


def _draw_shares(shares: sweeps.Results) -> Figure:
    """Draw Figure 6: test metric and gain of every guide against the share of the training set.

    The gain is the metric with the guide minus the metric without a guide.
    """
    criterion, none = _find_criterion(shares), shares["none"]
    values = {
        guide: {share: _values(result) for share, result in by_share.items()}
        for guide, by_share in shares.items()
        if by_share
    }
    gains = {
        guide: {
            share: _subtract(result, none[share])
            for share, result in by_share.items()
            if share in none
        }
        for guide, by_share in shares.items()
        if by_share and guide != "none"
    }
    gain_title = "minus no guide, paired by seed"
    panels = {metric_title(criterion, unit=False): values, gain_title: gains}
    return sweep_figure(
        panels,
        option_values=list(sweeps.SHARES),
        xlabel="share of the training set (%)",
        ylabel=dict(zip(panels, (f"test {metric_title(criterion)}", "points"), strict=True)),
        differences=[gain_title],
        labels={guide: method_title(guide) for guide in shares},
    )


def _draw_maps(guided: Mapping[str, Any]) -> Figure:
    """Draw Figure 4: for each guide, the attention map averaged over heads."""
    maps = {method_title(guide): np.asarray(weights) for guide, weights in guided["maps"].items()}
    every = np.concatenate([weights.reshape(-1) for weights in maps.values()])
    max_weight = float(np.quantile(every, 1 - BEYOND_SCALE))
    return plot.attention_maps(maps, guided["tokens"], columns=2, max_weight=max_weight)


def _draw_components(guided: Mapping[str, Any]) -> Figure:
    """Draw Figure 5: for each guide, one point per head at its first two principal components."""
    points = {method_title(guide): np.asarray(heads) for guide, heads in guided["points"].items()}
    return head_components(points, explained=guided["explained"])


def _values(result: Any) -> np.ndarray:
    """Return the main test metric of every seed, shape (seeds,).

    Metrics that are fractions, such as accuracy, are multiplied by 100.
    """
    criterion = result["criterion"]
    scale = 100 if criterion in PERCENT_METRICS else 1
    return scale * np.asarray(list(values_by_seed(result, "test", criterion).values()))


def _subtract(result: Any, none: Any) -> np.ndarray:
    """Return the main test metric with a guide minus the same metric without a guide.

    The array has one value for each seed that was run with and without the guide.

    Metrics that are fractions, such as accuracy, are multiplied by 100.
    """
    criterion = result["criterion"]
    first, second = (values_by_seed(one, "test", criterion) for one in (result, none))
    scale = 100 if criterion in PERCENT_METRICS else 1
    return scale * np.asarray([first[seed] - second[seed] for seed in first if seed in second])


def _find_criterion(results: sweeps.Results) -> str:
    """Return the name of the main metric, as stored in the first result."""
    return next(
        result["criterion"] for by_value in results.values() for result in by_value.values()
    )
