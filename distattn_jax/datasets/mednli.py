"""MedNLI: natural language inference between sentences of clinical notes."""

from typing import ClassVar

from distattn_jax.data.rows import make_layout
from distattn_jax.datasets.nli_builder import NliBuilder

PATTERN = "mli_{}_v1.jsonl"
FILES = make_layout(PATTERN)


class MedNli(NliBuilder):
    """MedNLI (Romanov and Shivade 2018), from mli_train_v1, mli_dev_v1 and mli_test_v1 (.jsonl).

    The files cannot be downloaded automatically, because users must sign an agreement at
    https://physionet.org/content/mednli. Pass the folder of the files, or its parent folder, as
    `manual_dir`.
    """

    REQUIRED_FILES = "mli_train_v1.jsonl, mli_dev_v1.jsonl and mli_test_v1.jsonl"
    PATTERNS = (PATTERN,)
    PUBLISHED_ROWS: ClassVar = {"train": 11_232, "validation": 1_395, "test": 1_422}
