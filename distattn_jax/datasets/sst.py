"""The Stanford Sentiment Treebank, binary: is a sentence of a film review negative or positive?"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import tensorflow_datasets as tfds

from distattn_jax.data.builder import Example, TextBuilder
from distattn_jax.data.rows import DataError, find_set, read_lines, read_rows

LABELS = ("negative", "positive")
BINARY: dict[str, str | None] = {"0": "negative", "1": "positive"}
FINE = {"0": "negative", "1": "negative", "2": None, "3": "positive", "4": "positive"}  # 2: neutral
PHRASES = 67_349  # of GLUE's training set
NEUTRAL = "neutral sentences"

Labelled = Iterator[tuple[int, str, str]]  # line, label, text

# What the treebank writes for characters that mean something in its trees.
ESCAPES = {"-LRB-": "(", "-RRB-": ")", "-lrb-": "(", "-rrb-": ")", r"\/": "/", r"\*": "*"}
LEAF = re.compile(r"\([0-4] ([^() ]+)\)")
NODE = re.compile(r"\([0-4](?: \n)+\)")  # of parts that are "\n", which no line holds


class Layout(NamedTuple):
    """One of the published forms of the set.

    Attributes:
      files: by split.
      read: gives line, label and text of every row of a file.
      labels: what each label means; those of None are left out.
    """

    files: dict[str, str]
    read: Callable[[Path], Labelled]
    labels: dict[str, str | None]


def trees(path: Path) -> Labelled:
    """A tree a line, `(3 (2 The) (4 best))`: a label, and a word or more trees."""
    for line, text in read_lines(path):
        tree = text.strip("\r\n")
        rest, found = LEAF.sub("\n", tree), 1
        while found:
            rest, found = NODE.subn("\n", rest)
        if rest != "\n":
            raise DataError(
                f"{path}:{line}: must be a tree like (3 (2 The) (4 best)); got {tree[:60]!r}."
            )
        yield line, tree[1], " ".join(LEAF.findall(tree))


def tab_separated(path: Path) -> Labelled:
    """GLUE's columns sentence and label."""
    for line, row in read_rows(path):
        if "label" not in row:
            raise DataError(
                f"{path}:1: no column 'label', only {list(row)}: GLUE keeps the labels of its test "
                "rows to itself. The treebank has them: https://nlp.stanford.edu/sentiment."
            )
        if "sentence" not in row:
            raise DataError(f"{path}:1: no column 'sentence', only {list(row)}.")
        yield line, row["label"], row["sentence"]


def label_first(path: Path) -> Labelled:
    """A label, a space and a sentence a line."""
    for line, text in read_lines(path):
        label, _, sentence = text.partition(" ")
        yield line, label, sentence


def _layout(name: str, read: Callable[[Path], Labelled], labels: dict[str, str | None]) -> Layout:
    words = {"train": "train", "validation": "dev", "test": "test"}
    return Layout({split: name.format(word) for split, word in words.items()}, read, labels)


GLUE = _layout("{}.tsv", tab_separated, BINARY)
LAYOUTS = (
    _layout("{}.txt", trees, FINE),
    GLUE,
    _layout("stsa.binary.{}", label_first, BINARY),
    _layout("stsa.fine.{}", label_first, FINE),
)


class Sst(TextBuilder):
    """Binary SST, of the first of these that is in the folder, or in one folder of it.

    - The treebank: train.txt, dev.txt and test.txt, of trees. A sentence has the label of its root:
      0 and 1 are negative, 3 and 4 positive; those of 2, neutral, are left out.
    - GLUE: train.tsv, dev.tsv and test.tsv. Its training rows are 67,349 phrases, not the 6,920
      sentences; and its test rows as published have no labels, which is an error here.
    - stsa.binary.train, .dev and .test, or stsa.fine.train, .dev and .test: a label and a sentence
      a line, lower-cased.

    Brackets, slashes and asterisks come as such: the treebank writes -LRB- and -RRB- for the first,
    and a backslash before the others.
    """

    URLS: ClassVar[tuple[str, ...]] = (
        "https://nlp.stanford.edu/sentiment/trainDevTestTrees_PTB.zip",
    )
    PUBLISHED_ROWS: ClassVar[dict[str, int]] = {"train": 6_920, "validation": 872, "test": 1_821}

    layout: Layout

    def find_files(self) -> dict[str, Path]:
        form, files = find_set(self.manual_dir, [layout.files for layout in LAYOUTS])
        self.layout = LAYOUTS[form]
        return files

    def features(self) -> dict[str, Any]:
        return {
            "text": tfds.features.Text(),
            "label": tfds.features.ClassLabel(names=list(LABELS)),
        }

    def read_splits(self) -> dict[str, Iterable[Example]]:
        return {split: self._examples(path) for split, path in self.raw_files.items()}

    def published_rows(self) -> Mapping[str, int]:
        return (
            {**self.PUBLISHED_ROWS, "train": PHRASES}
            if self.layout is GLUE
            else self.PUBLISHED_ROWS
        )

    def describe_rows(self) -> tuple[str, ...]:
        lines = super().describe_rows()
        if self.layout is GLUE:
            lines += (
                "train is of GLUE's phrases, not of the "
                f"{self.PUBLISHED_ROWS['train']:,} sentences",
            )
        return lines

    def _examples(self, path: Path) -> Iterator[Example]:
        labels = self.layout.labels
        for line, label, text in self.layout.read(path):
            if label not in labels:
                raise DataError(
                    f"{path}:{line}: the label must be one of {list(labels)}; got {label!r}."
                )
            for escaped, plain in ESCAPES.items():
                text = text.replace(escaped, plain)
            if not text.strip():
                raise DataError(f"{path}:{line}: the sentence is empty.")
            if labels[label] is None:
                self.leave_out(NEUTRAL)
            else:
                yield {"text": text.strip(), "label": labels[label]}
