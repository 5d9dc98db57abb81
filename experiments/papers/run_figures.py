"""Pictures of the runs of one experiment: how they learned, what their heads became, what they see.

Those of heads and maps need the checkpoints of a finished run; where there are none, they are left
out. Where a run has a grid, the setting that stands for it in the tables is drawn, and where one
model is drawn, it is the one of that setting with the best validation.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from etils import epath
from matplotlib.figure import Figure

from distattn_jax import plot
from distattn_jax.train.journal import Line, read
from distattn_jax.train.run import Run, load_config
from experiments.papers.formatting import ORDER, title
from experiments.papers.results import chosen
from experiments.trained import Seen, Trained, attention_of, heads_of, load

AnyPath = str | Path | epath.Path
Curve = tuple[np.ndarray, np.ndarray]  # steps (K,), values (members, K)


def draw(
    paths: Iterable[AnyPath], directory: AnyPath, *, sentence: str | None = None
) -> list[epath.Path]:
    """Draws all there is to draw into `directory/figures`, and says which files these are.

    Args:
      paths: folders of runs, of one method each, finished or not.
      directory: where the folder of figures is, or is made.
      sentence: the text whose attention maps are drawn; None: no such picture.
    """
    found = {load_config(path).methods[0]: Run(epath.Path(path)) for path in paths}
    runs = {method: found[method] for method in ORDER if method in found}
    drawn = []
    for name, figure in _pictures(runs, sentence):
        path = epath.Path(directory) / "figures" / f"{name}.png"
        plot.save(figure, path)
        drawn.append(path)
    return drawn


def _pictures(runs: dict[str, Run], sentence: str | None) -> Iterator[tuple[str, Figure]]:
    curves = learning_curves(runs)
    if curves is not None:
        yield "learning_curves", curves
    trained: dict[str, Trained] = {}
    for method in ("vanilla", "distance_aware"):
        run = runs.get(method)
        if run is not None and run.result is not None and run.checkpoints.exists():
            trained[method] = load(run.path, run.result)
    if "distance_aware" in trained:
        _, params, members, best = trained["distance_aware"]
        furthest = load_config(runs["distance_aware"].path).data.longest - 1
        levels = heads_of(params)
        for level, (weight, shape) in levels.items():
            suffix = "" if len(levels) == 1 else f"_{level}"
            yield f"heads{suffix}", plot.head_parameters(weight[members], shape[members])
            for name, figure in coefficients(weight[best], shape[best], furthest=furthest):
                yield f"{name}{suffix}", figure
    if sentence is not None and trained and all(model.reads_one_text for model in trained.values()):
        seen = {method: attention_of(model, sentence) for method, model in trained.items()}
        tokens = next(iter(seen.values())).tokens
        yield "attention", plot.attention_maps(maps_of(seen), tokens)


def learning_curves(runs: dict[str, Run]) -> Figure | None:
    """The training loss and the validation criterion of all methods; None: nothing is logged."""
    lines = {method: read(run.path) for method, run in runs.items()}
    results = {method: run.result for method, run in runs.items()}
    wanted = {"train/loss": "training loss"}
    criterion = _criterion([result for result in results.values() if result], lines.values())
    if criterion is not None:
        wanted[f"validation/{criterion}"] = f"validation {criterion.replace('_', ' ')}"
    history: dict[str, dict[str, Curve]] = {}
    labels = {}
    for method, result in results.items():
        members = slice(None) if result is None else chosen(result)
        found = {name: curve(lines[method], metric, members) for metric, name in wanted.items()}
        history[method] = {name: points for name, points in found.items() if points is not None}
        labels[method] = title(method) + ("" if result else " (not finished)")
    drawn = [name for name in wanted.values() if any(name in curves for curves in history.values())]
    return plot.learning_curves(history, drawn, labels=labels) if drawn else None


def curve(lines: Sequence[Line], metric: str, members: slice | list[int]) -> Curve | None:
    """Steps and values of a metric in the journal of a run; None where it is not there."""
    found = [(line["step"], np.asarray(line[metric])[members]) for line in lines if metric in line]
    if not found:
        return None
    steps, values = zip(*found, strict=True)
    return np.asarray(steps), np.stack(values, axis=1)


def coefficients(
    weight: np.ndarray, shape: np.ndarray, *, furthest: int
) -> Iterator[tuple[str, Figure]]:
    """f against distance: one picture, or one for each of several layers.

    Half of the heads have come to where f does not change any more at the distance where the
    picture ends, unless that is beyond the furthest there is.

    Args:
      weight: w (L, N).
      shape: v (L, N).
      furthest: the greatest distance there is.
    """
    settled = (np.abs(shape) + 5) / np.maximum(np.abs(weight), 1e-6)  # |w| R = |v| + 5
    end = int(np.clip(np.median(settled), 1, max(furthest, 1)))
    for layer in range(len(weight)):
        name = "coefficients" if len(weight) == 1 else f"coefficients_layer_{layer + 1}"
        yield name, plot.coefficient_curves(weight[layer], shape[layer], furthest=end)


def maps_of(seen: dict[str, Seen]) -> dict[str, np.ndarray]:
    """Title -> map: the mean over heads; of distance-aware ones the most local and most global."""
    maps = {}
    for method, (_, weights, distance_weight) in seen.items():
        if distance_weight is None:
            layers, heads = weights.shape[:2]
            maps[f"{title(method)}\nmean of {layers * heads} heads"] = weights.mean(axis=(0, 1))
            continue
        for kind, at, is_such in (
            ("local", distance_weight.argmin(), distance_weight.min() < 0),
            ("global", distance_weight.argmax(), distance_weight.max() > 0),
        ):
            if is_such:
                layer, head = np.unravel_index(at, distance_weight.shape)
                w = f"{distance_weight[layer, head]:.2g}".replace("-", "\N{MINUS SIGN}")
                place = f"head {head + 1}" if len(weights) == 1 else f"{layer + 1}.{head + 1}"
                maps[f"{title(method)}\nmost {kind}: {place}, w = {w}"] = weights[layer, head]
    return maps


def _criterion(results: Sequence[Any], journals: Iterable[Sequence[Line]]) -> str | None:
    """That of a finished run; else the first that was measured on the validation set, no loss."""
    if results:
        return results[0]["criterion"]
    names = (name for lines in journals for line in lines for name in line)
    measured = (
        name.removeprefix("validation/") for name in names if name.startswith("validation/")
    )
    return next((name for name in measured if name != "loss"), None)
