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
    **{"computed in": "model.dtype", "optimizer": OPTIMIZER},
    **{"learning rate": "optimizer.learning_rate", "epochs": "epochs"},
    **{"batch size": "data.batch_size", "max tokens": "data.longest"},
    "scaling of MDG and PDG": "guiding.scaling",
}


def models(results: Results, *patterns: str) -> str:
    """Return a Markdown table: the pre-trained model and the main options of each experiment.

    The experiments are those whose names match one of the patterns, such as "multinli*".
    """
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
    """Return our rows of Table 4: seconds per epoch without and with attention guiding (AG).

    There is one row for each pre-trained model and one cell for each data set.
    """
    found = dict.fromkeys(model_names(results, name) for name in DATA if results.runs(name))
    rows = [
        [model, "ours", *(_format_epochs(results, name, model) for name in DATA)]
        for model in found or [EMPTY]
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _format_epochs(results: Results, data: str, model: str) -> str:
    """Format our seconds per epoch without and with attention guiding, such as "3.1 → 3.2".

    Return "-" if the runs on this data set used another pre-trained model than `model`.
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
    """Return a Markdown table of the device memory that one model needs, with one row per guide."""
    columns = [Column("uses", {guide: _used_attention(guide) for guide in GUIDES})]
    for data in (data for data in DATA if "none" in results.runs(data)):
        used = results.scores(data, "bytes_per_model", "step")
        cells = dict.fromkeys(results.runs(data), UNKNOWN)
        cells |= {guide: f"{used[guide].iloc[0] / 1e9:.2f}" for guide in used}
        columns.append(Column(f"{experiment_title(data)}, GB per model", cells))
        ratios = _ratios(results, data, "bytes_per_model")
        cells = {guide: f"{ratio:.2f}" for guide, ratio in ratios.items()}
        columns.append(Column("ratio to no guide", cells, EMPTY))
    return join("guide", list(GUIDES), columns if len(columns) > 1 else [])


def costs(results: Results) -> str:
    """Return a Markdown table of the cost of guides: time and memory as ratios to no guide.

    The first row is for guides that use received attention (the attention that each key receives,
    summed over queries). The second row is for guides that use whole attention maps. A cell has the
    lowest and the highest ratio of these guides.
    """
    kinds = {
        kind: [guide for guide in GUIDES if _used_attention(guide) == kind]
        for kind in ("received attention", "attention maps")
    }
    measured = [("step of BERT, time", "guiding_speed", "bare", 3)]
    measured.append(("step of BERT, memory", "guiding_speed", "peak_bytes", 3))
    for data in (data for data in DATA if "none" in results.runs(data)):
        measured.append((f"{experiment_title(data)}, memory", data, "bytes_per_model", 2))
    columns = []
    for title, name, metric, digits in measured:
        ratios, cells = _ratios(results, name, metric), {}
        for kind, guides in kinds.items():
            found = sorted({f"{ratios[guide]:.{digits}f}" for guide in guides if guide in ratios})
            cells[kind] = " to ".join(dict.fromkeys(found[:1] + found[-1:])) or NOT_RUN
        columns.append(Column(title, cells))
    rows = {kind: f"with {kind} ({', '.join(map(method_title, g))})" for kind, g in kinds.items()}
    return join("guides", rows, columns)


def _used_attention(guide: str) -> str:
    """Return "received attention" or "attention maps", whichever the losses of a guide use.

    Return "-" if the guide has no loss.
    """
    if GUIDES[guide].maps:
        return "attention maps"
    return "received attention" if GUIDES[guide].received else EMPTY


def _ratios(results: Results, experiment: str, metric: str) -> dict[str, float]:
    """Return, for each guide, the time or memory of a training step divided by that of no guide.

    `metric` is the name of the time or memory in the stored results, such as "bytes_per_model".
    """
    frame = results.scores(experiment, metric, "step")
    return (frame.iloc[0] / frame["none"].iloc[0]).to_dict() if "none" in frame else {}
