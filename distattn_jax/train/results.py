"""Results of finished runs, and the selection of the best hyperparameters of a run.

A result is the content of result.json. A run trains several models side by side, one for each seed
and each setting. A setting is one combination of hyperparameter values. Tables and figures report
the setting with the best validation score, averaged over seeds.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Result = Mapping[str, Any]
# Fractions from 0 to 1 that tables and progress lines show as percentages.
PERCENT_METRICS = (
    *("accuracy", "macro_precision", "macro_recall", "macro_f"),
    *("f1", "precision", "recall"),
    *("auc", "mrr", "ndcg@5", "ndcg@10"),
    *(f"recall@{k}" for k in (1, 3, 5, 20)),
)
LOWER_IS_BETTER = frozenset({"loss", "perplexity", "rmse", "mae"})


def score(metric: str, value: float | np.ndarray) -> float | np.ndarray:
    """Return the value of a metric, negated if lower values of the metric are better.

    For every metric, a higher score is therefore better.
    """
    return -value if metric in LOWER_IS_BETTER else value


def group_by_setting(result: Result) -> list[list[int]]:
    """Group the models of a run by their hyperparameters.

    Returns:
      For each group, the indices of its models. They differ only in their seeds.
    """
    groups: dict[tuple[tuple[str, float], ...], list[int]] = {}
    for i, member in enumerate(result["members"]):
        groups.setdefault(tuple(sorted(member["setting"].items())), []).append(i)
    return list(groups.values())


def select_members(result: Result) -> list[int]:
    """Return the indices of the models with the best combination of hyperparameters.

    The best combination has the best validation score, averaged over the models that differ only in
    their seeds. If several combinations are equally good, the first one is selected.
    """
    criterion = result["criterion"]

    def mean_score(members: list[int]) -> float:
        values = values_by_seed(result, "validation", criterion, members)
        return float(score(criterion, float(np.mean(list(values.values())))))

    return max(group_by_setting(result), key=mean_score)


def best_member(result: Result, members: Sequence[int] | None = None) -> int:
    """Return the index of the model with the best validation score.

    Args:
      result: Result of one run.
      members: Indices of the models to choose from; None for all models of the run.
    """
    criterion = result["criterion"]
    scores = [score(criterion, member["validation"][criterion]) for member in result["members"]]
    return max(range(len(scores)) if members is None else members, key=scores.__getitem__)


def measured_splits(results: Sequence[Result]) -> tuple[str, ...]:
    """Return the splits on which all runs were evaluated.

    The result is ("validation", "test"), or ("validation",) if a run was not evaluated on the test
    set. A hyperparameter search is not evaluated on the test set.
    """
    has_test = all("test" in result["members"][0] for result in results)
    return ("validation", "test") if has_test else ("validation",)


def values_by_seed(
    result: Result, split: str, metric: str, members: Sequence[int] | None = None
) -> dict[int, float]:
    """Return a dict from the seed of a model to the value of a metric.

    Models without this metric are omitted.

    Args:
      result: Result of one run.
      split: "validation" or "test".
      metric: Name of the metric.
      members: Indices of the models to include; None for the models with the best hyperparameters.
    """
    indices = select_members(result) if members is None else members
    chosen = [result["members"][i] for i in indices]
    return {member["seed"]: member[split][metric] for member in chosen if metric in member[split]}
