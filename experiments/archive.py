"""Results small enough to keep: what the runs of one experiment came to, in one JSON file.

`collect` writes them from runs; `report da` and `report guiding` make tables and figures of them,
and put these into RESULTS.md, between two marks.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from etils import epath

from distattn_jax.train.flags import to_dict
from distattn_jax.train.run import MAY_CHANGE, Run, load_config
from distattn_jax.train.tasks import table_of
from experiments.papers import guiding_heads
from experiments.recipes import recipes
from experiments.trained import Seen, Trained, attention_of, distances_of, heads_of, load
from experiments.wording import ORDER

AnyPath = str | Path | epath.Path
FOLDER = Path(__file__).parent / "results"
RESULTS = Path(__file__).parent / "RESULTS.md"
DIGITS = 5  # kept of every number
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


def write(content: Mapping[str, Any], folder: AnyPath = FOLDER) -> epath.Path:
    """Keeps the results of an experiment, a line for each of its parts."""
    path = epath.Path(folder) / f"{content['experiment']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_text(content, depth=2) + "\n")
    return path


def read(name: str, folder: AnyPath = FOLDER) -> dict[str, Any] | None:
    """The results of an experiment; None: there are none."""
    path = epath.Path(folder) / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def results_of(content: Mapping[str, Any], methods: Sequence[str]) -> list[dict[str, Any]]:
    """What these methods came to, in this order; those that were not run are left out."""
    return [content["runs"][method]["result"] for method in methods if method in content["runs"]]


def put_into_results_md(paper: str, text: str, path: Path = RESULTS) -> None:
    """Replaces what stands between the marks of a paper; all else was written by hand."""
    before, after = (f"<!-- {word} of report {paper} -->" for word in ("begin", "end"))
    written = path.read_text()
    if before not in written or after not in written:
        raise ValueError(f"{path}: must hold the lines {before} and {after}.")
    head, tail = written.partition(before)[0], written.partition(after)[2]
    path.write_text(f"{head}{before}\n\n{text}\n{after}{tail}")


def rounded(content: Any) -> Any:
    """With few digits of every number, and lists in the place of arrays."""
    if isinstance(content, np.ndarray):
        return rounded(content.tolist())
    if isinstance(content, Mapping):
        return {key: rounded(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [rounded(value) for value in content]
    return float(f"{content:.{DIGITS}g}") if isinstance(content, float) else content


def _text(content: Any, *, depth: int, indent: str = "") -> str:
    """JSON with a line for each entry down to a depth."""
    if depth == 0 or not isinstance(content, Mapping):
        return json.dumps(content)
    inner = indent + " "
    lines = [
        f"{inner}{json.dumps(key)}: {_text(value, depth=depth - 1, indent=inner)}"
        for key, value in content.items()
    ]
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}"


def _json(run: Run, name: str) -> Any:
    return json.loads((run.path / name).read_text())


def _lines(run: Run, name: str) -> list[Any]:
    path = run.path / name
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
