"""Which metrics are better when they are lower."""

import numpy as np

LOWER_IS_BETTER = frozenset({"loss", "rmse", "mae"})


def score(metric: str, value: float | np.ndarray) -> float | np.ndarray:
    """The value of a metric, turned so that higher is better."""
    return -value if metric in LOWER_IS_BETTER else value
