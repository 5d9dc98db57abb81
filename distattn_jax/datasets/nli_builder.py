"""Pairs of sentences: does the second follow from the first, contradict it, or neither?"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import tensorflow_datasets as tfds

from distattn_jax.data.builder import Example, TextBuilder
from distattn_jax.data.rows import DataError, read_rows

NO_CONSENSUS = "-"


class NliBuilder(TextBuilder):
    """Pairs from files with the columns gold_label, sentence1 and sentence2.

    Pairs on which the annotators did not agree (gold_label "-") are left out and counted.

    Attributes:
      LABELS: what each label of the files is called here; in the order of the classes.
    """

    LABELS: ClassVar[Mapping[str, str]] = {
        label: label for label in ("entailment", "neutral", "contradiction")
    }

    def features(self) -> dict[str, Any]:
        return {
            "premise": tfds.features.Text(),
            "hypothesis": tfds.features.Text(),
            "label": tfds.features.ClassLabel(names=list(dict.fromkeys(self.LABELS.values()))),
        }

    def examples(self, path: Path) -> Iterator[Example]:
        """All labelled pairs of a file; a .txt is tab-separated, with a header, as a .tsv is."""
        columns = ("gold_label", "sentence1", "sentence2")
        kind = ".jsonl" if path.suffix == ".jsonl" else ".tsv"
        for line, row in read_rows(path, columns=columns, kind=kind):
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
