"""Tables of repeated runs with the same seeds and options, which show how much results vary.

On a GPU, a seed does not determine the result: kernels and their rounding errors may change.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from distattn_jax.tasks.configs import FineTuningConfig
from distattn_jax.train.options import options_read_by
from distattn_jax.train.results import Result, values_by_seed
from experiments.papers import outcomes
from experiments.papers.attention_guiding.sweeps import Results, compare_with_none
from experiments.papers.formatting import (
    NOT_RUN_SENTENCE,
    format_difference,
    format_value,
    method_title,
)
from experiments.papers.statistics import summarize

MAX_REPETITIONS = 9
MEAN_ROW = "mean of each seed"


def repetition_names(data: str) -> tuple[str, ...]:
    """Return all possible names of repetitions of an experiment: {data}_again_1 and so on."""
    return tuple(f"{data}_again_{number}" for number in range(1, MAX_REPETITIONS + 1))


def repetition_tables(contents: Mapping[str, Any], titles: Mapping[str, str]) -> list[str]:
    """Return a heading and a Markdown table for every data set with repeated runs.

    Args:
      contents: Stored results by experiment. The value is None if the experiment was not run.
      titles: Printed name of each data set.
    """
    tables = {title: repetition_table(contents, data) for data, title in titles.items()}
    parts = [part for title, text in tables.items() if text for part in (f"{title}:", text)]
    return parts or [NOT_RUN_SENTENCE]


def repetition_table(contents: Mapping[str, Any], data: str) -> str:
    """Return a Markdown table with one row per repetition, and a last row with the means.

    A row shows, for every guide, the main test metric and a t-test against the run without a guide.
    Return "" if nothing was repeated.
    """
    repetitions = _select_repetitions(contents, data)
    found = _group_by_guide(repetitions, data)
    if not found:
        return ""
    spans = [
        f"{method_title(guide)} {format_difference(results[data]['criterion'], _range(results))}"
        for guide, results in found.items()
    ]
    note = (
        "Experiments with equal data and options; the table of runs lists their commits. The "
        f"largest range of a single seed: {', '.join(spans)}."
    )
    for results in found.values():
        results[MEAN_ROW] = _average(list(results.values()))
    rows = compare_with_none("experiment", [*repetitions, MEAN_ROW], found, found.get("none", {}))
    return "\n\n".join([note, rows])


def describe_spread(contents: Mapping[str, Any], data: str) -> tuple[int, str, str, str]:
    """Describe how much the main test metric varies between repetitions of an experiment.

    Returns:
      (number of runs, lowest mean over seeds without a guide, highest mean over seeds without a
      guide, largest difference between two runs with the same guide and seed).
    """
    found = _group_by_guide(_select_repetitions(contents, data), data)
    unguided = found["none"]
    criterion = unguided[data]["criterion"]
    means = [
        summarize(values_by_seed(result, "test", criterion).values()).mean
        for result in unguided.values()
    ]
    lowest, highest = (format_value(criterion, mean) for mean in (min(means), max(means)))
    spread = format_difference(criterion, max(_range(results) for results in found.values()))
    return len(unguided), lowest, highest, spread


def compare_means(contents: Mapping[str, Any], data: str) -> dict[str, outcomes.Outcome | None]:
    """Compare runs with and without a guide by t-tests on metrics averaged over repetitions.

    The main test metric of each seed is averaged. Return the outcome for each guide that occurs in
    all repetitions, or {} if the run without a guide was not repeated.
    """
    found = _group_by_guide(_select_repetitions(contents, data), data)
    means = {guide: _average(list(results.values())) for guide, results in found.items()}
    if "none" not in means:
        return {}
    return {
        guide: outcomes.compare_results(mean, means["none"])
        for guide, mean in means.items()
        if guide != "none"
    }


def _select_repetitions(contents: Mapping[str, Any], data: str) -> dict[str, Any]:
    """Return stored results by name: the main experiment on a data set, and its repetitions."""
    names = (data, *repetition_names(data))
    return {name: contents[name] for name in names if contents.get(name) is not None}


def _group_by_guide(contents: Mapping[str, Mapping[str, Any]], data: str) -> Results:
    """Return results[guide][experiment] of the guides that occur in all experiments.

    Return {} if the main experiment of the data set is missing or was not repeated. Raise a
    ValueError if data or options differ between the experiments.
    """
    if data not in contents or len(contents) < 2:
        return {}
    first = contents[data]
    shared = [
        guide
        for guide in first["runs"]
        if all(guide in content["runs"] for content in contents.values())
    ]
    for name, content in contents.items():
        if _data_identity(content["data"]) != _data_identity(first["data"]):
            raise ValueError(f"{name} must have the data of {data}; its data differ.")
        for guide in shared:
            if not _agree(guide, content["runs"][guide]["config"], first["runs"][guide]["config"]):
                raise ValueError(
                    f"{name} must have the options of {data}; those of {guide} differ."
                )
    return {
        guide: {name: content["runs"][guide]["result"] for name, content in contents.items()}
        for guide in shared
    }


def _data_identity(data: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return (numbers of rows, digest of the data files, digest of the pre-trained weights).

    If this tuple is equal for two experiments, their data and pre-trained models are the same.
    """
    digest = data.get("digests", {}).get("raw files of the data", data.get("raw_files"))
    return data.get("rows"), digest, data.get("pretrained", {}).get("digest")


def _agree(guide: str, first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Return whether two runs of a guide have the same options.

    Three kinds of options are not compared: the number of seeds, options that only one of the two
    runs has stored, and options that have no effect on the guide.

    Args:
      guide: Name of the guide.
      first: Options of the first run.
      second: Options of the second run.
    """
    shared = options_read_by(FineTuningConfig(), guide).keys() & first.keys() & second.keys()
    return all(first[name] == second[name] for name in shared - {"seeds"})


def _align_seeds(results: Iterable[Result]) -> tuple[list[int], np.ndarray]:
    """Return the seeds that occur in all runs, and the main test metric, shape (runs, seeds)."""
    by_seed = [values_by_seed(result, "test", result["criterion"]) for result in results]
    seeds = sorted(set.intersection(*(set(values) for values in by_seed)))
    return seeds, np.asarray([[values[seed] for seed in seeds] for values in by_seed])


def _range(results: Mapping[str, Result]) -> float:
    """Return the largest difference in the main test metric between two runs with the same seed."""
    _, values = _align_seeds(results.values())
    return float(np.ptp(values, axis=0).max())


def _average(results: Sequence[Result]) -> Result:
    """Return a result whose main test metric is, for each seed, the mean over repeated runs."""
    seeds, values = _align_seeds(results)
    criterion = results[0]["criterion"]
    members = [
        {"seed": seed, "setting": {}, "validation": {criterion: mean}, "test": {criterion: mean}}
        for seed, mean in zip(seeds, values.mean(0).tolist(), strict=True)
    ]
    return {**results[0], "members": members}
