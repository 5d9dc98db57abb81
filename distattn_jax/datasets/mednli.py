"""MedNLI: natural language inference between sentences of clinical notes."""

from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from distattn_jax.data.builder import Example
from distattn_jax.data.rows import find_layout
from distattn_jax.datasets.nli_builder import NliBuilder

FILES = {
    "train": "mli_train_v1.jsonl",
    "validation": "mli_dev_v1.jsonl",
    "test": "mli_test_v1.jsonl",
}


class MedNli(NliBuilder):
    """MedNLI (Romanov and Shivade 2018), from mli_train_v1, mli_dev_v1 and mli_test_v1 (.jsonl).

    The files cannot be downloaded automatically, because users must sign an agreement at
    https://physionet.org/content/mednli. Pass the folder of the files, or its parent folder, as
    `manual_dir`.
    """

    REQUIRED_FILES = "mli_train_v1.jsonl, mli_dev_v1.jsonl and mli_test_v1.jsonl"

    PUBLISHED_ROWS: ClassVar[dict[str, int]] = {"train": 11_232, "validation": 1_395, "test": 1_422}

    def find_files(self) -> dict[str, Path]:
        return find_layout(self.manual_dir, [FILES])[1]

    def read_splits(self) -> dict[str, Iterable[Example]]:
        return {split: self.read_pairs(path) for split, path in self.raw_files.items()}
