"""Figures 3 and 6 of the attention-guiding paper as tables: one layer guided, part of the data."""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.tables import of_seeds, tested
from experiments.wording import NOTHING, markdown, mean_and_spread, spelled, title

BASE = "multinli"  # the experiment that both are forms of
LAYERS = range(1, 7)  # of MiniLM
SHARES = (20, 40, 60, 80, 100)  # per cent of the training set; all of it is the experiment itself
LAYERED = ("mdg", "pdg", "ag")
SHARED = ("none", "ag", "mdg", "pdg")
NAMES = (
    *(f"{BASE}_layers_{guide}_{layer}" for guide in LAYERED for layer in LAYERS),
    *(f"{BASE}_share_{share}" for share in SHARES[:-1]),
)
UNRUN = "not run"

Results = dict[str, dict[int, Any]]  # guide -> layer or share -> result


def layered(kept: Mapping[str, Any]) -> Results:
    """Guide -> the layer it was put on, from 1 -> result; the configuration says which layer."""
    found: Results = {guide: {} for guide in LAYERED}
    for name, content in kept.items():
        if name.startswith(f"{BASE}_layers_") and content is not None:
            for guide, run in content["runs"].items():
                (layer,) = run["config"]["guiding.layers"]
                if name != f"{BASE}_layers_{guide}_{layer + 1}":
                    raise ValueError(
                        f"{name} must be of its guide and layer; got {guide}, {layer}."
                    )
                found[guide][layer + 1] = run["result"]
    return found


def shared(kept: Mapping[str, Any]) -> Results:
    """Guide -> per cent of the training set -> result."""
    found: Results = {guide: {} for guide in SHARED}
    for share in SHARES:
        content = kept.get(BASE if share == 100 else f"{BASE}_share_{share}")
        for guide in SHARED:
            if guide in (content or {}).get("runs", {}):
                found[guide][share] = (content or {})["runs"][guide]["result"]
    return found


def unguided(kept: Mapping[str, Any]) -> Any:
    """The result without a guide, on all layers and all data; None: not run."""
    run = (kept[BASE] or {}).get("runs", {}).get("none")
    return None if run is None else run["result"]


def by_layer(kept: Mapping[str, Any]) -> str:
    """Rows are layers; every guide against none, paired over seeds."""
    found, none = layered(kept), unguided(kept)
    against = dict.fromkeys(LAYERS, none)
    plain = UNRUN if none is None else _figure(none)
    note = f"Ours, {_measured(none)}, MultiNLI. Without a guide: {plain}."
    return "\n\n".join([note, _table("layer", LAYERS, found, against)])


def by_share(kept: Mapping[str, Any]) -> str:
    """Rows are shares of the training set; every guide against none of the same share."""
    found = shared(kept)
    none = found["none"]
    note = f"Ours, {_measured(none.get(100))}, MultiNLI. No guide is the first column of figures."
    return "\n\n".join([note, _table("training set (%)", SHARES, found, none)])


def _table(varied: str, places: Sequence[int], found: Results, against: Mapping[int, Any]) -> str:
    header = [varied]
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
        rows.append(row)
    count = sum(row[i].replace("< ", "")[:1].isdigit() for row in rows for i in _tests(header))
    note = f"{count} paired t-tests, two-sided; p is not corrected for their number."
    return "\n\n".join([markdown(header, rows), *([note] if count else [])])


def _tests(header: Sequence[str]) -> list[int]:
    """The columns of p."""
    return [i for i, name in enumerate(header) if name == "p"]


def _measured(result: Any) -> str:
    return f"test {spelled('accuracy' if result is None else result['criterion'])}"


def _figure(result: Any) -> str:
    criterion = result["criterion"]
    return mean_and_spread(criterion, of_seeds(result, "test", criterion).values())
