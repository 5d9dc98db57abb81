"""Base class of the natural language inference (NLI) data sets: pairs of sentences with a label."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import tensorflow_datasets as tfds

from distattn_jax.data.builder import Example, TextBuilder
from distattn_jax.data.files import DataError
from distattn_jax.data.rows import find_layout, make_layout, read_rows

NO_CONSENSUS = "-"


class NliBuilder(TextBuilder):
    """Builder for NLI files with the columns gold_label, sentence1 and sentence2.

    Examples have the features `premise`, `hypothesis` and `label`. Pairs without a consensus of the
    annotators (gold_label "-") are left out, and their number is reported.

    Attributes:
      PATTERNS: File names, one for each published layout. `{}` stands for train, dev or test.
      LABELS: Dict from each label in the files to the name of its class. Its order defines the
        class indices.
    """

    UNIT = "pairs"
    PATTERNS: ClassVar[tuple[str, ...]]
    LABELS: ClassVar[Mapping[str, str]] = {
        label: label for label in ("entailment", "neutral", "contradiction")
    }

    def features(self) -> dict[str, Any]:
        return {
            "premise": tfds.features.Text(),
            "hypothesis": tfds.features.Text(),
            "label": tfds.features.ClassLabel(names=list(dict.fromkeys(self.LABELS.values()))),
        }

    def list_texts(self, example: Example) -> tuple[str, str]:
        return example["premise"], example["hypothesis"]

    def find_files(self) -> dict[str, Path]:
        return find_layout(self.manual_dir, [make_layout(name) for name in self.PATTERNS])[1]

    def read_splits(self) -> dict[str, Iterable[Example]]:
        return {split: self.read_pairs(path) for split, path in self.raw_files.items()}

    def read_pairs(self, path: Path) -> Iterator[Example]:
        """Yield all labelled pairs of a .jsonl file, or of a tab-separated file with a header."""
        columns = ("gold_label", "sentence1", "sentence2")
        suffix = ".jsonl" if path.suffix == ".jsonl" else ".tsv"
        for line, row in read_rows(path, columns=columns, suffix=suffix):
            label = row["gold_label"]
            if label == NO_CONSENSUS:
                self.leave_out("pairs without a consensus on their label")
                continue
            if label not in self.LABELS:
                raise DataError(
                    f"{path}:{line}: gold_label must be one of {[*self.LABELS, NO_CONSENSUS]}; "
                    f"got {label!r}."
                )
            yield {
                "premise": row["sentence1"].strip(),
                "hypothesis": row["sentence2"].strip(),
                "label": self.LABELS[label],
            }
