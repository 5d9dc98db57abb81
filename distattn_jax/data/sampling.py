"""Rows drawn by a seed: the same ones on every machine, in every run."""

import random
from collections.abc import Sequence


def draw_disjoint(total: int, sizes: Sequence[int], *, seed: str) -> list[set[int]]:
    """Sets of rows that share none, by their numbers from 0.

    Args:
      total: how many rows there are to draw from.
      sizes: how many rows each set gets.
      seed: any text; another one draws other rows.
    """
    if min(sizes) < 0 or sum(sizes) > total:
        raise ValueError(f"sizes must be 0 or more, in sum at most {total}; got {list(sizes)}.")
    rows = iter(random.Random(seed).sample(range(total), sum(sizes)))
    return [{next(rows) for _ in range(size)} for size in sizes]
