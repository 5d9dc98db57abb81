"""Stanford Sentiment Treebank (SST), binary: classify sentences of film reviews by sentiment."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import ClassVar, NamedTuple

from distattn_jax.data.builder import Example, TextBuilder
from distattn_jax.data.files import DataError, read_lines
from distattn_jax.data.rows import find_layout, make_layout, read_rows

BINARY: dict[str, str | None] = {"0": "negative", "1": "positive"}
# The label 2 is neutral.
FINE = {"0": "negative", "1": "negative", "2": None, "3": "positive", "4": "positive"}
GLUE_PHRASES = 67_349  # rows of GLUE's training set
NEUTRAL = "neutral sentences"

Labelled = Iterator[tuple[int, str, str]]  # line number, label, text

# The treebank escapes the characters that have a meaning in its trees.
ESCAPES = {"-LRB-": "(", "-RRB-": ")", "-lrb-": "(", "-rrb-": ")", r"\/": "/", r"\*": "*"}
LEAF = re.compile(r"\([0-4] ([^() ]+)\)")
NODE = re.compile(r"\([0-4](?: \n)+\)")  # a node whose parts were replaced by "\n"


class Layout(NamedTuple):
    """One of the published file formats of SST.

    Attributes:
      pattern: File name, in which `{}` stands for train, dev or test.
      read: Function that yields the line number, label and text of every row of a file.
      labels: Dict from each label in the files to its class. Rows whose class is None are left out.
    """

    pattern: str
    read: Callable[[Path], Labelled]
    labels: dict[str, str | None]


def read_trees(path: Path) -> Labelled:
    """Yield the line number, root label and text of every tree of a file with one tree per line.

    A tree such as `(3 (2 The) (4 best))` is a label followed by one word or by more trees.
    """
    for line, text in read_lines(path):
        tree = text.strip("\r\n")
        # Replace leaves, then repeatedly nodes of replaced parts. A valid tree becomes one "\n".
        rest, replaced = LEAF.sub("\n", tree), 1
        while replaced:
            rest, replaced = NODE.subn("\n", rest)
        if rest != "\n":
            raise DataError(
                f"{path}:{line}: must be a tree like (3 (2 The) (4 best)); got {tree[:60]!r}."
            )
        yield line, tree[1], " ".join(LEAF.findall(tree))


def read_glue(path: Path) -> Labelled:
    """Yield the line number, label and sentence of every row of a .tsv file of GLUE."""
    for line, row in read_rows(path):
        if "label" not in row:
            raise DataError(
                f"{path}:1: no column 'label', only {list(row)}: GLUE does not publish the labels "
                "of its test rows. The treebank has them: https://nlp.stanford.edu/sentiment."
            )
        if "sentence" not in row:
            raise DataError(f"{path}:1: no column 'sentence', only {list(row)}.")
        yield line, row["label"], row["sentence"]


def read_label_first(path: Path) -> Labelled:
    """Yield the line number, label and sentence of every line of a file.

    A line has the form `label sentence`.
    """
    for line, text in read_lines(path):
        label, _, sentence = text.partition(" ")
        yield line, label, sentence


GLUE = Layout("{}.tsv", read_glue, BINARY)
LAYOUTS = (
    Layout("{}.txt", read_trees, FINE),
    GLUE,
    Layout("stsa.binary.{}", read_label_first, BINARY),
    Layout("stsa.fine.{}", read_label_first, FINE),
)


class Sst(TextBuilder):
    """Binary SST (Socher et al. 2013), from the first of these layouts that is found.

    - The treebank: train.txt, dev.txt and test.txt with one tree per line. A sentence has the
      label of its root: 0 and 1 are negative, 3 and 4 are positive. Sentences with the neutral
      label 2 are left out.
    - GLUE: train.tsv, dev.tsv and test.tsv. GLUE's training rows are 67,349 phrases instead of
      6,920 sentences. GLUE's published test rows have no labels, so reading test.tsv raises an
      error.
    - stsa.binary.train, .dev and .test, or stsa.fine.train, .dev and .test. Each line is a label
      and a lower-cased sentence.

    The files are in `manual_dir` or in one of its subfolders. Escaped characters of the treebank
    (-LRB-, -RRB-, backslashes) are replaced by the characters they stand for.
    """

    # Digest: datasets/sst/dataset_infos.json in huggingface/datasets 2.5.1.
    URLS: ClassVar[dict[str, str]] = {
        "https://nlp.stanford.edu/sentiment/trainDevTestTrees_PTB.zip": (
            "sha256:5c613a4f673fc74097d523a2c83f38e0cc462984d847b82c7aaf36b01cbbbfcc"
        )
    }
    HOMEPAGE = "https://nlp.stanford.edu/sentiment"
    PUBLISHED_ROWS: ClassVar = {"train": 6_920, "validation": 872, "test": 1_821}
    CLASSES = ("negative", "positive")

    layout: Layout

    def find_files(self) -> dict[str, Path]:
        layouts = [make_layout(layout.pattern) for layout in LAYOUTS]
        number, files = find_layout(self.manual_dir, layouts)
        self.layout = LAYOUTS[number]
        return files

    def read_splits(self) -> dict[str, Iterable[Example]]:
        return {split: self._read_examples(path) for split, path in self.raw_files.items()}

    def published_rows(self) -> Mapping[str, int]:
        if self.layout is GLUE:
            return {**self.PUBLISHED_ROWS, "train": GLUE_PHRASES}
        return self.PUBLISHED_ROWS

    def describe_rows(self) -> tuple[str, ...]:
        lines = super().describe_rows()
        if self.layout is GLUE:
            sentences = self.PUBLISHED_ROWS["train"]
            lines += (f"train contains GLUE's phrases, not the {sentences:,} sentences",)
        return lines

    def _read_examples(self, path: Path) -> Iterator[Example]:
        """Yield the examples of a file, without neutral sentences."""
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
