"""SNLI with two labels: does the hypothesis follow from the premise?"""

from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from distattn_jax.data.builder import Example
from distattn_jax.data.rows import find_set
from distattn_jax.datasets.nli_builder import NliBuilder

FILES = {"train": "snli_1.0_train", "validation": "snli_1.0_dev", "test": "snli_1.0_test"}
ENDS = (".jsonl", ".txt", ".tsv")


class Snli(NliBuilder):
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

    LABELS: ClassVar[dict[str, str]] = {
        "entailment": "entailment",
        "neutral": "not_entailment",
        "contradiction": "not_entailment",
    }
    URLS: ClassVar[tuple[str, ...]] = ("https://nlp.stanford.edu/projects/snli/snli_1.0.zip",)
    PUBLISHED_ROWS: ClassVar[dict[str, int]] = {
        "train": 549_367,
        "validation": 9_842,
        "test": 9_824,
    }

    def find_files(self) -> dict[str, Path]:
        forms = [{split: stem + end for split, stem in FILES.items()} for end in ENDS]
        return find_set(self.manual_dir, forms)[1]

    def read_splits(self) -> dict[str, Iterable[Example]]:
        return {split: self.examples(path) for split, path in self.raw_files.items()}
