"""MultiNLI: does a sentence follow from another, contradict it, or neither?"""

from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from distattn_jax.data.builder import Example
from distattn_jax.data.rows import find_set
from distattn_jax.data.sampling import draw_disjoint
from distattn_jax.datasets.nli_builder import NliBuilder

FILES = {"train": "train", "test": "dev_matched", "test_mismatched": "dev_mismatched"}
OPTIONAL = "test_mismatched"
# Names by what stands for the part; the last are GLUE's.
FORMS = ("multinli_1.0_{}.jsonl", "multinli_1.0_{}.txt", "multinli_1.0_{}.tsv", "{}.tsv")
TRAINING = 392_702  # pairs of train as published


class MultiNli(NliBuilder):
    """Williams et al. (2018)'s multinli_1.0_train, _dev_matched and _dev_mismatched.

    They are .jsonl, or else .txt or .tsv, or GLUE's train.tsv, dev_matched.tsv and
    dev_mismatched.tsv, in the folder itself or in one folder of it.

    The labels of the test sets are not public: `test` is dev_matched, and `test_mismatched`, where
    its file is there, dev_mismatched. For `validation`, a tenth of the premises of train are drawn
    by a seed, and all their pairs taken: no premise is in both.
    """

    URLS: ClassVar[tuple[str, ...]] = ("https://cims.nyu.edu/~sbowman/multinli/multinli_1.0.zip",)
    PUBLISHED_ROWS: ClassVar[dict[str, int]] = {"test": 9_815, "test_mismatched": 9_832}

    def find_files(self) -> dict[str, Path]:
        forms = [{split: form.format(part) for split, part in FILES.items()} for form in FORMS]
        without = [{key: form[key] for key in form if key != OPTIONAL} for form in forms]
        both = [form for forms in zip(forms, without, strict=True) for form in forms]
        return find_set(self.manual_dir, both)[1]

    def read_splits(self) -> dict[str, Iterable[Example]]:
        train = list(self.examples(self.raw_files["train"]))
        premises = list(dict.fromkeys(pair["premise"] for pair in train))
        (drawn,) = draw_disjoint(
            len(premises), [round(len(premises) / 10)], seed="multinli validation"
        )
        chosen = {premises[i] for i in drawn}
        return {
            "train": [pair for pair in train if pair["premise"] not in chosen],
            "validation": [pair for pair in train if pair["premise"] in chosen],
            **{
                name: self.examples(path)
                for name, path in self.raw_files.items()
                if name != "train"
            },
        }

    def describe_rows(self) -> tuple[str, ...]:
        """Also how many of the published pairs train and validation have together."""
        lines = super().describe_rows()
        rows = sum(self.info.splits[split].num_examples for split in ("train", "validation"))
        whole = "all of" if rows == TRAINING else f"of {TRAINING:,} in"
        return (*lines, f"train and validation: {rows:,} rows, {whole} the published train set")
