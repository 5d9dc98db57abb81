"""Gather what the finished runs of an experiment came to, small enough to keep."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from etils import epath

from distattn_jax.train.flags import to_dict
from distattn_jax.train.run import MAY_CHANGE, Run, load_config
from distattn_jax.train.tasks import table_of
from experiments.papers.attention_guiding import heads as guiding_heads
from experiments.papers.formatting import ORDER
from experiments.papers.stored_results import AnyPath, rounded
from experiments.recipes import recipes
from experiments.trained import Seen, Trained, attention_of, distances_of, heads_of, load

TEXTS, FURTHEST = 512, 63  # looked at to see how far heads look, and the greatest distance
SHOWN = 2  # heads of each kind whose maps are kept


def collected(folder: AnyPath) -> dict[str, Any]:
    """What there is to keep of the runs of an experiment; those not finished are left out."""
    found = {method: Run(epath.Path(folder) / method) for method in ORDER}
    runs = {method: run for method, run in found.items() if run.result is not None}
    if not runs:
        raise ValueError(f"folder must hold finished runs, one for each method; got {folder}.")
    data = {method: _json(run, "data.json") for method, run in runs.items()}
    first = next(iter(runs))
    unlike = [method for method in runs if data[method] != data[first]]
    if unlike:
        raise ValueError(f"{folder}: the data of {', '.join(unlike)} are not those of {first}.")
    name = load_config(runs[first].path).name
    content = {"experiment": name, "data": data[first], "runs": {}}
    for method, run in runs.items():
        content["runs"][method] = {
            "result": run.result,
            "config": _config(run),
            "environment": _json(run, "environment.json"),
            "seconds": sum(line["seconds"] for line in _lines(run, "timing.jsonl")),
            "step_seconds": run.step_seconds,
        }
    return rounded({**content, **_learned(name, runs)})


def _config(run: Run) -> dict[str, Any]:
    """What it was trained with, without places and devices."""
    config = to_dict(load_config(run.path))
    config["model.pretrained"] = epath.Path(config["model.pretrained"]).name
    places = (*MAY_CHANGE, "data.parses", "data.vectors", "name", "search")
    return {name: value for name, value in config.items() if not name.startswith(places)}


def _learned(name: str, runs: Mapping[str, Run]) -> dict[str, Any]:
    """Heads, maps and distances of the distance-aware model and the vanilla one, if they are kept.

    They are in the checkpoints. Of pre-trained models, what `guiding_heads` keeps.
    """
    recipe = dict(recipes()).get(name)
    pair = getattr(recipe, "PAIR", None)
    if pair is not None:
        return guiding_heads.learned(runs, pair)
    kept: dict[str, Any] = {}
    trained = {
        method: load(runs[method].path, runs[method].result or {})
        for method in ("vanilla", "distance_aware")
        if method in runs and runs[method].checkpoints.exists()
    }
    if "distance_aware" in trained:
        _, params, members, _ = trained["distance_aware"]
        kept["heads"] = {
            level: {"weight": weight[members], "shape": shape[members]}
            for level, (weight, shape) in heads_of(params).items()
        }
    if not trained or not all(model.reads_one_text for model in trained.values()):
        return kept
    sentence = getattr(recipe, "SENTENCE", None)
    if sentence is not None:
        kept["attention"] = {
            method: _maps(attention_of(model, sentence)) for method, model in trained.items()
        }
    kept["distances"] = {
        method: _distances(runs[method], model) for method, model in trained.items()
    }
    return kept


def _maps(seen: Seen) -> dict[str, Any]:
    """Of distance-aware heads the most local and the most global, of others the first."""
    tokens, weights, distance_weight = seen
    maps = weights.reshape(-1, len(tokens), len(tokens))
    heads = np.arange(len(maps))[: 2 * SHOWN]
    if distance_weight is None:
        return {"tokens": tokens, "heads": heads, "maps": maps[heads]}
    weight = distance_weight.reshape(-1)
    order = weight.argsort()
    local, distant = order[weight[order] < 0][:SHOWN], order[weight[order] > 0][-SHOWN:]
    heads = np.concatenate([local, distant])
    return {"tokens": tokens, "heads": heads, "maps": maps[heads], "weight": weight[heads]}


def _distances(run: Run, trained: Trained) -> dict[str, Any]:
    task = trained.task
    table = table_of(
        load_config(run.path), "validation", tokenizer=task.tokenizer, labels=task.labels
    )
    profile = distances_of(trained, table, texts=TEXTS, furthest=FURTHEST)
    kept = {"heads": profile.heads.reshape(-1, FURTHEST + 1), "uniform": profile.uniform}
    if task.method == "distance_aware":
        kept["weight"] = heads_of(trained.params)["text"][0][trained.best].reshape(-1)
    return kept


def _json(run: Run, name: str) -> Any:
    return json.loads((run.path / name).read_text())


def _lines(run: Run, name: str) -> list[Any]:
    path = run.path / name
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
