"""All stored results in one long table, with one value in each row.

The columns are experiment, method, setting, seed, split, metric, value and chosen. The chosen
setting of a run has the best mean validation score. Most tables show only chosen settings. This
module reads every kind of stored results:

- runs: metrics of each model on the validation set and the test set;
- runs of `switched_positions`: each kind of positions is also a method (see `shaw.switched`);
- perplexities of language models: the split names the length of the texts, such as "512 tokens";
- heads of guided models: the split is "heads";
- time and memory of a training step: the split is "step", and the seed is 0;
- pruned heads: the experiment is "NAME, pruning", the method is the order of pruning, and the split
  is "without N".

All other stored results, such as options and attention maps, are only in `Results.contents`.
"""

import functools
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pandas as pd
from etils import epath

from distattn_jax.train.results import Result, group_by_setting, score, select_members
from experiments.papers.formatting import METHOD_ORDER
from experiments.papers.shaw.switched import add_switched_runs
from experiments.papers.stored_results import AnyPath, read_results

COLUMNS = ("experiment", "method", "setting", "seed", "split", "metric", "value", "chosen")
NO_MODEL = "no model"  # method of a prediction without a model, such as the majority label
HEAD_STATISTICS = ("spread", "likeness", "special")

Row = tuple[str, str, str, int, str, str, float, bool]


class Results:
    """Stored results of all experiments.

    Attributes:
      stored: Dict from the name of each experiment to the content of its file of stored results.
      contents: Copy of `stored`, in which a run of `switched_positions` is also split into one run
        for each kind of positions.
      table: DataFrame of all metrics, with one value in each row. Its columns are experiment,
        method, setting (of hyperparameters), seed, split, metric, value and chosen. `chosen` is
        True for the setting of a run with the best mean validation score.
    """

    def __init__(self, stored: Mapping[str, Any], contents: Mapping[str, Any] | None = None):
        self.stored = dict(stored)
        self.contents = self.stored if contents is None else dict(contents)
        rows = (row for name, one in self.contents.items() for row in _list_rows(name, one))
        self.table = pd.DataFrame(rows, columns=list(COLUMNS)).astype(
            {"seed": int, "value": float, "chosen": bool}
        )

    @functools.cached_property
    def _groups(self) -> dict[Any, Any]:
        """Dict from (experiment, metric, split) to the row numbers in `table`."""
        return dict(self.table.groupby(["experiment", "metric", "split"], sort=False).indices)

    def select(self, experiment: str, metric: str, split: str = "test") -> pd.DataFrame:
        """Return the rows of `table` for one experiment, one metric and one split."""
        return self.table.iloc[self._groups.get((experiment, metric, split), [])]

    def scores(self, experiment: str, metric: str, split: str = "test") -> pd.DataFrame:
        """Return a DataFrame of one metric, with one row per seed and one column per method.

        The values are those of the chosen setting of each method, which has the best mean
        validation score.
        """
        rows = self.select(experiment, metric, split)
        return pivot(rows[rows.chosen & (rows.method != NO_MODEL)])

    def baseline(self, experiment: str, metric: str, split: str = "test") -> float | None:
        """Return the value of a metric for a prediction without a model, e.g. the majority label.

        Return None if no such value is stored.
        """
        rows = self.select(experiment, metric, split)
        found = rows[rows.method == NO_MODEL].value
        return float(found.iloc[0]) if len(found) else None

    def runs(self, experiment: str) -> dict[str, Any]:
        """Return a dict from each method of an experiment to its run, or {} without results."""
        return (self.contents.get(experiment) or {}).get("runs", {})

    def part(self, experiment: str, *keys: str) -> Any:
        """Return the entry `contents[experiment][key 1][key 2]...`, or {} if it is missing."""
        found: Any = self.contents.get(experiment) or {}
        for key in keys:
            found = found.get(key) or {}
        return found

    def criterion(self, experiment: str) -> str:
        """Return the name of the main metric of an experiment. At least one run must be stored."""
        return next(run["result"]["criterion"] for run in self.runs(experiment).values())

    def test_metric(self, experiment: str) -> str:
        """Return the name of the metric that t-tests compare.

        The metric is BLEU for translations, otherwise the main metric. Return "" if the experiment
        was not run.
        """
        if (experiment, "bleu", "test") in self._groups:
            return "bleu"
        return self.criterion(experiment) if self.runs(experiment) else ""

    def main_scores(self, experiment: str, methods: Iterable[str] | None = None) -> pd.DataFrame:
        """Return a DataFrame of the metric that t-tests compare, on the test set.

        It has one row per seed and one column for each of `methods`. None means all methods.
        """
        frame = self.scores(experiment, self.test_metric(experiment))
        return frame if methods is None else frame[[one for one in methods if one in frame]]

    def splits(self, experiment: str) -> tuple[str, ...]:
        """Return ("validation", "test"), or ("validation",) if a run has no test scores."""
        members = (run["result"]["members"][0] for run in self.runs(experiment).values())
        return ("validation", "test") if all("test" in one for one in members) else ("validation",)

    def tried(self, experiment: str) -> dict[str, int]:
        """Return a dict from method to the number of hyperparameter settings that were tried."""
        return {
            method: len(group_by_setting(run["result"]))
            for method, run in self.runs(experiment).items()
        }


def pivot(rows: pd.DataFrame) -> pd.DataFrame:
    """Convert rows of `Results.table` to a DataFrame with one row per seed, one column per method.

    The columns have the order in which the methods appear in `rows`.
    """
    frame = rows.pivot(index="seed", columns="method", values="value")
    return frame[list(dict.fromkeys(rows.method))]


def load_results(folder: AnyPath) -> Results:
    """Read all files of stored results in a folder. Other JSON files are ignored."""
    found = {}
    for path in sorted(epath.Path(folder).glob("*.json")):
        content = read_results(path.stem, folder) or {}
        if content.get("experiment") == path.stem and not isinstance(content.get("runs"), list):
            found[path.stem] = content
    return split_results(found)


def split_results(stored: Mapping[str, Any]) -> Results:
    """Return results in which runs of `switched_positions` are split by kind of positions."""
    return Results(stored, add_switched_runs(stored))


def split_setting(setting: str) -> dict[str, float]:
    """Parse the text of a setting, such as "layer=2 alpha=0.1", into a dict of its options."""
    pairs = (option.split("=") for option in setting.split())
    return {name: float(value) for name, value in pairs}


def _list_rows(name: str, content: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of `Results.table` for one experiment."""
    runs = content.get("runs", {})
    results = [runs[method]["result"] for method in sorted(runs, key=_rank)]
    for result in results:
        yield from _list_run(name, result)
    baseline: Mapping[str, Any] = next((r["baseline"] for r in results if "baseline" in r), {})
    for split, values in baseline.items():
        for metric, value in values.items():
            yield (name, NO_MODEL, "", -1, split, metric, value, True)
    yield from _list_perplexities(name, content)
    for method, heads in content.get("guided", {}).get("heads", {}).items():
        for metric in HEAD_STATISTICS:
            yield from _list_seeds(name, method, heads["seeds"], "heads", metric, heads[metric])
    yield from _list_pruning(name, content)
    yield from _list_steps(name, content)


def _rank(method: str) -> int:
    return METHOD_ORDER.index(method) if method in METHOD_ORDER else len(METHOD_ORDER)


def _list_run(name: str, result: Result) -> Iterator[Row]:
    """Yield the table rows of a run: all metrics of all models."""
    chosen = set(select_members(result))
    for i, member in enumerate(result["members"]):
        setting = " ".join(f"{name}={value!r}" for name, value in member["setting"].items())
        for split in ("validation", "test"):
            for metric, value in member.get(split, {}).items():
                if math.isnan(value):  # A diverged model is the worst one, not a missing one.
                    value = float(score(metric, -math.inf))
                yield (
                    *(name, result["method"], setting, member["seed"]),
                    *(split, metric, value, i in chosen),
                )


def _list_seeds(
    name: str, method: str, seeds: Iterable[int], split: str, metric: str, values: Iterable[float]
) -> Iterator[Row]:
    """Yield one table row for each seed of the chosen setting."""
    for seed, value in zip(seeds, values, strict=True):
        yield (name, method, "", seed, split, metric, value, True)


def _list_perplexities(name: str, content: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the table rows of perplexities. The split is the length of the texts."""
    for method, measured in content.get("perplexity", {}).items():
        if method in content["runs"]:
            result = content["runs"][method]["result"]
            seeds = [result["members"][i]["seed"] for i in select_members(result)]
            for length, one in measured["lengths"].items():
                split = f"{length} tokens"
                yield from _list_seeds(name, method, seeds, split, "perplexity", one["perplexity"])


def _list_pruning(name: str, content: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the table rows of pruning: the main validation metric without some of the heads."""
    heads = content.get("heads", {}).get("distance_aware", {})
    pruning = heads.get("pruning", {})
    for order, by_seed in pruning.get("orders", {}).items():
        for i, count in enumerate(pruning["counts"]):
            values = [values[i] for values in by_seed]
            yield from _list_seeds(
                *(f"{name}, pruning", order, range(len(values))),
                *(f"without {count}", pruning["criterion"], values),
            )


def _list_steps(name: str, content: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the table rows of training steps.

    The values are the device memory per model of each run, and the results of the command `speed`.
    """
    for method, run in content.get("runs", {}).items():
        result = run["result"]
        used, count = result.get("step_bytes"), len(result["members"])
        if used is not None and result.get("at_once", count) >= count:
            yield from _list_seeds(name, method, [0], "step", "bytes_per_model", [used / count])
    for line in content.get("lines", ()):
        setting = f"models={line['seeds']}"
        is_first = line["seeds"] == content["lines"][0]["seeds"]
        for metric in ("parameters", "bare", "peak_bytes"):
            if line.get(metric) is not None:
                yield (name, line["method"], setting, 0, "step", metric, line[metric], is_first)
