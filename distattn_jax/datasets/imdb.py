"""IMDB: classify whole film reviews by sentiment (Maas et al. 2011)."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import ClassVar

from distattn_jax.data.builder import Example, TextBuilder, hold_out_tenth
from distattn_jax.data.files import DataError, read_text
from distattn_jax.data.rows import find_file, read_rows

FOLDERS = {"neg": "negative", "pos": "positive"}  # in the folders train and test
LABELS = FOLDERS | {
    "0": "negative",
    "1": "positive",
    "negative": "negative",
    "positive": "positive",
}
LINE_BREAKS = re.compile(r"\s*(?:<br\s*/?>\s*)+")


class Imdb(TextBuilder):
    """IMDB reviews, from the published folders or from two files with the columns text and label.

    The published archive has one file for each review, such as train/pos/0_9.txt. Alternatively,
    `manual_dir` contains two files `train` and `test` (.csv, .tsv, .jsonl or .json, plain or .gz),
    with one review per row. Line breaks (<br />) become spaces. Reviews without a label
    (train/unsup) are not read. The validation split is a tenth of the training reviews, drawn with
    a fixed seed.
    """

    URLS: ClassVar[dict[str, str]] = {
        "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz": (
            "sha256:c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe"
        )
    }
    HOMEPAGE = "https://ai.stanford.edu/~amaas/data/sentiment/"
    PUBLISHED_ROWS: ClassVar = {"train": 22_500, "validation": 2_500, "test": 25_000}
    CLASSES = ("negative", "positive")

    def find_files(self) -> dict[str, Path]:
        folder = self.manual_dir
        if (folder / "aclImdb").is_dir():
            folder = folder / "aclImdb"
        if not (folder / "train").is_dir():
            return {split: find_file(folder, split) for split in ("train", "test")}
        files: dict[str, Path] = {}
        for split in ("train", "test"):
            for label in FOLDERS:
                found = sorted((folder / split / label).glob("*.txt"), key=_review_number)
                if not found:
                    raise DataError(f"{folder / split / label}: must contain reviews (.txt files).")
                files |= {f"{split}/{label}/{path.name}": path for path in found}
        return files

    def read_splits(self) -> dict[str, Iterable[Example]]:
        return hold_out_tenth(self._read_examples, seed="imdb validation")

    def _read_examples(self, split: str) -> Iterator[Example]:
        """Yield the examples of a published split, `train` or `test`."""
        reader = self._read_rows if split in self.raw_files else self._read_reviews
        for place, text, label in reader(split):
            review = LINE_BREAKS.sub(" ", text).strip()
            if not review:
                raise DataError(f"{place}: the review is empty.")
            yield {"text": review, "label": label}

    def _read_reviews(self, split: str) -> Iterator[tuple[str, str, str]]:
        """Yield the path, text and label of every review in the published folders."""
        for key, path in self.raw_files.items():
            part, label, _ = key.split("/")
            if part == split:
                yield str(path), read_text(path), FOLDERS[label]

    def _read_rows(self, split: str) -> Iterator[tuple[str, str, str]]:
        """Yield the location (`path:line`), text and label of every row of a split's file."""
        path = self.raw_files[split]
        for line, row in read_rows(path, columns=("text", "label")):
            label = row["label"].strip()
            if label not in LABELS:
                raise DataError(
                    f"{path}:{line}: the label must be one of {list(LABELS)}; got {label!r}."
                )
            yield f"{path}:{line}", row["text"], LABELS[label]


def _review_number(path: Path) -> tuple[int, str]:
    """Return a sort key: the number before the underscore in 0_9.txt, then the name."""
    number = path.name.split("_")[0]
    return (int(number) if number.isdecimal() else 0, path.name)
