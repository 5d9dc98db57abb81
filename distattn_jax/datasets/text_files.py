"""A person's own text classification: files of texts with their labels."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import tensorflow_datasets as tfds

from distattn_jax.data.builder import Example, TextBuilder
from distattn_jax.data.rows import DataError, find_file, read_rows

SPLITS = ("train", "validation", "test")


class TextFiles(TextBuilder):
    """Texts with labels, in `train`, `validation` and `test` of .csv, .tsv or .jsonl, or + .gz.

    Each file has the columns `text` and `label`. The labels are those of train, sorted:
    `builder.info.features["label"].names`.
    """

    def find_files(self) -> dict[str, Path]:
        return {split: find_file(self.manual_dir, split) for split in SPLITS}

    def features(self) -> dict[str, Any]:
        return {"text": tfds.features.Text(), "label": tfds.features.ClassLabel()}

    def read_splits(self) -> dict[str, Iterable[Example]]:
        labels = sorted({label for _, _, label in self._rows("train")})
        self.info.features["label"].names = labels
        return {split: self._examples(split, labels) for split in SPLITS}

    def _examples(self, split: str, labels: list[str]) -> Iterator[Example]:
        known = set(labels)
        for line, text, label in self._rows(split):
            if label not in known:
                raise DataError(
                    f"{self.raw_files[split]}:{line}: the label must be one of "
                    f"{self.raw_files['train'].name}, {labels[:20]}; got {label!r}."
                )
            yield {"text": text, "label": label}

    def _rows(self, split: str) -> Iterator[tuple[int, str, str]]:
        path = self.raw_files[split]
        for line, row in read_rows(path, columns=("text", "label")):
            label = row["label"].strip()
            if not row["text"].strip():
                raise DataError(f"{path}:{line}: the text is empty.")
            if not label or "\n" in label:
                raise DataError(f"{path}:{line}: the label must be one line; got {label!r}.")
            yield line, row["text"], label
