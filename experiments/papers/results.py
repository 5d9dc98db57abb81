"""Select members and figures of a result, the content of `result.json` of a finished run."""

from collections.abc import Mapping, Sequence
from typing import Any

from distattn_jax.train.metrics import score
from experiments.papers.statistics import summary

Result = Mapping[str, Any]


def by_setting(result: Result) -> list[list[int]]:
    """The members of each setting, in the order they have in the result."""
    groups: dict[tuple[tuple[str, float], ...], list[int]] = {}
    for i, member in enumerate(result["members"]):
        groups.setdefault(tuple(sorted(member["setting"].items())), []).append(i)
    return list(groups.values())


def chosen(result: Result) -> list[int]:
    """The members of the setting with the best mean validation criterion; of equals, the first."""
    criterion = result["criterion"]

    def mean_score(members: list[int]) -> float:
        figures = of_seeds(result, "validation", criterion, members)
        return float(score(criterion, summary(figures.values()).mean))

    return max(by_setting(result), key=mean_score)


def splits_of(results: Sequence[Result]) -> tuple[str, ...]:
    """Those that were measured: a search leaves the test set unread."""
    measured = all("test" in result["members"][0] for result in results)
    return ("validation", "test") if measured else ("validation",)


def of_seeds(
    result: Result, split: str, metric: str, members: Sequence[int] | None = None
) -> dict[int, float]:
    """Seed -> figure, of these members (None: of the chosen ones) that have the metric."""
    picked = [result["members"][i] for i in (chosen(result) if members is None else members)]
    return {member["seed"]: member[split][metric] for member in picked if metric in member[split]}
