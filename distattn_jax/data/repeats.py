"""Search for texts that occur in two of the splits train, validation and test.

A model that has seen a text in training may remember its label, so that its score on such a text is
too high. Two examples are the same if their texts consist of the same words, split at whitespace.
One 64-bit hash replaces each example, and needs 8 bytes of memory. A collision is very unlikely.
"""

import array
import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

PAIRS = (("validation", "train"), ("test", "train"), ("test", "validation"))
SPLITS = ("train", "validation", "test")


@dataclasses.dataclass(frozen=True)
class Repeats:
    """Examples of a split that also occur in another split.

    Attributes:
      split: Name of the split.
      other: Name of the other split.
      count: Number of examples of `split` that also occur in `other`.
      total: Number of all examples of `split`.
      place: Position in `split`, from 1, of its first example that also occurs in `other`.
      other_place: Position in `other`, from 1, of the first example that equals it.
    """

    split: str
    other: str
    count: int
    total: int
    place: int
    other_place: int

    def describe(self, unit: str) -> str:
        """Return a clause with the numbers and an example. `unit` is a plural noun."""
        percent = 100 * self.count / self.total
        share = f"{percent:.1f} %" if percent >= 0.1 else "less than 0.1 %"
        return (
            f"{self.split} shares {self.count:,} of its {self.total:,} {unit} ({share}) with "
            f"{self.other}, e.g. number {self.place:,}, which is number {self.other_place:,} of "
            f"{self.other}"
        )


class TextHashes:
    """Hashes of the examples of every split."""

    def __init__(self) -> None:
        self._hashes = {split: array.array("q") for split in SPLITS}

    def add(self, split: str, texts: Iterable[str]) -> None:
        """Add an example, which consists of one or more texts, e.g. a pair of sentences."""
        # `hash` differs between processes, but hashes are compared only within this object.
        self._hashes[split].append(hash(tuple(" ".join(text.split()) for text in texts)))

    def find_repeats(self) -> list[Repeats]:
        """Compare the splits, and return one `Repeats` for each pair that shares an example."""
        hashes = {split: np.asarray(values) for split, values in self._hashes.items()}
        found = []
        for split, other in PAIRS:
            # Skip an empty split: `np.isin` would sort the other one, which can take seconds.
            if not len(hashes[split]):
                continue
            (places,) = np.nonzero(np.isin(hashes[split], hashes[other]))
            if len(places):
                first = int(places[0])
                equal = int(np.argmax(hashes[other] == hashes[split][first]))
                counts = len(places), len(hashes[split])
                found.append(Repeats(split, other, *counts, first + 1, equal + 1))
        return found


def describe_repeats(repeats: Sequence[Repeats], unit: str) -> list[str]:
    """Return a warning of one line about repeated texts, in a list; [] if there are none.

    Args:
      repeats: Repeated examples of each pair of splits.
      unit: Plural noun for the examples, e.g. "texts".
    """
    if not repeats:
        return []
    clauses = "; ".join(each.describe(unit) for each in repeats)
    return [f"warning: {clauses}. Scores on shared {unit} may be too high."]
