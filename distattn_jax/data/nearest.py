"""A task made from a seed: what does the guest think of the service? The nearest opinion says it.

    the awful room we had on friday , service quite pleasant with a superb view        -> good

A sentence names the service once, and holds several opinions at different distances from it; the one
nearest to it is the label, the others are there to mislead. In `test` the distances are longer than
any in `train`, so that a model has to have learned nearness and not a list of distances.
"""

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

OPINIONS = {
    "bad": ("awful", "dreadful", "poor"),
    "fair": ("plain", "ordinary", "average"),
    "good": ("pleasant", "nice", "friendly"),
    "great": ("superb", "wonderful", "brilliant"),
}
LABELS = tuple(OPINIONS)
ASPECT = "service"
FILLER = (
    *("food", "room", "view", "garden", "breakfast", "music", "price", "staff"),
    *("the", "a", "our", "was", "and", "with", "on", "of", "then", "there", "we", "had", "quite"),
    *("friday", "evening", "morning", "once", "again", "too", ",", ";"),
)


class Distances(NamedTuple):
    """How far opinions are from the service, in words: the nearest, and the farthest of the rest."""

    shortest: int
    longest: int
    farthest: int


SPLITS = {
    "train": (8_000, Distances(1, 6, 14)),
    "validation": (1_000, Distances(1, 6, 14)),
    "test": (2_000, Distances(7, 12, 28)),
}


def sentence(draw: random.Random, distances: Distances) -> tuple[str, str]:
    """A text and its label."""
    nearest = draw.randint(distances.shortest, distances.longest)
    others = draw.sample(range(nearest + 1, distances.farthest + 1), draw.randint(1, 3))
    label = draw.choice(LABELS)
    places = {nearest: label} | {other: draw.choice(LABELS) for other in others}
    words = {
        draw.choice((-1, 1)) * distance: draw.choice(OPINIONS[opinion])
        for distance, opinion in places.items()
    }
    words[0] = ASPECT
    first = min(words) - draw.randint(0, 4)
    last = max(words) + draw.randint(0, 4)
    text = " ".join(words.get(i) or draw.choice(FILLER) for i in range(first, last + 1))
    return text, label


def examples(split: str) -> Iterator[dict[str, Any]]:
    """All examples of a split."""
    count, distances = SPLITS[split]
    draw = random.Random(f"nearest {split}")
    for _ in range(count):
        text, label = sentence(draw, distances)
        yield {"text": text, "label": label}
