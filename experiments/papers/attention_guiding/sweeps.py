"""Figures 3 and 6 of the attention-guiding paper as tables: one layer guided, part of the data."""

from collections.abc import Mapping, Sequence
from typing import Any

from distattn_jax.train.config import ANY_LAYER
from experiments.papers.attention_guiding import models
from experiments.papers.comparison_tables import pairs_of, tested
from experiments.papers.formatting import (
    NOT_RUN,
    NOTHING,
    UNRUN,
    counts,
    markdown,
    mean_and_spread,
    spelled,
    title,
)
from experiments.papers.results import by_setting, of_seeds

BASE = "multinli"  # the experiment that both are forms of
SHARES = (20, 40, 60, 80, 100)  # per cent of the training set; all of it is the experiment itself
LAYERED = ("mdg", "pdg", "ag")
SHARED = ("none", "ag", "mdg", "pdg")
LAYERS = f"{BASE}_layers"  # each layer alone is a setting
NAMES = (LAYERS, *(f"{BASE}_share_{share}" for share in SHARES[:-1]))

Results = dict[str, dict[Any, Any]]  # guide -> layer, share or run -> result


def layers_of(kept: Mapping[str, Any]) -> range:
    """The layers that could be guided, from 1; none where nothing was run."""
    found = [content for content in (kept[BASE], kept.get(LAYERS)) if content is not None]
    sizes = [content["data"]["pretrained"]["config"] for content in found]
    return range(1, max((size["layers"] for size in sizes), default=0) + 1)


def layered(kept: Mapping[str, Any]) -> Results:
    """Guide -> the layer it was put on, from 1 -> the result of the models with this setting."""
    found: Results = {guide: {} for guide in LAYERED}
    runs = (kept.get(LAYERS) or {}).get("runs", {})
    for guide in found.keys() & runs.keys():
        run = runs[guide]
        members = run["result"]["members"]
        for places in by_setting(run["result"]):
            layer = members[places[0]]["setting"]["layer"]
            if layer == ANY_LAYER or layer + 1 in found[guide]:
                raise ValueError(f"{LAYERS} must have one setting for each layer; got {guide}.")
            found[guide][layer + 1] = {
                **run["result"],
                "members": [members[place] for place in places],
            }
    return found


def with_one_setting(kept: Mapping[str, Any]) -> dict[str, Any]:
    """The experiments, and every layer of the sweep over layers as one of its own."""
    found = layered(kept)
    by_layer = {
        f"{LAYERS}, layer {layer}": {
            "runs": {
                guide: {"result": results[layer]}
                for guide, results in found.items()
                if layer in results
            }
        }
        for layer in sorted({layer for results in found.values() for layer in results})
    }
    return {name: content for name, content in kept.items() if name != LAYERS} | by_layer


def shared(kept: Mapping[str, Any]) -> Results:
    """Guide -> per cent of the training set -> result; the configuration must say so."""
    found: Results = {guide: {} for guide in SHARED}
    for share in SHARES:
        name = BASE if share == 100 else f"{BASE}_share_{share}"
        runs = (kept.get(name) or {}).get("runs", {})
        for guide in SHARED:
            if guide in runs:
                learned_from = runs[guide]["config"]["data.share"]
                if round(100 * learned_from, 6) != share:
                    raise ValueError(f"{name} must be of {share} %; got data.share {learned_from}.")
                found[guide][share] = runs[guide]["result"]
    return found


def unguided(kept: Mapping[str, Any]) -> Any:
    """The result without a guide, on all layers and all data; None: not run."""
    run = (kept[BASE] or {}).get("runs", {}).get("none")
    return None if run is None else run["result"]


def by_layer(kept: Mapping[str, Any]) -> str:
    """Rows are layers; every guide against none, paired over seeds."""
    found, none, layers = layered(kept), unguided(kept), layers_of(kept)
    if not layers:
        return NOT_RUN
    plain = UNRUN if none is None else _figure(none)
    note = (
        f"Ours, {_measured(none)}, MultiNLI, {_models(kept, 'layers')}. Without a guide: {plain}."
    )
    return "\n\n".join([note, beside_no_guide("layer", layers, found, dict.fromkeys(layers, none))])


def by_share(kept: Mapping[str, Any]) -> str:
    """Rows are shares of the training set; every guide against none of the same share."""
    found = shared(kept)
    none = found["none"]
    note = (
        f"Ours, {_measured(none.get(100))}, MultiNLI, {_models(kept, 'share')}. Shares are of our "
        "training set (see Data)."
    )
    return "\n\n".join([note, beside_no_guide("training set (%)", SHARES, found, none)])


def beside_no_guide(
    varied: str, places: Sequence[Any], found: Results, against: Mapping[Any, Any]
) -> str:
    """Rows are places, columns guides; each beside no guide at the same place.

    Args:
      varied: what places are called.
      places: in this order.
      found: guide -> place -> result.
      against: place -> the result without a guide.
    """
    header, pairs = [varied], []
    for guide in found:
        header += [title(guide)] if guide == "none" else [title(guide), "minus no guide", "p"]
    rows = []
    for place in places:
        row = [str(place)]
        for guide, results in found.items():
            result, none = results.get(place), against.get(place)
            row.append(UNRUN if result is None else _figure(result))
            if guide == "none":
                continue
            if result is None or none is None:
                row += [UNRUN if result is None else NOTHING] * 2
            else:
                criterion = result["criterion"]
                guided, plain = (of_seeds(one, "test", criterion) for one in (result, none))
                row += tested(guided, plain, criterion)[:2]
                pairs += [pairs_of(guided, plain)] * (row[-1] != NOTHING)
        rows.append(row)
    return "\n\n".join([markdown(header, rows), *([_note(pairs)] if pairs else [])])


def _note(pairs: Sequence[int]) -> str:
    return (
        f"A mean is over all seeds of its guide; a difference over those that both have. "
        f"{len(pairs)} paired t-tests, of {counts(pairs)} seeds, two-sided; p is not corrected for "
        "their number."
    )


def _models(kept: Mapping[str, Any], sweep: str) -> str:
    """Those of the experiment and of its forms."""
    names = (name for name in kept if name == BASE or name.startswith(f"{BASE}_{sweep}"))
    return models.names(kept[name] for name in names)


def _measured(result: Any) -> str:
    return f"test {spelled('accuracy' if result is None else result['criterion'])}"


def _figure(result: Any) -> str:
    criterion = result["criterion"]
    return mean_and_spread(criterion, of_seeds(result, "test", criterion).values())
