"""Plots of the runs of one experiment: learning curves, parameters of heads, attention maps.

Heads and attention maps are drawn only for finished runs with checkpoints. If a run trained a
hyperparameter grid, only the best point of the grid is drawn. Some plots show a single model. It is
the model with the best validation score among the seeds of this point.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from etils import epath
from matplotlib.figure import Figure

from distattn_jax import plot
from distattn_jax.attention import TwoSided
from distattn_jax.tasks import (
    LanguageModeling,
    SentenceAttention,
    Translation,
    distance_parameters,
    layer_variants,
    load_config,
    load_models,
    sentence_attention,
)
from distattn_jax.train.journal import Line, read
from distattn_jax.train.members import list_members
from distattn_jax.train.results import select_members
from distattn_jax.train.run import Run
from experiments.papers.da_transformer.head_statistics import load_trained
from experiments.papers.figures import draw_alignment, draw_relations
from experiments.papers.formatting import METHOD_ORDER, PERCENT_METRICS, method_title, metric_title
from experiments.papers.stored_results import AnyPath
from experiments.papers.translators import MAX_DISTANCE, align_sentence, collect_relations

Curve = tuple[np.ndarray, np.ndarray]  # steps (K,), values (members, K)


def draw_run_figures(
    paths: Iterable[AnyPath], directory: AnyPath, *, sentence: str | None = None
) -> list[epath.Path]:
    """Save all figures of an experiment in `directory/figures` and return the paths of the files.

    Args:
      paths: Folders of runs, finished or not, one per method.
      directory: Folder of the report. Its subfolder `figures` is created.
      sentence: Text whose attention maps are drawn. None draws no maps.
    """
    found = {load_config(path).methods[0]: Run(epath.Path(path)) for path in paths}
    runs = {method: found[method] for method in METHOD_ORDER if method in found}
    drawn = []
    for name, figure in _make_figures(runs, sentence):
        path = epath.Path(directory) / "figures" / f"{name}.png"
        plot.save(figure, path)
        drawn.append(path)
    return drawn


def _make_figures(runs: dict[str, Run], sentence: str | None) -> Iterator[tuple[str, Figure]]:
    """Yield (file name, figure) for each figure whose logs and checkpoints exist.

    `runs` is a dict from method to its run.
    """
    curves = plot_learning_curves(runs)
    if curves is not None:
        yield "learning_curves", curves
    finished = {m: run for m, run in runs.items() if run.result and run.checkpoints.exists()}
    sides = {m: run for m, run in finished.items() if m.startswith("two_sided")}
    trained = load_trained(finished, ("vanilla", "distance_aware", *sides))
    if "distance_aware" in trained:
        _, params, members, best = trained["distance_aware"]
        levels = distance_parameters(params)
        for level, (weight, shape) in levels.items():
            suffix = "" if len(levels) == 1 else f"_{level}"
            yield f"heads{suffix}", plot.head_parameters(weight[members], shape[members])
            furthest = max_sequence_length(runs["distance_aware"], level) - 1
            figures = plot_coefficients(weight[best], shape[best], max_distance=furthest)
            yield from ((f"{name}{suffix}", figure) for name, figure in figures)
    for method, run in sides.items():
        layers = layer_variants(trained[method].model)
        for level, variants in layers.items():
            suffix = f"_{method}" if len(layers) == 1 else f"_{method}_{level}"
            causal = level == "decoder" or isinstance(trained[method].task, LanguageModeling)
            furthest = max_sequence_length(run, level) - 1
            figures = plot_sides(variants, max_distance=furthest, causal=causal)
            yield from ((f"{name}{suffix}", figure) for name, figure in figures)
    mapped = {m: model for m, model in trained.items() if not m.startswith("two_sided_")}
    reads_texts = all(model.reads_single_texts for model in mapped.values())
    if sentence is not None and mapped and reads_texts:
        attention = {m: sentence_attention(model, sentence) for m, model in mapped.items()}
        tokens = next(iter(attention.values())).tokens
        yield "attention", plot.attention_maps(select_maps(attention), tokens)
    yield from _make_translator_figures(finished, sentence)


def _make_translator_figures(
    runs: dict[str, Run], sentence: str | None
) -> Iterator[tuple[str, Figure]]:
    """Yield (file name, figure) for one run with relative positions, or for one translator.

    The plots show the position vectors of the model for distances that occur in the data. If the
    model translates, another plot shows the attention between the words of a sentence and the words
    of its translation.

    Args:
      runs: Dict from method to its finished run with checkpoints.
      sentence: Source sentence. None draws no attention.
    """
    relative = [run for method, run in runs.items() if method.startswith("relative_")]
    others = [run for run in runs.values() if load_config(run.path).task == "translation"]
    if not relative and not others:
        return
    run = (relative or others)[0]
    trained = load_models(run.path, run.result or {})
    relations = collect_relations(trained, max_drawn_distance(run))
    for level, tables in relations.items():
        suffix = "" if len(relations) == 1 else f"_{level}"
        for field in ("norms", "similarities"):
            yield f"relation_{field}{suffix}", draw_relations(tables, field)
    if sentence is not None and isinstance(trained.task, Translation):
        yield "alignment", draw_alignment(align_sentence(trained, sentence)._asdict())


def max_sequence_length(run: Run, level: str) -> int:
    """Return the length of the longest input sequence of an encoder, after truncation.

    Args:
      run: Folder of the run. Older runs do not store the length. The result for such a run is the
        length to which texts are truncated, or 512 if they are not truncated.
      level: Name of the encoder, as in `distance_parameters`.
    """
    stored = run.data.get("longest_sequences", {})
    return stored.get(level) or getattr(load_config(run.path).data, "longest", 512)


def max_drawn_distance(run: Run) -> int:
    """Return the largest relative position whose vectors are drawn.

    Vectors of larger distances than those in the data were never trained.
    """
    longest = max(run.data.get("longest_sequences", {}).values(), default=MAX_DISTANCE + 1)
    return min(max(longest - 1, 1), MAX_DISTANCE)


def plot_learning_curves(runs: dict[str, Run]) -> Figure | None:
    """Plot training loss and main validation metric of all methods, or return None without logs.

    For a finished run, the plot shows the models with its best hyperparameters, one for each seed.
    For a run that is not finished, the plot shows all models.
    """
    lines = {method: read(run.path) for method, run in runs.items()}
    results = {method: run.result for method, run in runs.items()}
    titles = {"train/loss": "training loss"}
    criterion = _find_criterion([result for result in results.values() if result], lines.values())
    if criterion is not None:
        titles[f"validation/{criterion}"] = f"validation {metric_title(criterion)}"
    history: dict[str, dict[str, Curve]] = {}
    labels, unit = {}, "seeds"
    for method, result in results.items():
        members = slice(None) if result is None else select_members(result)
        note = "" if result else " (not finished)"
        if result is None:
            config = load_config(runs[method].path)
            settings = len(list_members(config)) // config.seeds
            if settings > 1:
                note, unit = f" (not finished, {settings} settings)", "models"
        found = {
            name: read_curve(lines[method], metric, members) for metric, name in titles.items()
        }
        history[method] = {name: curve for name, curve in found.items() if curve is not None}
        labels[method] = method_title(method) + note
    metrics = [
        name for name in titles.values() if any(name in curves for curves in history.values())
    ]
    return plot.learning_curves(history, metrics, labels=labels, unit=unit) if metrics else None


def read_curve(lines: Sequence[Line], metric: str, members: slice | list[int]) -> Curve | None:
    """Return the logged steps, shape (K,), and values, shape (models, K), of a metric.

    Shares are returned in percent, as in tables. Return None if the metric was not logged.

    Args:
      lines: Lines of the log of a run.
      metric: Name of the metric in the log.
      members: Indices of the selected models among the models that were trained side by side.
    """
    found = [(line["step"], np.asarray(line[metric])[members]) for line in lines if metric in line]
    if not found:
        return None
    steps, values = zip(*found, strict=True)
    factor = 100 if metric.rpartition("/")[2] in PERCENT_METRICS else 1
    return np.asarray(steps), factor * np.stack(values, axis=1)


def plot_coefficients(
    weight: np.ndarray, shape: np.ndarray, *, max_distance: int
) -> Iterator[tuple[str, Figure]]:
    """Yield (file name, figure) for each layer: the coefficients f(wR; v) against the distance R.

    The horizontal axis ends at the distance beyond which f is nearly constant for half of the
    heads, but at most at `max_distance`, the largest distance in the data.

    Args:
      weight: Distance weights w, shape (L, N).
      shape: Shape parameters v, shape (L, N).
      max_distance: Largest distance between two tokens of a text.
    """
    end = _find_end(weight, shape, max_distance)
    for layer in range(len(weight)):
        figure = plot.coefficient_curves(weight[layer], shape[layer], max_distance=end)
        yield _name_coefficients(layer, len(weight)), figure


def plot_sides(
    variants: Sequence[TwoSided], *, max_distance: int, causal: bool
) -> Iterator[tuple[str, Figure]]:
    """Yield (file name, figure) for each layer: f and g for keys before and after the query.

    The horizontal axis ends as that of `plot_coefficients`, and at `max_distance` if there is no f.

    Args:
      variants: Attention variant of each layer.
      max_distance: Largest distance between two tokens of a text.
      causal: True if no query attends to a later key.
    """
    for layer, variant in enumerate(variants):
        end = max(max_distance, 1)
        if variant.weight is not None:
            end = _find_end(np.asarray(variant.weight), np.asarray(variant.shape), max_distance)
        figure = plot.position_curves(variant, max_distance=end, causal=causal)
        yield _name_coefficients(layer, len(variants)), figure


def _name_coefficients(layer: int, layers: int) -> str:
    """Return the file name of the figure of a layer."""
    return "coefficients" if layers == 1 else f"coefficients_layer_{layer + 1}"


def _find_end(weight: np.ndarray, shape: np.ndarray, max_distance: int) -> int:
    """Return the distance beyond which f is nearly constant for half of the heads, or the limit."""
    saturation = (np.abs(shape) + 5) / np.maximum(np.abs(weight), 1e-6)  # |w| R = |v| + 5
    return int(np.clip(np.median(saturation), 1, max(max_distance, 1)))


def select_maps(attention: dict[str, SentenceAttention]) -> dict[str, np.ndarray]:
    """Return the attention maps to draw: a dict from title to a map of shape (T, T).

    A distance-aware model has up to two maps: of its most local head (smallest distance weight
    w < 0), and of its most global head (largest w > 0). Any other model has one map, the mean over
    its heads.

    Args:
      attention: Dict from method to its attention on one sentence.
    """
    maps = {}
    for method, (_, weights, distance_weight) in attention.items():
        if distance_weight is None:
            layers, heads = weights.shape[:2]
            title = f"{method_title(method)}\nmean of {layers * heads} heads"
            maps[title] = weights.mean(axis=(0, 1))
            continue
        for kind, index, exists in (
            ("local", distance_weight.argmin(), distance_weight.min() < 0),
            ("global", distance_weight.argmax(), distance_weight.max() > 0),
        ):
            if exists:
                layer, head = np.unravel_index(index, distance_weight.shape)
                w = f"{distance_weight[layer, head]:.2g}".replace("-", "\N{MINUS SIGN}")
                place = f"head {head + 1}"
                if len(weights) > 1:
                    place = f"layer {layer + 1}, {place}"
                title = f"{method_title(method)}\nmost {kind}: {place}, w = {w}"
                maps[title] = weights[layer, head]
    return maps


def _find_criterion(results: Sequence[Any], logs: Iterable[Sequence[Line]]) -> str | None:
    """Return the name of the main validation metric, or None if no validation metric is logged.

    The name is stored with the result of a finished run. If no run is finished, return the first
    logged validation metric other than the loss.
    """
    if results:
        return results[0]["criterion"]
    names = (name for lines in logs for line in lines for name in line)
    measured = (
        name.removeprefix("validation/") for name in names if name.startswith("validation/")
    )
    return next((name for name in measured if name != "loss"), None)
