"""Select members and values of a result, which is the content of `result.json` of a finished run.

The members of a run are models trained side by side: all seeds of all settings of a grid.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from distattn_jax.train.metrics import score
from experiments.papers.statistics import summarize

Result = Mapping[str, Any]


def group_by_setting(result: Result) -> list[list[int]]:
    """Return the indices of the members of each setting, in the order of the result."""
    groups: dict[tuple[tuple[str, float], ...], list[int]] = {}
    for i, member in enumerate(result["members"]):
        groups.setdefault(tuple(sorted(member["setting"].items())), []).append(i)
    return list(groups.values())


def select_members(result: Result) -> list[int]:
    """Return the indices of the members of the setting with the best mean validation criterion.

    Of equally good settings, the first is selected.
    """
    criterion = result["criterion"]

    def mean_score(members: list[int]) -> float:
        values = values_by_seed(result, "validation", criterion, members)
        return float(score(criterion, summarize(values.values()).mean))

    return max(group_by_setting(result), key=mean_score)


def measured_splits(results: Sequence[Result]) -> tuple[str, ...]:
    """Return the splits that all results hold: ("validation", "test"), or ("validation",).

    A hyperparameter search does not read the test set.
    """
    has_test = all("test" in result["members"][0] for result in results)
    return ("validation", "test") if has_test else ("validation",)


def values_by_seed(
    result: Result, split: str, metric: str, members: Sequence[int] | None = None
) -> dict[int, float]:
    """Return seed -> value of a metric on a split. Members that lack the metric are omitted.

    Args:
      result: Result of one run.
      split: "validation" or "test".
      metric: Name of the metric.
      members: Indices of the members to read. None reads the members of the best setting.
    """
    indices = select_members(result) if members is None else members
    chosen = [result["members"][i] for i in indices]
    return {member["seed"]: member[split][metric] for member in chosen if metric in member[split]}
