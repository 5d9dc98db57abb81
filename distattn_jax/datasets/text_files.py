"""Text classification with your own files of texts and labels."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from distattn_jax.data.builder import Example, TextBuilder
from distattn_jax.data.files import DataError
from distattn_jax.data.rows import find_file, read_rows

SPLITS = ("train", "validation", "test")


class TextFiles(TextBuilder):
    """Texts with labels, from the three files `train`, `validation` and `test`.

    Each file is .csv, .tsv, .jsonl or .json, plain or .gz, and has the columns `text` and `label`.
    The classes are the labels of the file `train` in sorted order. After preparation, the list of
    classes is `builder.info.features["label"].names`.
    """

    REQUIRED_FILES = "train, validation and test (.csv, .tsv or .jsonl; text and label)"

    def find_files(self) -> dict[str, Path]:
        return {split: find_file(self.manual_dir, split) for split in SPLITS}

    def read_splits(self) -> dict[str, Iterable[Example]]:
        labels = sorted({label for _, _, label in self._read_rows("train")})
        self.info.features["label"].names = labels
        return {split: self._read_examples(split, labels) for split in SPLITS}

    def _read_examples(self, split: str, labels: list[str]) -> Iterator[Example]:
        """Yield the examples of a split. Raise `DataError` if a label is not in `labels`."""
        known = set(labels)
        for line, text, label in self._read_rows(split):
            if label not in known:
                raise DataError(
                    f"{self.raw_files[split]}:{line}: the label must be one of "
                    f"{self.raw_files['train'].name}, {labels[:20]}; got {label!r}."
                )
            yield {"text": text, "label": label}

    def _read_rows(self, split: str) -> Iterator[tuple[int, str, str]]:
        """Yield the line number, text and label of every row of a split."""
        path = self.raw_files[split]
        for line, row in read_rows(path, columns=("text", "label")):
            label = row["label"].strip()
            if not row["text"].strip():
                raise DataError(f"{path}:{line}: the text is empty.")
            if len(label.splitlines()) != 1:
                raise DataError(f"{path}:{line}: the label must be one line; got {label!r}.")
            yield line, row["text"], label
