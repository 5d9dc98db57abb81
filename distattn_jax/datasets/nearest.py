"""Synthetic task: classify a sentence by the opinion word that is nearest to the word "service".

    the awful room we had on friday , service quite pleasant with a superb view        -> good

A sentence contains "service" once and several opinion words at different distances from it. The
nearest opinion is the label. Sentences and distances are longer in `test` than in `train`, so that
a model must learn to compare distances instead of memorizing positions.
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
LEAD = 3  # minimum number of words by which other opinions are farther away than the nearest


class SplitOptions(NamedTuple):
    """Number of sentences of a split, and limits on the word distances in a sentence.

    Attributes:
      size: Number of sentences.
      nearest: Maximum distance of the nearest opinion from "service". The minimum is 1.
      farthest: Maximum distance of the other opinions from "service".
      margin: Maximum number of words before the first and after the last of the opinion words and
        "service".
    """

    size: int
    nearest: int
    farthest: int
    margin: int


SPLITS = {
    "train": SplitOptions(16_000, nearest=4, farthest=10, margin=6),
    "validation": SplitOptions(1_000, nearest=4, farthest=10, margin=6),
    "test": SplitOptions(2_000, nearest=6, farthest=14, margin=20),
}


def make_sentence(generator: random.Random, options: SplitOptions) -> tuple[str, str]:
    """Draw a sentence and return its text and its label."""
    nearest = generator.randint(1, options.nearest)
    others = generator.sample(range(nearest + LEAD, options.farthest + 1), generator.randint(1, 3))
    label = generator.choice(LABELS)
    opinions = {nearest: label} | {distance: generator.choice(LABELS) for distance in others}
    words = {
        generator.choice((-1, 1)) * distance: generator.choice(OPINIONS[opinion])
        for distance, opinion in opinions.items()
    }
    words[0] = ASPECT
    first = min(words) - generator.randint(0, options.margin)
    last = max(words) + generator.randint(0, options.margin)
    text = " ".join(words.get(i) or generator.choice(OTHER_WORDS) for i in range(first, last + 1))
    return text, label


def make_examples(split: str) -> Iterator[Example]:
    """Yield all examples of a split, drawn with a fixed seed."""
    generator = random.Random(f"nearest {split}")
    for _ in range(SPLITS[split].size):
        text, label = make_sentence(generator, SPLITS[split])
        yield {"text": text, "label": label}


class Nearest(TextBuilder):
    """Synthetic sentences labelled by the opinion word that is nearest to the word "service".

    The raw file of this builder is its own source file, so that the examples are prepared again
    after a change of the code.

    Args:
      data_dir: Folder for prepared files.
      manual_dir: Folder of the source file. Keep the default.
    """

    def __init__(self, *, data_dir: str | Path, manual_dir: str | Path = Path(__file__).parent):
        super().__init__(manual_dir=manual_dir, data_dir=data_dir)

    def find_files(self) -> dict[str, Path]:
        return {"nearest": Path(__file__)}

    def features(self) -> dict[str, Any]:
        return {"text": tfds.features.Text(), "label": tfds.features.ClassLabel(names=list(LABELS))}

    def read_splits(self) -> dict[str, Iterable[Example]]:
        return {split: make_examples(split) for split in SPLITS}
