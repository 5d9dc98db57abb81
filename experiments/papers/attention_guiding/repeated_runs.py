"""The same seeds trained again: how far results move by themselves, and what all runs say together.

On a GPU a seed does not fix a result: which kernels compute it, and how they round, may change.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from experiments.papers.attention_guiding.sweeps import Results, beside_no_guide
from experiments.papers.formatting import NOT_RUN, difference, title
from experiments.papers.results import Result, of_seeds

MOST = 9  # further runs that are looked for
TOGETHER = "mean of each seed"


def names_of(data: str) -> tuple[str, ...]:
    """What further runs of an experiment are called."""
    return tuple(f"{data}_again_{number}" for number in range(1, MOST + 1))


def tables(kept: Mapping[str, Any], data_sets: Mapping[str, str]) -> list[str]:
    """One for each data set, called so, with experiments that were run again."""
    found = {called: table(kept, data) for data, called in data_sets.items()}
    parts = [part for called, text in found.items() if text for part in (f"{called}:", text)]
    return parts or [NOT_RUN]


def table(kept: Mapping[str, Any], data: str) -> str:
    """Rows are runs, then the mean that each seed has over them; every guide against none.

    Empty where nothing was run again.
    """
    names = (data, *names_of(data))
    contents = {name: kept[name] for name in names if kept.get(name) is not None}
    found = _repeated(contents, data)
    if not found:
        return ""
    spans = [
        f"{title(guide)} {difference(results[data]['criterion'], _furthest(results.values()))}"
        for guide, results in found.items()
    ]
    note = (
        "Experiments with the same data and configuration; Runs says of which commits. "
        f"A seed that all have moves between them by up to: {', '.join(spans)}."
    )
    for results in found.values():
        results[TOGETHER] = _together(list(results.values()))
    rows = beside_no_guide("run", [*contents, TOGETHER], found, found.get("none", {}))
    return "\n\n".join([note, rows])


def _repeated(contents: Mapping[str, Mapping[str, Any]], data: str) -> Results:
    """Guide -> experiment -> result, of the guides that all experiments have, if there are two."""
    if data not in contents or len(contents) < 2:
        return {}
    first = contents[data]
    shared = [
        guide
        for guide in first["runs"]
        if all(guide in content["runs"] for content in contents.values())
    ]
    for name, content in contents.items():
        if content["data"] != first["data"]:
            raise ValueError(f"{name} must be of the data of {data}; it is not.")
        for guide in shared:
            if _configured(content["runs"][guide]) != _configured(first["runs"][guide]):
                raise ValueError(f"{name} must be configured as {data} is; {guide} is not.")
    return {
        guide: {name: content["runs"][guide]["result"] for name, content in contents.items()}
        for guide in shared
    }


def _configured(run: Mapping[str, Any]) -> dict[str, Any]:
    """How it was trained, whatever the number of its seeds."""
    return {name: value for name, value in run["config"].items() if name != "seeds"}


def _figures(results: Iterable[Result]) -> tuple[list[int], np.ndarray]:
    """The seeds that all have, and what the test set came to: (runs, seeds)."""
    by_seed = [of_seeds(result, "test", result["criterion"]) for result in results]
    seeds = sorted(set.intersection(*(set(figures) for figures in by_seed)))
    return seeds, np.asarray([[figures[seed] for seed in seeds] for figures in by_seed])


def _furthest(results: Iterable[Result]) -> float:
    """How far the figure of a seed moves between runs, at most."""
    _, figures = _figures(results)
    return float(np.ptp(figures, axis=0).max())


def _together(results: Sequence[Result]) -> Result:
    """As one result, in which a seed has the mean over the runs."""
    seeds, figures = _figures(results)
    criterion = results[0]["criterion"]
    members = [
        {"seed": seed, "setting": {}, "validation": {criterion: mean}, "test": {criterion: mean}}
        for seed, mean in zip(seeds, figures.mean(0).tolist(), strict=True)
    ]
    return {**results[0], "members": members}
