"""MedNLI: inference between sentences of clinical notes."""

from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from distattn_jax.data.builder import Example
from distattn_jax.data.rows import find_set
from distattn_jax.datasets.nli_builder import NliBuilder

FILES = {
    "train": "mli_train_v1.jsonl",
    "validation": "mli_dev_v1.jsonl",
    "test": "mli_test_v1.jsonl",
}


class MedNli(NliBuilder):
    """Romanov and Shivade (2018)'s mli_train_v1.jsonl, mli_dev_v1.jsonl and mli_test_v1.jsonl.

    They are given to those who sign for them, at https://physionet.org/content/mednli, so that
    `manual_dir` must be their folder, or one that has it.
    """

    PUBLISHED_ROWS: ClassVar[dict[str, int]] = {"train": 11_232, "validation": 1_395, "test": 1_422}

    def find_files(self) -> dict[str, Path]:
        return find_set(self.manual_dir, [FILES])[1]

    def read_splits(self) -> dict[str, Iterable[Example]]:
        return {split: self.examples(path) for split, path in self.raw_files.items()}
