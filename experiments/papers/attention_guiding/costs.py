"""Description of our guided models, and the cost of guiding: seconds, step time, memory."""

import collections
import re
from collections.abc import Iterable, Mapping
from typing import Any

from distattn_jax.tasks.guides import GUIDES
from experiments.papers.attention_guiding.selections import (
    DATA_TITLES,
    SWEEPS,
    join_model_names,
    model_name,
    repetition_names,
)
from experiments.papers.attention_guiding.settings import RATES
from experiments.papers.formatting import (
    EMPTY,
    NOT_RUN,
    NOT_RUN_SENTENCE,
    markdown_table,
    method_title,
)
from experiments.papers.results import Results
from experiments.papers.stored_results import SEARCHED, find_option
from experiments.papers.tables import Column, join

UNKNOWN = "not known"
OPTIMIZER = "optimizer.name"
# Options of the last columns of the table of models.
OPTIONS = {
    "computed in": "model.dtype",
    "optimizer": OPTIMIZER,
    "learning rate": "optimizer.learning_rate",
    "epochs": "epochs",
    "batch size": "data.batch_size",
    "max tokens": "data.longest",
    "scaling of MDG and PDG": "guiding.scaling",
}


def models(results: Results) -> str:
    """Return a table of the pre-trained model and options of every experiment.

    Experiments with the same model and options share a row.
    """
    rows: dict[tuple[str, ...], list[str]] = {}
    repeated = (name for data in DATA_TITLES for name in repetition_names(data))
    for name in (*DATA_TITLES, *repeated, *SWEEPS):
        for found in (name + RATES, name + SEARCHED, name):
            if results.runs(found):
                rows.setdefault(_model_cells(results.contents[found]), []).append(found)
    header = ["experiments", "model", "digest", "family", "layers x heads", "width"]
    lines = [[_join_experiments(names), *cells] for cells, names in rows.items()]
    return (
        markdown_table([*header, "stored weights", *OPTIONS], lines) if lines else NOT_RUN_SENTENCE
    )


def _model_cells(content: Mapping[str, Any]) -> tuple[str, ...]:
    """Return table cells with the pre-trained model and the options of an experiment."""
    about = content["data"]["pretrained"]
    config = about["config"]
    size = (f"{config['layers']} x {config['heads']}", str(config["features"]))
    stored = " and ".join(dtype for dtype in about["stored"] if "F" in dtype)  # floating point only
    options = (_join_option(content, name) for name in OPTIONS.values())
    return (about["name"], about["digest"], config["family"], *size, stored, *options)


def _join_option(content: Mapping[str, Any], name: str) -> str:
    """Return the distinct values of an option in all runs of an experiment, joined by commas."""
    found: dict[str, None] = {}
    for run in content["runs"].values():
        config = run["config"]
        value = find_option(config, name)
        if value is None and name == OPTIMIZER:  # Newer results store only the weight decay.
            value = "adamw" if config.get("optimizer.weight_decay") else "adam"
        for one in value if isinstance(value, list) else [value]:
            if one is not None:
                found[one if isinstance(one, str) else f"{one:g}"] = None
    return ", ".join(found) or EMPTY


def _join_experiments(names: Iterable[str]) -> str:
    """Join names of experiments with commas, and abbreviate the names of sweeps and repetitions.

    For example, multinli_share_20 and multinli_share_40 become "`multinli_share_*` (2)".
    """
    joined = (re.sub(r"_(share|again)_.*", r"_\1_*", name) for name in names)
    counts = collections.Counter(joined)
    return ", ".join(f"`{name}`" + f" ({n})" * (n > 1) for name, n in counts.items())


def epochs(results: Results) -> str:
    """Return our rows of Table 4: seconds per epoch without and with AG, one row per model."""
    found = [name for name in DATA_TITLES if results.runs(name)]
    names = dict.fromkeys(join_model_names(results, [name]) for name in found) or [EMPTY]
    rows = [
        [model, "ours", *(_format_epochs(results, n, model) for n in DATA_TITLES)]
        for model in names
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _format_epochs(results: Results, data: str, model: str) -> str:
    """Format our seconds per epoch without and with AG, such as "3.1 → 3.2".

    Return "-" if the pre-trained model of the results is not `model`.
    """
    runs = results.runs(data)
    if runs and model_name(results.contents[data]) != model:
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


def steps(results: Results) -> str:
    """Return time and memory per training step, with one row per guide."""
    lines = results.part("guiding_speed", "lines") or []
    unguided = {line["seeds"]: line for line in lines if line["method"] == "none"}
    rows = []
    for line in lines:
        base = unguided.get(line["seeds"], {})
        row = [method_title(line["method"]), str(line["seeds"])]
        for name, scale in (("bare", 1), ("peak_bytes", 1e9)):
            value, reference = line.get(name), base.get(name)
            row.append(EMPTY if value is None else f"{value / scale:.2f}")
            row.append(f"{value / reference:.3f}" if value is not None and reference else EMPTY)
        rows.append(row)
    header = ["guide", "models", "ms per step", "ratio to no guide", "GB", "ratio to no guide"]
    return markdown_table(header, rows) if rows else NOT_RUN_SENTENCE


def speed_option(results: Results, name: str) -> str:
    """Return an option of the measured training steps."""
    return str(find_option(results.part("guiding_speed", "config"), name) or NOT_RUN)


def step_device(results: Results) -> str:
    """Return the device of the measured training steps."""
    return results.part("guiding_speed", "environment", "device") or NOT_RUN


def memory(results: Results) -> str:
    """Return device memory per model, with one row per guide."""
    columns = [Column("uses", {guide: _used_attention(guide) for guide in GUIDES})]
    for data, runs in _unguided_runs(results).items():
        used = {guide: _bytes_per_model(run) for guide, run in runs.items()}
        cells = {g: UNKNOWN if size is None else f"{size / 1e9:.2f}" for g, size in used.items()}
        columns.append(Column(f"{DATA_TITLES[data]}, GB per model", cells))
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
        ratios[f"{DATA_TITLES[data]}, memory"] = _memory_ratios(runs)
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
    found = {name: results.runs(name) for name in DATA_TITLES}
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
