"""Texts without labels, from your own text files, for language models."""

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import tensorflow_datasets as tfds

from distattn_jax.data.builder import Example, TextBuilder
from distattn_jax.data.files import DataError, read_lines
from distattn_jax.data.rows import SPLIT_STEMS

ENDINGS = (".txt", ".txt.gz")
# If there are only training files, one of every 20 texts is moved to validation, and one to test.
EVERY = 20


class PlainText(TextBuilder):
    """Texts from all text files (.txt or .txt.gz) of a folder. Blank lines separate the texts.

    The first word of a file name selects the split. Files such as `validation.txt` (or `valid`,
    `val`, `dev`) are the validation set, and files such as `test_2.txt` are the test set. All other
    files are training texts. If there are only training files, one of every 20 texts is moved to
    the validation set, and another one to the test set.
    """

    REQUIRED_FILES = "text files (.txt or .txt.gz), in which blank lines separate the texts"

    def find_files(self) -> dict[str, Path]:
        files = sorted(path for path in self.manual_dir.iterdir() if path.name.endswith(ENDINGS))
        if not files:
            raise DataError(f"{self.manual_dir}: must contain text files (.txt or .txt.gz).")
        splits = {_find_split(path) for path in files}
        if len(splits) == 2 or "train" not in splits:
            raise DataError(
                f"{self.manual_dir}: must contain files for train, validation and test, or only "
                f"for train; found {', '.join(sorted(splits))}."
            )
        return {path.name: path for path in files}

    def features(self) -> dict[str, Any]:
        return {"text": tfds.features.Text()}

    def read_splits(self) -> dict[str, Iterable[Example]]:
        has_held_out = any(_find_split(path) != "train" for path in self.raw_files.values())
        read = self._read_texts if has_held_out else self._select_texts
        return {split: read(split) for split in SPLIT_STEMS}

    def _read_texts(self, split: str) -> Iterator[Example]:
        """Yield the texts of all files of a split."""
        for _, path in sorted(self.raw_files.items()):
            if _find_split(path) == split:
                yield from ({"text": text} for text in _read_blocks(path))

    def _select_texts(self, split: str) -> Iterator[Example]:
        """Yield the texts of a split, for a folder that contains only training files.

        Of every 20 texts, one is in the validation set and another one is in the test set.
        """
        places = {"validation": EVERY // 2 - 1, "test": EVERY - 1}
        for i, example in enumerate(self._read_texts("train")):
            place = i % EVERY
            if place == places.get(split) or (split == "train" and place not in places.values()):
                yield example


def _find_split(path: Path) -> str:
    """Return the split of a file: e.g. "validation" for dev.txt, and "train" for chapter_1.txt."""
    word = "".join(itertools.takewhile(str.isalpha, path.name.lower()))
    return next((split for split, words in SPLIT_STEMS.items() if word in words), "train")


def _read_blocks(path: Path) -> Iterator[str]:
    """Yield the texts of a file. Blank lines separate the texts."""
    block: list[str] = []
    for _, line in read_lines(path):
        if line.strip():
            block.append(line.rstrip("\r\n"))
        elif block:
            yield "\n".join(block)
            block = []
    if block:
        yield "\n".join(block)
