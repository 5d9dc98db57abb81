"""Direction of each metric: whether higher or lower values are better."""

import numpy as np

LOWER_IS_BETTER = frozenset({"loss", "perplexity", "rmse", "mae"})


def score(metric: str, value: float | np.ndarray) -> float | np.ndarray:
    """Return the value of a metric, negated if lower values are better.

    A higher score is therefore better for every metric.
    """
    return -value if metric in LOWER_IS_BETTER else value
