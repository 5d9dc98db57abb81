"""Tables of the cost of guiding: seconds per epoch (Table 4 of the paper), step time, memory."""

from collections.abc import Mapping
from typing import Any

from distattn_jax.tasks.guides import GUIDES
from experiments.papers.attention_guiding import models
from experiments.papers.attention_guiding.published import METRICS, TABLE_4
from experiments.papers.formatting import EMPTY, NOT_RUN, markdown_table, method_title
from experiments.papers.stored_results import find_option

UNKNOWN = "not known"
EPOCHS_NOTE = (
    "Seconds per epoch, without AG → with AG. Published: one model on one RTX 3090. Ours: the "
    "given number of models side by side, on our training sets, so that our seconds cannot be "
    "compared with the published ones. Only training steps count, without compilation and "
    "validation. Other runs may have shared the device."
)
MEMORY_NOTE = (
    "Device memory of the largest training step of our runs, as the compiler reports it, divided "
    "by the number of models side by side: parameters, the two moments of Adam, activations. "
    "Attention maps are stored only for guides that use them."
)


def epochs_table(contents: Mapping[str, Any], titles: Mapping[str, str]) -> str:
    """Return Table 4 of the paper as Markdown: seconds per epoch without and with AG.

    AG is attention guiding with both guides of the paper.

    Args:
      contents: Stored results by experiment. The value is None if the experiment was not run.
      titles: Printed name of each data set. The data sets of the paper must come first.
    """
    rows = []
    for model, seconds in TABLE_4.items():
        cells = [f"{plain} → {guided} ({_increase(plain, guided)})" for plain, guided in seconds]
        rows.append([model, "published", *cells, *[EMPTY] * (len(titles) - len(METRICS))])
    found = [contents[name] for name in titles if contents[name] is not None]
    for model in dict.fromkeys(map(models.model_name, found)) or [EMPTY]:
        rows.append([model, "ours", *(_format_epochs(contents[name], model) for name in titles)])
    return "\n\n".join([EPOCHS_NOTE, markdown_table(["model", "origin", *titles.values()], rows)])


def steps_table(content: Mapping[str, Any] | None) -> str:
    """Return a Markdown table of time and memory per training step, with one row per guide."""
    if content is None:
        return "One training step: not run."
    config, lines = content["config"], content["lines"]
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
    note = (
        f"One training step by itself, on {content['environment']['device']}: a BERT with "
        f"{find_option(config, 'model.layers')} layers of {find_option(config, 'model.heads')} "
        f"heads, {find_option(config, 'model.features')} wide, random parameters, computed in "
        f"{find_option(config, 'model.dtype')}; {find_option(config, 'data.batch_size')} texts of "
        f"{find_option(config, 'length')} random tokens, already on the device. Median of "
        f"{find_option(config, 'repeats')} means over {find_option(config, 'steps')} steps. GB is "
        "the device memory of the step, as the compiler reports it."
    )
    header = ["guide", "models", "ms per step", "ratio to no guide", "GB", "ratio to no guide"]
    return "\n\n".join([note, markdown_table(header, rows)])


def memory_table(contents: Mapping[str, Any], titles: Mapping[str, str]) -> str:
    """Return a Markdown table of device memory per model, with one row per guide."""
    found = _select_runs(contents, titles)
    if not found:
        return "Memory of our runs: not run."
    header, rows = ["guide", "uses"], []
    for name in found:
        header += [f"{titles[name]}, GB per model", "ratio to no guide"]
    for guide in GUIDES:
        row = [method_title(guide), _used_attention(guide)]
        for runs in found.values():
            none, used = _bytes_per_model(runs["none"]), _bytes_per_model(runs.get(guide))
            missing = UNKNOWN if guide in runs else NOT_RUN
            row.append(missing if used is None else f"{used / 1e9:.2f}")
            row.append(f"{used / none:.2f}" if used is not None and none else EMPTY)
        rows.append(row)
    return "\n\n".join([MEMORY_NOTE, markdown_table(header, rows)])


def costs_summary(
    speed: Mapping[str, Any] | None, contents: Mapping[str, Any], titles: Mapping[str, str]
) -> str:
    """Return a Markdown table of the ratios of time and memory with and without a guide.

    The first row is for guides that use received attention (the attention that each key receives,
    summed over queries). The second row is for guides that use whole attention maps.

    Args:
      speed: Stored results of the command `speed` with guides, or None if it was not run.
      contents: Stored results by experiment. The value is None if the experiment was not run.
      titles: Printed name of each data set.
    """
    found = _select_runs(contents, titles)
    lines = {line["method"]: line for line in (speed or {}).get("lines", ())}
    header = ["guides", "step of BERT, time", "step of BERT, memory"]
    header += [f"{titles[name]}, memory" for name in found]
    rows = []
    for kind in ("received attention", "attention maps"):
        guides = [guide for guide in GUIDES if _used_attention(guide) == kind]
        row = [f"with {kind} ({', '.join(map(method_title, guides))})"]
        for name in ("bare", "peak_bytes"):
            row.append(_format_ratios([_line_ratio(lines, guide, name) for guide in guides], 3))
        for runs in found.values():
            none = _bytes_per_model(runs["none"])
            used = [_bytes_per_model(runs.get(guide)) for guide in guides]
            row.append(_format_ratios([x / none if x and none else None for x in used], 2))
        rows.append(row)
    return markdown_table(header, rows)


def _used_attention(guide: str) -> str:
    """Return which output of the model a guide uses: "attention maps" or "received attention".

    Received attention is the attention that each key receives, summed over queries. Return "-" if
    the guide uses neither of the two outputs.
    """
    if GUIDES[guide].maps:
        return "attention maps"
    return "received attention" if GUIDES[guide].received else EMPTY


def _line_ratio(lines: Mapping[str, Any], guide: str, name: str) -> float | None:
    """Return a measurement with a guide divided by the same measurement without a guide.

    Return None if one of the two measurements is missing.

    Args:
      lines: lines[guide][name] is a measurement of one training step.
      guide: Name of the guide.
      name: Name of the measurement, such as a time or a memory size.
    """
    value, reference = (lines.get(method, {}).get(name) for method in (guide, "none"))
    return value / reference if value and reference else None


def _format_ratios(ratios: list[float | None], digits: int) -> str:
    """Format ratios as a range such as "2.13 to 2.14", or as one number if all are equal.

    Ratios are rounded before they are compared.
    """
    found = sorted({f"{ratio:.{digits}f}" for ratio in ratios if ratio is not None})
    if not found:
        return NOT_RUN
    return found[0] if len(found) == 1 else f"{found[0]} to {found[-1]}"


def _select_runs(contents: Mapping[str, Any], titles: Mapping[str, str]) -> dict[str, Any]:
    """Return runs[data set][guide] for the data sets that have a run without a guide."""
    found = {name: (contents[name] or {}).get("runs", {}) for name in titles}
    return {name: runs for name, runs in found.items() if "none" in runs}


def _bytes_per_model(run: Mapping[str, Any] | None) -> float | None:
    """Return the device memory of a training step divided by the number of models in the run.

    Return None if there is no run, if the memory was not measured, or if the models were not all
    trained at once.
    """
    result = {} if run is None else run["result"]
    used, count = result.get("step_bytes"), len(result.get("members", ()))
    return None if used is None or result.get("at_once", count) < count else used / count


def _format_epochs(content: Mapping[str, Any] | None, model: str) -> str:
    """Format our seconds per epoch without and with attention guiding (AG), such as "3.1 → 3.2".

    Return "-" if the pre-trained model of the results is not `model`.
    """
    runs = (content or {}).get("runs", {})
    if content is not None and models.model_name(content) != model:
        return EMPTY
    if not {"none", "ag"} <= runs.keys():
        return NOT_RUN
    plain, guided = (_epoch_seconds(runs[guide]) for guide in ("none", "ag"))
    if plain is None or guided is None:
        return UNKNOWN
    plain_device, guided_device = (_describe_device(runs[guide]) for guide in ("none", "ag"))
    if plain_device != guided_device:  # These seconds cannot be compared.
        return f"{plain:.1f} ({plain_device}) → {guided:.1f} ({guided_device})"
    return f"{plain:.1f} → {guided:.1f} ({_increase(plain, guided)}; {guided_device})"


def _epoch_seconds(run: Mapping[str, Any]) -> float | None:
    """Return the seconds per epoch of a run, or None if its time per step was not measured."""
    steps, seconds = run["result"]["steps"], run["step_seconds"]
    return None if seconds is None else seconds * steps / run["config"]["epochs"]


def _describe_device(run: Mapping[str, Any]) -> str:
    """Return the number of models and the device of a run, such as "3 models, NVIDIA H200"."""
    count = len(run["result"]["members"])
    return f"{count} model{'s' * (count > 1)}, {run['environment']['device']}"


def _increase(plain: float, guided: float) -> str:
    """Format the relative increase from `plain` to `guided`, such as "+3.5 %"."""
    return f"{100 * (guided / plain - 1):+.1f} %"
