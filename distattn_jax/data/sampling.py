"""Random sampling that selects the same rows on every machine and in every run."""

import random
from collections.abc import Sequence


def draw_disjoint(total: int, sizes: Sequence[int], *, seed: str) -> list[set[int]]:
    """Draw disjoint random sets of row indices.

    Args:
      total: Number of rows to draw from. Row indices start at 0.
      sizes: Number of rows in each set.
      seed: Any text. Different seeds draw different rows.
    """
    if min(sizes) < 0 or sum(sizes) > total:
        raise ValueError(f"sizes must be 0 or more and sum to at most {total}; got {list(sizes)}.")
    rows = iter(random.Random(seed).sample(range(total), sum(sizes)))
    return [{next(rows) for _ in range(size)} for size in sizes]
