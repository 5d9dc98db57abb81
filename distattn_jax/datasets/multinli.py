"""MultiNLI: natural language inference between sentences of ten genres."""

from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from distattn_jax.data.builder import Example, draw_disjoint
from distattn_jax.data.rows import find_layout, make_layout
from distattn_jax.datasets.nli_builder import NliBuilder

FILES = {"train": "train", "test": "dev_matched", "test_mismatched": "dev_mismatched"}
OPTIONAL = "test_mismatched"
TRAINING_PAIRS = 392_702  # pairs of the published training set


class MultiNli(NliBuilder):
    """MultiNLI (Williams et al. 2018), from multinli_1.0_train, _dev_matched and _dev_mismatched.

    The files are .jsonl, .txt or .tsv, or they are GLUE's train.tsv, dev_matched.tsv and
    dev_mismatched.tsv. All files are in `manual_dir` or in one of its subfolders. The file
    dev_mismatched may be missing.

    The labels of the published test sets are not public. Therefore the split `test` is dev_matched
    and the split `test_mismatched` is dev_mismatched. A tenth of the premises of the training file
    is drawn with a fixed seed. All pairs with these premises form the split `validation`, and all
    other pairs form the split `train`.
    """

    # {} is a value of FILES. The last layout is GLUE's.
    PATTERNS = ("multinli_1.0_{}.jsonl", "multinli_1.0_{}.txt", "multinli_1.0_{}.tsv", "{}.tsv")
    # Digest: url_checksums/multi_nli.txt in tensorflow/datasets.
    URLS: ClassVar[dict[str, str]] = {
        "https://cims.nyu.edu/~sbowman/multinli/multinli_1.0.zip": (
            "sha256:049f507b9e36b1fcb756cfd5aeb3b7a0cfcb84bf023793652987f7e7e0957822"
        )
    }
    HOMEPAGE = "https://cims.nyu.edu/~sbowman/multinli"
    PUBLISHED_ROWS: ClassVar = {"test": 9_815, "test_mismatched": 9_832}

    def find_files(self) -> dict[str, Path]:
        layouts = []
        for pattern in self.PATTERNS:
            layout = make_layout(pattern, FILES)
            layouts += [layout, {key: layout[key] for key in layout if key != OPTIONAL}]
        return find_layout(self.manual_dir, layouts)[1]

    def read_splits(self) -> dict[str, Iterable[Example]]:
        train = list(self.read_pairs(self.raw_files["train"]))
        premises = list(dict.fromkeys(pair["premise"] for pair in train))
        size = round(len(premises) / 10)
        (drawn,) = draw_disjoint(len(premises), [size], seed="multinli validation")
        chosen = {premises[i] for i in drawn}
        tests = {name: path for name, path in self.raw_files.items() if name != "train"}
        return {
            "train": [pair for pair in train if pair["premise"] not in chosen],
            "validation": [pair for pair in train if pair["premise"] in chosen],
            **{name: self.read_pairs(path) for name, path in tests.items()},
        }

    def describe_rows(self) -> tuple[str, ...]:
        """Return lines of text that describe the splits.

        The last line compares the total size of train and validation with the size of the published
        training set.
        """
        lines = super().describe_rows()
        rows = sum(self.info.splits[split].num_examples for split in ("train", "validation"))
        share = "all of" if rows == TRAINING_PAIRS else f"of {TRAINING_PAIRS:,} in"
        return (*lines, f"train and validation: {rows:,} rows, {share} the published train set")
