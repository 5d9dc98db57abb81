"""Report on relative positions (Shaw et al. 2018): tables, findings and figures.

A cell with our results contains BLEU by sacrebleu on the test set: mean ± standard deviation over
seeds. The templates show it beside the published numbers.
"""

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from distattn_jax import plot
from distattn_jax.plot.style import GREY, add_legend_above, finish_layout, make_panels, use_style
from distattn_jax.train.results import select_members
from experiments.papers import tables
from experiments.papers.figures import draw_alignment, draw_relations
from experiments.papers.formatting import (
    EMPTY,
    NOT_RUN,
    NOT_RUN_SENTENCE,
    format_mean,
    format_value,
    markdown_table,
    method_title,
    metric_title,
)
from experiments.papers.page import Picture, Report
from experiments.papers.results import Results, split_setting
from experiments.papers.shaw.settings import (
    DATA_SETS,
    DISTANCES,
    POSITIONS,
    RELATIVE,
    SIZES,
    TINY,
    experiment_name,
    list_experiments,
)
from experiments.papers.stored_results import SEARCHED, find_option

METRIC, LOWERCASE = "bleu", "bleu_lowercase"
METRICS = (METRIC, LOWERCASE, "chrf")
PLATEAU = 2  # The paper sees little variation from this clipping distance on.
# Table 2 of the paper: BLEU by clipping distance k, EN-DE, base model.
TABLE_2 = {0: 12.5, 1: 25.5, 2: 25.8, 4: 25.9, 16: 25.8, 64: 25.9, 256: 25.8}
COMPARISONS = {
    "Relative against absolute positions": (RELATIVE, "vanilla"),
    "Relative and absolute against relative positions": ("relative_and_absolute", RELATIVE),
    "Vectors of keys and values against keys only": (RELATIVE, "relative_position_keys"),
    "Vectors of keys and values against values only": (RELATIVE, "relative_position_values"),
}


def outcomes(results: Results) -> str:
    """Return the findings of all comparisons of positions."""
    frames = {
        f"{title} {size}": results.scores(experiment_name(data, size), METRIC)
        for data, title in DATA_SETS.items()
        for size in SIZES
    }
    compared = {
        title: {name: tables.compare(one, METRIC, *methods) for name, one in frames.items()}
        for title, methods in COMPARISONS.items()
    }
    return tables.outcomes_table(compared)


def model(results: Results, experiment: str) -> str:
    """Return the size, layers and width of a model, such as "small (3 + 3 x 256)"."""
    size = experiment.split("_")[1]
    config: Mapping[str, Any] = next(
        (run["config"] for run in results.runs(experiment).values()), {}
    )
    layers, features = (find_option(config, f"model.{name}") for name in ("layers", "features"))
    return size if layers is None else f"{size} ({layers} + {layers} x {features})"


def plateau(results: Results, data: str) -> str:
    """Return the range of mean BLEU over the clipping distances of the plateau."""
    frames = {k: _distance_values(results, data, k) for k in DISTANCES if k >= PLATEAU}
    means = {k: float(np.mean(values)) for k, values in frames.items() if values}
    if not means:
        return NOT_RUN
    ends = (min(means, key=means.__getitem__), max(means, key=means.__getitem__))
    return " to ".join(f"{format_value(METRIC, means[k])} (k = {k})" for k in ends)


def best_model(results: Results) -> str:
    """Return BLEU of our model on Multi30k with the lowest validation loss, and its name."""
    found = []
    for size in SIZES:
        name = experiment_name("multi30k", size)
        losses, cells = results.scores(name, "loss", "validation"), results.scores(name, METRIC)
        for method, positions in POSITIONS.items():
            if method in cells:
                cell = format_mean(METRIC, tables.by_seed(cells, method).values())
                found.append((losses[method].mean(), f"{cell} ({size}, {positions})"))
    return min(found)[1] if found else NOT_RUN


def best_tiny(results: Results) -> str:
    """Return BLEU of our model of lower-cased texts with the lowest validation loss."""
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
    """Return one row for each setting of our runs with the recipe of Wu et al. 2021.

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
    """Describe the learning rate and the dropout of a run with the recipe of Wu et al. 2021."""
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
    """Return the description of the translations of the test set, or {} without any."""
    return results.part(experiment, "runs", method, "translations", "test")


def messages(results: Results) -> str:
    """Return the messages from the preparation of each data set."""
    return tables.data_messages(
        results, {experiment_name(data, SIZES[0]): title for data, title in DATA_SETS.items()}
    )


def every_seed(results: Results) -> str:
    """Return a table with one row per trained model: validation loss and test scores."""
    rows = []
    for name in list_experiments():
        losses = results.scores(name, "loss", "validation")
        frames = {metric: results.scores(name, metric) for metric in METRICS}
        for method in losses:
            scores = {metric: tables.by_seed(frame, method) for metric, frame in frames.items()}
            for seed, loss in tables.by_seed(losses, method).items():
                cells = [
                    format_value(metric, values[seed]) if seed in values else EMPTY
                    for metric, values in scores.items()
                ]
                row = [name, method_title(method), str(seed), format_value("loss", loss)]
                rows.append([*row, *cells])
    header = ["experiment", "method", "seed", "validation loss", *map(metric_title, METRICS)]
    return markdown_table(header, rows) if rows else NOT_RUN_SENTENCE


def signatures(results: Results) -> str:
    """Return the signatures of sacrebleu, and the settings of the decoding, as a Markdown list."""
    found: dict[str, None] = {}
    for name in list_experiments():
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


def runs(results: Results) -> str:
    """Return device, versions, commit, steps and minutes of every run, searches first."""
    own = (*(experiment_name(data, size) for data in DATA_SETS for size in SIZES), *TINY)
    names = [name for name in results.stored if name.startswith(own)]
    searches = [name for name in names if name.endswith(SEARCHED)]
    return tables.provenance_table(results, dict.fromkeys([*searches, *names]))


# Figures.

SEED: dict[str, Any] = {
    "marker": "o",
    "markersize": 3,
    "markerfacecolor": "white",
    "markeredgecolor": plot.METHOD_COLOURS[RELATIVE],
    "markeredgewidth": 0.8,
    "linestyle": "none",
}
DASHED: dict[str, Any] = {"linewidth": 1, "linestyle": "--"}


def list_pictures(results: Results) -> Iterator[Picture]:
    """Yield every figure for which results are stored."""
    if any(_distance_values(results, data, k) for data in DATA_SETS for k in DISTANCES):
        draw = functools.partial(_draw_distances, results)
        yield Picture("shaw_distances", "Table 2: BLEU by clipping distance", draw)
    for data, title in DATA_SETS.items():
        experiment = experiment_name(data, SIZES[0])
        if alignment := results.part(experiment, "alignment"):
            caption = f"Attention from target to source words, {title}"
            draw = functools.partial(draw_alignment, alignment)
            yield Picture(f"shaw_attention_{data}", caption, draw)
        for level, found in results.part(experiment, "relations").items():
            for kind in ("norms", "similarities"):
                caption = f"Position vectors of the {level}, {kind}, {title}"
                draw = functools.partial(draw_relations, found, kind)
                yield Picture(f"shaw_{level}_{kind}_{data}", caption, draw)


def _draw_distances(results: Results) -> Figure:
    """Draw BLEU against the clipping distance k, one panel per data set, and the published BLEU."""
    colours = plot.METHOD_COLOURS
    found = {
        data: {k: v for k in DISTANCES if (v := _distance_values(results, data, k))}
        for data in DATA_SETS
    }
    run = {data: values for data, values in found.items() if values}
    with use_style():
        figure, grid = make_panels(1, len(run) + 1, width=2.6, height=2.4)
        for axes, (data, values) in zip(grid, run.items(), strict=False):
            places = [DISTANCES.index(k) for k in values]
            axes.plot(places, [np.mean(of) for of in values.values()], color=colours[RELATIVE])
            for place, of in zip(places, values.values(), strict=True):
                axes.plot([place] * len(of), of, **SEED)
            frame = results.scores(experiment_name(data, SIZES[0]), METRIC)
            for method in ("vanilla", "no_positions"):
                if method in frame:
                    axes.axhline(float(frame[method].mean()), color=colours[method], **DASHED)
            axes.set_title(DATA_SETS[data])
        grid[-1].plot(
            range(len(TABLE_2)), list(TABLE_2.values()), color=GREY, marker="D", markersize=3.5
        )
        grid[-1].set_title("WMT14 EN-DE, published")
        for axes in grid:
            axes.set(xlabel="clipping distance $k$", ylabel="BLEU")
            axes.set_ylim(bottom=0)
            axes.set_xticks(range(len(DISTANCES)), [str(k) for k in DISTANCES])
        handles = {
            "relative, mean": Line2D([], [], color=colours[RELATIVE]),
            "one seed": Line2D([], [], **SEED),
            "absolute": Line2D([], [], color=colours["vanilla"], **DASHED),
            "no positions": Line2D([], [], color=colours["no_positions"], **DASHED),
        }
        add_legend_above(figure, list(handles.values()), list(handles))
        return finish_layout(figure)


def _distance_values(results: Results, data: str, k: int) -> list[float]:
    """Return BLEU of every seed with a clipping distance, or [] if it was not run."""
    frame = results.scores(experiment_name(data, SIZES[0], k), METRIC)
    return list(tables.by_seed(frame, RELATIVE).values())


REPORT = Report(
    paper="shaw",
    folder="shaw",
    experiments=tuple(list_experiments()),
    parts=(
        *(outcomes, model, plateau, best_model, best_tiny, tiny_rows, decoding),
        *(messages, every_seed, signatures, runs),
    ),
    list_pictures=list_pictures,
)
