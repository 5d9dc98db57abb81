"""A task made from a seed: what does the guest think of the service? The nearest opinion says it.

    the awful room we had on friday , service quite pleasant with a superb view        -> good

A sentence names the service once, and holds several opinions at different distances from it. The
nearest is the label, the others are there to mislead. In `test` the distances are longer than in
`train`, and so are the sentences: a model has to have learned nearness, not a list of places.
"""

import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow_datasets as tfds

from distattn_jax.data.builder import Example, TextBuilder

OPINIONS = {
    "bad": ("awful", "dreadful", "poor"),
    "fair": ("plain", "ordinary", "average"),
    "good": ("pleasant", "nice", "friendly"),
    "great": ("superb", "wonderful", "brilliant"),
}
LABELS = tuple(OPINIONS)
ASPECT = "service"
OTHER_WORDS = (
    *("food", "room", "view", "garden", "breakfast", "music", "price", "staff"),
    *("the", "a", "our", "was", "and", "with", "on", "of", "then", "there", "we", "had", "quite"),
    *("friday", "evening", "morning", "once", "again", "too", ",", ";"),
)
LEAD = 3  # every other opinion is at least so many words farther away than the nearest


class Kind(NamedTuple):
    """What the sentences of a split are like, counted in words.

    Attributes:
      size: how many there are.
      nearest: the longest distance of the nearest opinion; the shortest is 1.
      farthest: the longest distance of the others.
      margin: the most other words before the first and after the last of these.
    """

    size: int
    nearest: int
    farthest: int
    margin: int


SPLITS = {
    "train": Kind(16_000, nearest=4, farthest=10, margin=6),
    "validation": Kind(1_000, nearest=4, farthest=10, margin=6),
    "test": Kind(2_000, nearest=6, farthest=14, margin=20),
}


def sentence(draw: random.Random, kind: Kind) -> tuple[str, str]:
    """A text and its label."""
    nearest = draw.randint(1, kind.nearest)
    others = draw.sample(range(nearest + LEAD, kind.farthest + 1), draw.randint(1, 3))
    label = draw.choice(LABELS)
    opinions = {nearest: label} | {distance: draw.choice(LABELS) for distance in others}
    words = {
        draw.choice((-1, 1)) * distance: draw.choice(OPINIONS[opinion])
        for distance, opinion in opinions.items()
    }
    words[0] = ASPECT
    first = min(words) - draw.randint(0, kind.margin)
    last = max(words) + draw.randint(0, kind.margin)
    text = " ".join(words.get(i) or draw.choice(OTHER_WORDS) for i in range(first, last + 1))
    return text, label


def examples(split: str) -> Iterator[Example]:
    """All examples of a split."""
    draw = random.Random(f"nearest {split}")
    for _ in range(SPLITS[split].size):
        text, label = sentence(draw, SPLITS[split])
        yield {"text": text, "label": label}


class Nearest(TextBuilder):
    """The task as a TFDS builder. Its raw file is this one: when it changes, so do the examples."""

    def __init__(self, *, data_dir: str | Path, manual_dir: str | Path = Path(__file__).parent):
        super().__init__(manual_dir=manual_dir, data_dir=data_dir)

    def find_files(self) -> dict[str, Path]:
        return {"nearest": Path(__file__)}

    def features(self) -> dict[str, Any]:
        return {
            "text": tfds.features.Text(),
            "label": tfds.features.ClassLabel(names=list(LABELS)),
        }

    def read_splits(self) -> dict[str, Iterable[Example]]:
        return {split: examples(split) for split in SPLITS}
