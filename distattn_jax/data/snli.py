"""SNLI with two labels: does the hypothesis follow from the premise?"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import tensorflow_datasets as tfds

from distattn_jax.data.builder import Example, TextBuilder
from distattn_jax.data.rows import DataError, find_set, read_rows

LABELS = {
    "entailment": "entailment",
    "neutral": "not_entailment",
    "contradiction": "not_entailment",
}
NO_CONSENSUS = "-"
FILES = {"train": "snli_1.0_train", "validation": "snli_1.0_dev", "test": "snli_1.0_test"}
# By how a name ends. The .txt is tab-separated, with a header.
KINDS = {".jsonl": ".jsonl", ".txt": ".tsv", ".tsv": ".tsv"}


class Snli(TextBuilder):
    """Bowman et al. (2015)'s snli_1.0_train, _dev and _test, .jsonl or else .txt or .tsv.

    The columns read are gold_label, sentence1 and sentence2. The files may lie in the folder
    itself or in one folder of it.

    The DA-Transformer paper has SNLI with two classes and does not say how they were made of
    three. Here neutral and contradiction together are not_entailment, and pairs on which the
    annotators did not agree (gold_label "-") are left out. For this speaks that it keeps all
    labelled pairs, 9,842 of dev and 9,824 of test, which are the 10k of the paper's Table 1.
    Against it: the paper's macro-F equals its accuracy, which is rather a sign of classes of equal
    size, and these are one to two. So the rule is ours, and the question is open.
    """

    SOURCES: ClassVar[tuple[str, ...]] = ("https://nlp.stanford.edu/projects/snli/snli_1.0.zip",)
    PUBLISHED: ClassVar[dict[str, int]] = {"train": 549_367, "validation": 9_842, "test": 9_824}

    def files(self) -> dict[str, Path]:
        forms = [{split: stem + end for split, stem in FILES.items()} for end in KINDS]
        return find_set(self.manual_dir, forms)[1]

    def features(self) -> dict[str, Any]:
        return {
            "premise": tfds.features.Text(),
            "hypothesis": tfds.features.Text(),
            "label": tfds.features.ClassLabel(names=["entailment", "not_entailment"]),
        }

    def splits(self) -> dict[str, Iterable[Example]]:
        return {split: self._examples(path) for split, path in self.raw.items()}

    def _examples(self, path: Path) -> Iterator[Example]:
        columns = ("gold_label", "sentence1", "sentence2")
        for line, row in read_rows(path, columns=columns, kind=KINDS[path.suffix]):
            label = row["gold_label"]
            if label == NO_CONSENSUS:
                self.leave_out("pairs without a consensus on their label")
                continue
            if label not in LABELS:
                raise DataError(
                    f"{path}:{line}: gold_label must be one of {[*LABELS, NO_CONSENSUS]}; "
                    f"got {label!r}."
                )
            yield {
                "premise": row["sentence1"].strip(),
                "hypothesis": row["sentence2"].strip(),
                "label": LABELS[label],
            }
