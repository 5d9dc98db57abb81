"""Tables of what distance-aware heads learned: signs of w, attention by distance, flat queries.

w is the distance weight of a head. A query is flat if its attention is nearly uniform.
"""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from experiments.papers.da_transformer.settings import DATA_SETS, OURS
from experiments.papers.formatting import (
    EMPTY,
    NOT_RUN_SENTENCE,
    format_mean,
    markdown_table,
    method_title,
)

DATA_TITLES = {
    **DATA_SETS,
    "amazon_rating": "Amazon ratings",
    "mind_made_up": "artificial log instead of MIND",
}
FAR = 10  # A key is far if it is more than this many words away.
FLAT = 1.05  # A query is flat if its largest weight is below this multiple of the uniform weight.


def signs_table(contents: Mapping[str, Any], experiments: Collection[str] | None = None) -> str:
    """Return a Markdown table of the share of heads with a distance weight w > 0.

    Each row also shows the mean length of the sequences that the heads process. Before training,
    half of all heads have w > 0.

    Args:
      contents: Stored results by experiment. The value is None if the experiment was not run.
      experiments: Experiments to show. None shows all.
    """
    rows = []
    for name, content in contents.items():
        if content is None or (experiments is not None and name not in experiments):
            continue
        lengths = content.get("data", {}).get("sequence_lengths", {})
        for level, heads in (content.get("heads") or {}).items():
            weight, shape = np.asarray(heads["weight"]), np.asarray(heads["shape"])
            share = (weight > 0).reshape(len(weight), -1).mean(axis=1)
            rows.append(
                [
                    f"{DATA_TITLES.get(name, name)}, {level}",
                    f"{lengths[level]:.1f}" if level in lengths else EMPTY,
                    format_mean("accuracy", share),
                    f"{np.median(weight[weight < 0]):.3f}",
                    f"{np.median(weight[weight > 0]):.3f}",
                    f"{shape.mean():.2f}",
                ]
            )
    header = ["heads of", "sequence length", "w > 0 (% of heads)", "median w < 0", "median w > 0"]
    return markdown_table([*header, "mean v"], rows) if rows else NOT_RUN_SENTENCE


def distances_table(contents: Mapping[str, Any]) -> str:
    """Return a Markdown table of the share of attention at distances above FAR words.

    Its columns are uniform attention, the Transformer, local heads (distance weight w < 0) and
    global heads (w > 0). Each row is a data set.
    """
    rows = []
    for name, content in contents.items():
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
        cells = [f"{100 * group.mean():.1f}" if group.size else EMPTY for group in groups]
        rows.append([DATA_SETS[name], *cells])
    header = [f"attention (%) on words more than {FAR} away", "uniform attention", "Transformer"]
    table = markdown_table([*header, "DA heads, w < 0", "DA heads, w > 0"], rows)
    return table if rows else NOT_RUN_SENTENCE


def count_flat_queries(contents: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Count the queries of Figure 8 whose attention is nearly uniform.

    Returns:
      (number of such queries, number of all queries) by method, or {} if no maps are stored.
    """
    counts = {}
    for method, attention in ((contents["ag"] or {}).get("attention") or {}).items():
        strongest = np.asarray(attention["maps"]).max(axis=-1)
        flat = int((strongest < FLAT / len(attention["tokens"])).sum())
        counts[method] = (flat, strongest.size)
    return counts


def flat_queries_table(contents: Mapping[str, Any]) -> str:
    """Return a Markdown table of how many queries of Figure 8 have nearly uniform attention."""
    rows = [
        [method_title(method), f"{flat} of {count}"]
        for method, (flat, count) in count_flat_queries(contents).items()
    ]
    header = ["Figure 8", "queries with uniform attention, within 5 %"]
    return markdown_table(header, rows) if rows else NOT_RUN_SENTENCE
