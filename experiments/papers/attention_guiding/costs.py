"""What guiding costs: Table 4 of the attention-guiding paper, and one training step alone."""

from collections.abc import Mapping
from typing import Any

from distattn_jax.train.guides import GUIDES
from experiments.papers.attention_guiding import models
from experiments.papers.attention_guiding.published import METRICS, TABLE_4
from experiments.papers.formatting import NOTHING, UNRUN, markdown, title

NOTE = (
    "Seconds of an epoch, without AG → with AG. The paper's: one model on one RTX 3090. Ours: so "
    "many models side by side, on our training sets (see Data), which the paper's seconds are not "
    "of; steps alone, without compilation and validation. Other runs may have been on the device."
)
MEMORY_NOTE = (
    "What the largest step of our runs takes of the device's memory, as the compiler says, divided "
    "by the models that are trained side by side: parameters, Adam's two means, activations. Maps "
    "are stored only for guides that look at them."
)


def epochs(kept: Mapping[str, Any], shown: Mapping[str, str]) -> str:
    """Seconds of an epoch, without AG and with it.

    Args:
      kept: experiment -> its results, or None.
      shown: data set -> how it is called in print, the paper's first.
    """
    rows = []
    for model, seconds in TABLE_4.items():
        cells = [f"{without} → {guided} ({_more(without, guided)})" for without, guided in seconds]
        rows.append([model, "paper's", *cells, *[NOTHING] * (len(shown) - len(METRICS))])
    found = [kept[name] for name in shown if kept[name] is not None]
    for model in dict.fromkeys(map(models.name_of, found)) or [NOTHING]:
        rows.append([model, "ours", *(_ours(kept[name], model) for name in shown)])
    return "\n\n".join([NOTE, markdown(["model", "whose", *shown.values()], rows)])


def steps(content: Mapping[str, Any] | None) -> str:
    """One training step: milliseconds and memory, with guides and without."""
    if content is None:
        return "One training step: not run."
    config, lines = content["config"], content["lines"]
    plain = {line["seeds"]: line for line in lines if line["method"] == "none"}
    header = ["guide", "models", "ms a step", "of no guide's", "GB", "of no guide's"]
    rows = []
    for line in lines:
        base = plain.get(line["seeds"], {})
        row = [title(line["method"]), str(line["seeds"])]
        for name, scale in (("bare", 1), ("peak_bytes", 1e9)):
            value, of = line.get(name), base.get(name)
            row.append(NOTHING if value is None else f"{value / scale:.2f}")
            row.append(f"{value / of:.3f}" if value is not None and of else NOTHING)
        rows.append(row)
    where = (
        f"One training step alone, on {content['environment']['device']}: a BERT of "
        f"{config['model.layers']} layers of {config['model.heads']} heads, "
        f"{config['model.features']} wide, its parameters drawn, computed in "
        f"{config['model.dtype']}; {config['data.batch_size']} texts of {config['length']} random "
        "tokens, already on the device; so many models side by side. The median of "
        f"{config['repeats']} means over {config['steps']} steps. GB: what the compiler says the "
        "step takes of the device's memory."
    )
    return "\n\n".join([where, markdown(header, rows)])


def memory(kept: Mapping[str, Any], shown: Mapping[str, str]) -> str:
    """What a step of our runs takes of the device's memory, with every guide."""
    found = {name: kept[name]["runs"] for name in shown if "none" in _runs(kept[name])}
    if not found:
        return "Memory of our runs: not run."
    header, rows = ["guide", "looks at"], []
    for name in found:
        header += [f"{shown[name]}, GB a model", "of no guide's"]
    for method, guide in GUIDES.items():
        looks = "maps" if guide.maps else "received" if guide.received else NOTHING
        row = [title(method), looks]
        for runs in found.values():
            none, used = _model_bytes(runs["none"]), _model_bytes(runs.get(method))
            unsaid = "not known" if method in runs else UNRUN
            row.append(unsaid if used is None else f"{used / 1e9:.2f}")
            row.append(f"{used / none:.2f}" if used is not None and none else NOTHING)
        rows.append(row)
    return "\n\n".join([MEMORY_NOTE, markdown(header, rows)])


def _runs(content: Mapping[str, Any] | None) -> Mapping[str, Any]:
    return (content or {}).get("runs", {})


def _model_bytes(run: Mapping[str, Any] | None) -> float | None:
    """Of one of the models of a run; None: it was not run, or the compiler did not say.

    Nor is it known where fewer than all models were computed at a time.
    """
    result = {} if run is None else run["result"]
    used, count = result.get("step_bytes"), len(result.get("members", ()))
    return None if used is None or result.get("at_once", count) < count else used / count


def _ours(content: Mapping[str, Any] | None, model: str) -> str:
    runs = _runs(content)
    if content is not None and models.name_of(content) != model:
        return NOTHING
    if not {"none", "ag"} <= runs.keys():
        return UNRUN
    without, guided = (_epoch(runs[method]) for method in ("none", "ag"))
    if without is None or guided is None:
        return "not known"
    of_none, of_ag = (_where(runs[method]) for method in ("none", "ag"))
    if of_none != of_ag:  # seconds that cannot be compared
        return f"{without:.1f} ({of_none}) → {guided:.1f} ({of_ag})"
    return f"{without:.1f} → {guided:.1f} ({_more(without, guided)}; {of_ag})"


def _epoch(run: Mapping[str, Any]) -> float | None:
    """Seconds; None: what a step takes is not known."""
    steps, seconds = run["result"]["steps"], run["step_seconds"]
    return None if seconds is None else seconds * steps / run["config"]["epochs"]


def _where(run: Mapping[str, Any]) -> str:
    count = len(run["result"]["members"])
    return f"{count} model{'s' * (count > 1)}, {run['environment']['device']}"


def _more(without: float, guided: float) -> str:
    return f"{100 * (guided / without - 1):+.1f} %"
