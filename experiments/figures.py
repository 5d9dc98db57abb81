"""Pictures of the runs of one experiment: how they learned, what their heads became, what they see.

Those of heads and maps need the checkpoints of a finished run; where there are none, they are left
out. Where a run has a grid, the setting that stands for it in the tables is drawn, and where one
model is drawn, it is the one of that setting with the best validation.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from flax import nnx
from matplotlib.figure import Figure

from distattn_jax import plot
from distattn_jax.data import UNKNOWN
from distattn_jax.models import METHODS
from distattn_jax.train.classification import TextClassification
from distattn_jax.train.journal import Line, read
from distattn_jax.train.metrics import score
from distattn_jax.train.run import Run, load_best, load_config
from distattn_jax.train.state import graph_of
from experiments.tables import Result, chosen, title

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
    runs = {method: found[method] for method in METHODS if method in found}
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
    if sentence is not None and all(map(reads_one_text, trained.values())) and trained:
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


class Seen(NamedTuple):
    """What the heads of a model do with a sentence.

    Attributes:
      tokens: T of them.
      weights: (L, N, T, T).
      distance_weight: w (L, N) of distance-aware heads, or None.
    """

    tokens: list[str]
    weights: np.ndarray
    distance_weight: np.ndarray | None = None


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


class Trained(NamedTuple):
    """The models of a run.

    Attributes:
      task: makes the model.
      params: the best parameters of all members.
      members: those of the chosen setting.
      best: the one of them with the best validation.
    """

    task: Any
    params: Any
    members: list[int]
    best: int


def load(path: AnyPath, result: Result) -> Trained:
    """The models of a finished run, made so that they show their attention on any device."""
    task, params = load_best(path)
    task.config = dataclasses.replace(task.config, implementation="", dtype="float32")
    members = chosen(result)
    criterion = result["criterion"]
    scores = [score(criterion, member["validation"][criterion]) for member in result["members"]]
    return Trained(task, params, members, max(members, key=scores.__getitem__))


def heads_of(params: Any) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """w and v of distance-aware heads, each (members, L, N), by the level they attend on.

    A level is what the model calls the encoder: "text", or "words" and "sentences", or "titles"
    and "user".
    """
    found: dict[str, dict[str, list[np.ndarray]]] = {}
    for path, leaf in sorted(nnx.traversals.flatten_mapping(params).items(), key=_by_layer):
        match path:
            case (*before, "encoder", "blocks", _, "attention", "variant", "weight" | "shape"):
                level = [name for name in before if name != "sequence"][-1]
                found.setdefault(level, {}).setdefault(path[-1], []).append(np.asarray(leaf))
    return {
        level: (np.stack(leaves["weight"], axis=1), np.stack(leaves["shape"], axis=1))
        for level, leaves in found.items()
    }


def _by_layer(entry: tuple[tuple[Any, ...], Any]) -> tuple[str, ...]:
    """Sorts the paths of parameters as layers come, the tenth after the ninth."""
    return tuple(f"{name:>9}" if isinstance(name, int) else name for name in entry[0])


def reads_one_text(trained: Trained) -> bool:
    """Whether a sentence alone is something the model can be shown."""
    return isinstance(trained.task, TextClassification)


def attention_of(trained: Trained, sentence: str) -> Seen:
    """What the best member does with a sentence; a word it does not know is named as such."""
    task, params, _, best = trained
    encoding = task.tokenizer.encode(sentence)
    if not encoding.ids:
        raise ValueError(f"sentence must hold at least one token; got {sentence!r}.")
    tokens = [
        token if token == UNKNOWN else sentence[start:end].strip()
        for token, (start, end) in zip(encoding.tokens, encoding.offsets, strict=True)
    ]
    one = jax.tree.map(lambda leaf: leaf[best], params)
    model = nnx.merge(graph_of(task), one)
    said = model(jnp.asarray([encoding.ids]), jnp.asarray([len(tokens)]), weights=True)
    levels = heads_of(params)
    distance_weight = levels["text"][0][best] if task.method == "distance_aware" else None
    return Seen(tokens, np.asarray(said.weights[0]), distance_weight)


def _criterion(results: Sequence[Any], journals: Iterable[Sequence[Line]]) -> str | None:
    """That of a finished run; else the first that was measured on the validation set, no loss."""
    if results:
        return results[0]["criterion"]
    names = (name for lines in journals for line in lines for name in line)
    measured = (
        name.removeprefix("validation/") for name in names if name.startswith("validation/")
    )
    return next((name for name in measured if name != "loss"), None)
