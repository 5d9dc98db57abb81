"""Report on relative positions (Shaw et al. 2018): tables, findings and figures.

A cell with our results contains BLEU by sacrebleu on the test set: mean ± standard deviation over
seeds. The templates show our results beside the published numbers.
"""

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from distattn_jax.train.results import select_members
from experiments.papers import formatting, tables
from experiments.papers.figures import draw_alignment, draw_relations, sweep_figure
from experiments.papers.formatting import EMPTY, NOT_RUN, format_mean, format_value, metric_title
from experiments.papers.page import Pictures, Report
from experiments.papers.results import Results, split_setting
from experiments.papers.shaw import settings
from experiments.papers.shaw.settings import RELATIVE, SIZES, TINY, experiment_name

METRIC, LOWERCASE = "bleu", "bleu_lowercase"
METRICS = (METRIC, LOWERCASE, "chrf")
PLATEAU = 2  # The paper sees little variation from this clipping distance on.
# Table 2 of the paper: BLEU by clipping distance k, EN-DE, base model.
TABLE_2 = {0: 12.5, 1: 25.5, 2: 25.8, 4: 25.9, 16: 25.8, 64: 25.9, 256: 25.8}


def model(results: Results, experiment: str) -> str:
    """Return the size, layers and width of a model, such as "small (3 + 3 x 256)"."""
    size = experiment.split("_")[1]
    config: Mapping[str, Any] = next(
        (run["config"] for run in results.runs(experiment).values()), {}
    )
    layers, features = (config.get(f"model.{name}") for name in ("layers", "features"))
    return size if layers is None else f"{size} ({layers} + {layers} x {features})"


def plateau(results: Results, data: str) -> str:
    """Return the lowest and the highest mean BLEU over clipping distances k >= PLATEAU.

    The result is a text such as "36.9 (k = 2) to 37.9 (k = 16)".
    """
    frames = {k: _distance_values(results, data, k) for k in settings.DISTANCES if k >= PLATEAU}
    means = {k: float(np.mean(values)) for k, values in frames.items() if values}
    if not means:
        return NOT_RUN
    ends = (min(means, key=means.__getitem__), max(means, key=means.__getitem__))
    return " to ".join(f"{format_value(METRIC, means[k])} (k = {k})" for k in ends)


def best_model(results: Results) -> str:
    """Return BLEU and name of our model with the lowest validation loss on Multi30k."""
    found = []
    for size in SIZES:
        name = experiment_name("multi30k", size)
        losses, cells = results.scores(name, "loss", "validation"), results.scores(name, METRIC)
        for method, positions in settings.POSITIONS.items():
            if method in cells:
                cell = format_mean(METRIC, tables.by_seed(cells, method).values())
                found.append((losses[method].mean(), f"{cell} ({size}, {positions})"))
    return min(found)[1] if found else NOT_RUN


def best_tiny(results: Results) -> str:
    """Return BLEU and name of our tiny model with the lowest validation loss.

    The tiny models have the recipe of Wu et al. 2021, and are trained on lower-cased texts.
    """
    found = []
    for name, place in TINY.items():
        losses, cells = (
            results.scores(name, metric, split)
            for metric, split in (("loss", "validation"), (LOWERCASE, "test"))
        )
        for method, run in results.runs(name).items():
            result = run["result"]
            about = _describe_tiny(result["members"][select_members(result)[0]]["setting"], place)
            cell = format_mean(LOWERCASE, tables.by_seed(cells, method).values())
            found.append((losses[method].mean(), f"{cell} (tiny, absolute, {about})"))
    return min(found)[1] if found else NOT_RUN


def tiny_rows(results: Results) -> str:
    """Return Markdown table rows of our runs with the recipe of Wu et al. 2021, one per setting.

    The texts were lower-cased before training, so that there is no BLEU of cased texts.
    """
    rows = []
    for name, place in TINY.items():
        groups = results.select(name, LOWERCASE).groupby(["method", "setting"], sort=False)
        for (method, setting), found in groups:
            about = _describe_tiny(split_setting(setting), place)
            cells = [
                *(f"ours, absolute, recipe of Wu et al., {about}", model(results, name), EMPTY),
                *(format_mean(LOWERCASE, found.value), decoding(results, name, method)),
            ]
            rows.append(f"| {' | '.join(cells)} |")
    return (
        "\n".join(rows) or f"| ours, recipe of Wu et al. | tiny | {EMPTY} | {NOT_RUN} | {EMPTY} |"
    )


def _describe_tiny(setting: Mapping[str, Any], place: str) -> str:
    """Describe the learning rate and the dropout of a run with the recipe of Wu et al. 2021.

    `place` says where dropout is applied.
    """
    return f"rate {setting['learning_rate']:g}, dropout {setting['dropout_rate']:g} {place}"


def decoding(results: Results, experiment: str, method: str) -> str:
    """Describe the decoding and scoring of a run, such as "sacrebleu, tokens 13a; beam 4"."""
    about = _translations(results, experiment, method)
    if not about:
        return EMPTY
    fields = dict(part.split(":") for part in about["signatures"][METRIC].split("|"))
    text = f"sacrebleu, tokens {fields['tok']}; beam {about['beam']}"
    return text + (f", mean of {about['average']} checkpoints" if about["average"] else "")


def _translations(results: Results, experiment: str, method: str) -> dict[str, Any]:
    """Return the stored description of the translations of the test set, or {} if there is none."""
    return results.part(experiment, "runs", method, "translations", "test")


def every_seed(results: Results) -> str:
    """Return a Markdown table with one row per trained model: validation loss and test scores."""
    rows = []
    for name in settings.list_experiments():
        losses = results.scores(name, "loss", "validation")
        frames = {metric: results.scores(name, metric) for metric in METRICS}
        for method in losses:
            scores = {metric: tables.by_seed(frame, method) for metric, frame in frames.items()}
            for seed, loss in tables.by_seed(losses, method).items():
                cells = [
                    format_value(metric, values[seed]) if seed in values else EMPTY
                    for metric, values in scores.items()
                ]
                row = [name, formatting.method_title(method), str(seed), format_value("loss", loss)]
                rows.append([*row, *cells])
    header = ["experiment", "method", "seed", "validation loss", *map(metric_title, METRICS)]
    return formatting.table_or_not_run(header, rows)


def signatures(results: Results) -> str:
    """Return the signatures of sacrebleu, and the settings of the decoding, as a Markdown list."""
    found: dict[str, None] = {}
    for name in settings.list_experiments():
        for method in results.runs(name):
            if about := _translations(results, name, method):
                for metric, signature in about.get("signatures", {}).items():
                    found[f"- {metric_title(metric)}: `{signature}`"] = None
                average = about["average"]
                checkpoints = f"mean of {average} checkpoints" if average else "best checkpoint"
                found[
                    f"- Decoding: beam {about['beam']}, length penalty {about['length_penalty']}, "
                    f"{checkpoints}"
                ] = None
    return "\n".join(found)


def list_pictures(results: Results) -> Pictures:
    """Return a dict from file name to a function that draws the figure.

    Figures without stored results are left out.
    """
    found: Pictures = {}
    if any(
        _distance_values(results, data, k)
        for data in settings.DATA_SETS
        for k in settings.DISTANCES
    ):
        found["shaw_distances"] = functools.partial(_draw_distances, results)
    for data in settings.DATA_SETS:
        experiment = experiment_name(data, SIZES[0])
        if alignment := results.part(experiment, "alignment"):
            found[f"shaw_attention_{data}"] = functools.partial(draw_alignment, alignment)
        for level, relations in results.part(experiment, "relations").items():
            for kind in ("norms", "similarities"):
                draw = functools.partial(draw_relations, relations, kind)
                found[f"shaw_{level}_{kind}_{data}"] = draw
    return found


def _draw_distances(results: Results) -> Figure:
    """Draw BLEU against the clipping distance k, one panel per data set, and the published BLEU."""
    panels: dict[str, Any] = {}
    baselines = {}
    for data, title in settings.DATA_SETS.items():
        values = {k: v for k in settings.DISTANCES if (v := _distance_values(results, data, k))}
        frame = results.scores(experiment_name(data, SIZES[0]), METRIC)
        if values:
            panels[title] = {RELATIVE: values}
            baselines[title] = {
                m: frame[m].dropna() for m in ("vanilla", "no_positions") if m in frame
            }
    panels["WMT14 EN-DE, published"] = {"published": {k: [bleu] for k, bleu in TABLE_2.items()}}
    return sweep_figure(
        panels,
        option_values=settings.DISTANCES,
        xlabel="clipping distance $k$",
        ylabel=dict.fromkeys(panels, "BLEU"),
        baselines=baselines,
        from_zero=True,
        labels={RELATIVE: "relative", "vanilla": "absolute"},
    )


def _distance_values(results: Results, data: str, k: int) -> list[float]:
    """Return the BLEU of every seed with clipping distance k, or [] if k was not run."""
    frame = results.scores(experiment_name(data, SIZES[0], k), METRIC)
    return list(tables.by_seed(frame, RELATIVE).values())


REPORT = Report(
    paper="shaw",
    folder="shaw",
    experiments=tuple(settings.list_experiments()),
    list_pictures=list_pictures,
)
