"""What distance-aware heads have learned, in tables."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments.da import DATA_SETS, OURS
from experiments.papers.formatting import NOT_RUN, NOTHING, markdown, mean_and_spread, title

FAR = 10  # words: what the table of distances calls far


def signs(kept: Mapping[str, Any]) -> str:
    """The share of heads with w > 0, half of them at first, against the length of sequences."""
    rows = []
    for name, content in kept.items():
        lengths = (content or {}).get("data", {}).get("sequence_lengths", {})
        for level, heads in ((content or {}).get("heads") or {}).items():
            weight, shape = np.asarray(heads["weight"]), np.asarray(heads["shape"])
            share = (weight > 0).reshape(len(weight), -1).mean(axis=1)
            rows.append(
                [
                    f"{name}, {level}",
                    f"{lengths[level]:.1f}" if level in lengths else NOTHING,
                    mean_and_spread("accuracy", share),
                    f"{np.median(weight[weight < 0]):.3f}",
                    f"{np.median(weight[weight > 0]):.3f}",
                    f"{shape.mean():.2f}",
                ]
            )
    header = ["heads of", "length they see", "w > 0 (%)", "median w < 0", "median w > 0"]
    return markdown([*header, "mean v"], rows) if rows else NOT_RUN


def distances(kept: Mapping[str, Any]) -> str:
    """The share of attention that falls far away, of local heads, global ones and others."""
    rows = []
    for name, content in kept.items():
        profiles = (content or {}).get("distances")
        if not profiles or OURS not in profiles:
            continue
        far = {
            method: np.asarray(p["heads"])[:, FAR + 1 :].sum(1) for method, p in profiles.items()
        }
        weight = np.asarray(profiles[OURS]["weight"])
        groups = [
            np.asarray(profiles[OURS]["uniform"])[FAR + 1 :].sum(keepdims=True),
            far.get("vanilla", np.zeros(0)),
            far[OURS][weight < 0],
            far[OURS][weight > 0],
        ]
        cells = [f"{100 * group.mean():.1f}" if group.size else NOTHING for group in groups]
        rows.append([DATA_SETS[name], *cells])
    header = ["attention (%) to words", "all alike", "Transformer", "DA, w < 0", "DA, w > 0"]
    header[0] += f" more than {FAR} away"
    if not rows:
        return NOT_RUN
    note = "The best model of each method, the first texts of the validation set, up to 63 words."
    return "\n\n".join([note, markdown(header, rows)])


def flat(kept: Mapping[str, Any]) -> str:
    """How many queries of the maps in Figure 8 attend to nothing in particular."""
    rows = []
    for method, seen in ((kept["ag"] or {}).get("attention") or {}).items():
        strongest = np.asarray(seen["maps"]).max(axis=-1)
        count = int((strongest < 1.05 / len(seen["tokens"])).sum())
        rows.append([title(method), f"{count} of {strongest.size}"])
    header = ["Figure 8", "queries that attend to all words alike, to 5 %"]
    return markdown(header, rows) if rows else NOT_RUN
