"""Description of our guided models, and the cost of guiding: seconds, step time, memory."""

from collections.abc import Mapping
from typing import Any

from distattn_jax.tasks.guides import GUIDES
from experiments.papers import tables
from experiments.papers.attention_guiding.selections import DATA, model_names
from experiments.papers.formatting import EMPTY, NOT_RUN, experiment_title, method_title
from experiments.papers.results import Results
from experiments.papers.tables import Column, join

UNKNOWN = "not known"
MODEL_FIELDS = ("family", "layers", "heads", "features")
OPTIMIZER = "optimizer.name"
# Columns of the table of models: title and option.
OPTIONS = {
    "computed in": "model.dtype",
    "optimizer": OPTIMIZER,
    "learning rate": "optimizer.learning_rate",
    "epochs": "epochs",
    "batch size": "data.batch_size",
    "max tokens": "data.longest",
    "scaling of MDG and PDG": "guiding.scaling",
}


def models(results: Results, *patterns: str) -> str:
    """Return a table of the pre-trained model and options of the experiments of patterns."""
    names = [n for n in tables.find_names(results.contents, patterns) if results.runs(n)]
    about = {name: results.part(name, "data", "pretrained") for name in names}
    columns = [Column(key, {n: one[key] for n, one in about.items()}) for key in ("name", "digest")]
    for key in MODEL_FIELDS:
        columns.append(Column(key, {n: str(one["config"][key]) for n, one in about.items()}))
    stored = {n: " and ".join(t for t in one["stored"] if "F" in t) for n, one in about.items()}
    columns.append(Column("stored weights", stored))
    for title, option in OPTIONS.items():
        columns.append(Column(title, {n: _join_option(results.runs(n), option) for n in names}))
    return join("experiment", {name: name for name in names}, columns)


def _join_option(runs: Mapping[str, Any], name: str) -> str:
    """Return the distinct values of an option in all runs of an experiment, joined by commas."""
    found: dict[str, None] = {}
    for config in (run["config"] for run in runs.values()):
        value = config.get(name)
        if value is None and name == OPTIMIZER:  # Newer results store only the weight decay.
            value = "adamw" if config.get("optimizer.weight_decay") else "adam"
        for one in value if isinstance(value, list) else [value]:
            if one is not None:
                found[one if isinstance(one, str) else f"{one:g}"] = None
    return ", ".join(found) or EMPTY


def epochs(results: Results) -> str:
    """Return our rows of Table 4: seconds per epoch without and with AG, one row per model."""
    found = dict.fromkeys(model_names(results, name) for name in DATA if results.runs(name))
    rows = [
        [model, "ours", *(_format_epochs(results, name, model) for name in DATA)]
        for model in found or [EMPTY]
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _format_epochs(results: Results, data: str, model: str) -> str:
    """Format our seconds per epoch without and with AG, such as "3.1 → 3.2".

    Return "-" if the pre-trained model of the results is not `model`.
    """
    runs = results.runs(data)
    if runs and model_names(results, data) != model:
        return EMPTY
    if not {"none", "ag"} <= runs.keys():
        return NOT_RUN
    seconds, devices = [], []
    for run in (runs["none"], runs["ag"]):
        if run["step_seconds"] is None:
            return UNKNOWN
        seconds.append(run["step_seconds"] * run["result"]["steps"] / run["config"]["epochs"])
        count = len(run["result"]["members"])
        devices.append(f"{count} model{'s' * (count > 1)}, {run['environment']['device']}")
    plain, guided = seconds
    if devices[0] != devices[1]:  # These seconds cannot be compared.
        return f"{plain:.1f} ({devices[0]}) → {guided:.1f} ({devices[1]})"
    return f"{plain:.1f} → {guided:.1f} ({100 * (guided / plain - 1):+.1f} %; {devices[1]})"


def memory(results: Results) -> str:
    """Return device memory per model, with one row per guide."""
    columns = [Column("uses", {guide: _used_attention(guide) for guide in GUIDES})]
    for data, runs in _unguided_runs(results).items():
        used = {guide: _bytes_per_model(run) for guide, run in runs.items()}
        cells = {g: UNKNOWN if size is None else f"{size / 1e9:.2f}" for g, size in used.items()}
        columns.append(Column(f"{experiment_title(data)}, GB per model", cells))
        ratios = {guide: f"{ratio:.2f}" for guide, ratio in _memory_ratios(runs).items()}
        columns.append(Column("ratio to no guide", ratios, EMPTY))
    return join("guide", list(GUIDES), columns if len(columns) > 1 else [])


def costs(results: Results) -> str:
    """Return the ratios of time and memory with and without a guide.

    The first row is for guides that use received attention (the attention that each key receives,
    summed over queries). The second row is for guides that use whole attention maps.
    """
    lines = {line["method"]: line for line in results.part("guiding_speed", "lines") or ()}
    ratios = {
        f"step of BERT, {title}": {
            guide: line[name] / lines["none"][name]
            for guide, line in lines.items()
            if line.get(name) and lines.get("none", {}).get(name)
        }
        for title, name in (("time", "bare"), ("memory", "peak_bytes"))
    }
    for data, runs in _unguided_runs(results).items():
        ratios[f"{experiment_title(data)}, memory"] = _memory_ratios(runs)
    kinds = {
        kind: [guide for guide in GUIDES if _used_attention(guide) == kind]
        for kind in ("received attention", "attention maps")
    }
    columns = []
    for title, found in ratios.items():
        digits = 3 if title.startswith("step") else 2
        cells = {
            kind: _format_ratios([found[guide] for guide in guides if guide in found], digits)
            for kind, guides in kinds.items()
        }
        columns.append(Column(title, cells))
    rows = {
        kind: f"with {kind} ({', '.join(map(method_title, guides))})"
        for kind, guides in kinds.items()
    }
    return join("guides", rows, columns)


def _used_attention(guide: str) -> str:
    """Return the output of the model that a guide uses, or "-" if it uses none."""
    if GUIDES[guide].maps:
        return "attention maps"
    return "received attention" if GUIDES[guide].received else EMPTY


def _format_ratios(ratios: list[float], digits: int) -> str:
    """Format ratios as a range such as "2.13 to 2.14", or as one number if all are equal."""
    found = sorted({f"{ratio:.{digits}f}" for ratio in ratios})
    if not found:
        return NOT_RUN
    return found[0] if len(found) == 1 else f"{found[0]} to {found[-1]}"


def _unguided_runs(results: Results) -> dict[str, dict[str, Any]]:
    """Return the runs of the data sets that have a run without a guide."""
    found = {name: results.runs(name) for name in DATA}
    return {name: runs for name, runs in found.items() if "none" in runs}


def _memory_ratios(runs: Mapping[str, Any]) -> dict[str, float]:
    """Return the memory of each guide divided by that of no guide. Unknown ones are left out."""
    none = _bytes_per_model(runs["none"])
    used = {guide: _bytes_per_model(run) for guide, run in runs.items()}
    return {guide: size / none for guide, size in used.items() if size and none}


def _bytes_per_model(run: Mapping[str, Any]) -> float | None:
    """Return the device memory of a training step divided by the number of models in the run.

    Return None if the memory was not measured, or if the models were not all trained at once.
    """
    result = run["result"]
    used, count = result.get("step_bytes"), len(result["members"])
    return None if used is None or result.get("at_once", count) < count else used / count
