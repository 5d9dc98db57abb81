"""Sequence labelling with your own CoNLL files: named entities, chunks or parts of speech."""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import tensorflow_datasets as tfds

from distattn_jax.data.builder import Example, TextBuilder
from distattn_jax.data.conll import (
    COLUMN_ENDINGS,
    CONLLU_ENDINGS,
    DOCUMENT,
    TaggedWord,
    read_tagged_sentences,
)
from distattn_jax.data.files import DataError
from distattn_jax.data.rows import SPLIT_STEMS, find_one

ENDINGS = (*COLUMN_ENDINGS, *CONLLU_ENDINGS)
SPAN_TAG = re.compile(r"O|[BIES]-.+")  # of the schemes IOB1, IOB2 and IOBES
PART_TAG = re.compile(r"[BIES]-.+")


class Conll(TextBuilder):
    """Sentences with one tag for each word, from the three files `train`, `validation` and `test`.

    The files are column files (.txt or .conll) or CoNLL-U files (.conllu), plain or .gz, see
    `distattn_jax.data.conll`. The validation file may also be named `valid`, `val` or `dev`. The
    field `text` of an example contains its words, separated by single spaces. The field `label`
    contains the tag of each word.

    A tag with the prefix `B-`, `I-`, `E-` or `S-`, such as `B-PER`, marks a span of words. If the
    files contain such a tag, every tag must have one of these prefixes or be `O`. Otherwise every
    tag, such as a part of speech, describes a single word. The classes are all tags of the three
    files in sorted order.
    """

    REQUIRED_FILES = "train, validation (or dev) and test (.txt, .conll or .conllu)"
    UNIT = "sentences"

    def find_files(self) -> dict[str, Path]:
        files = {split: self._find_file(stems) for split, stems in SPLIT_STEMS.items()}
        if len({path.name.endswith(CONLLU_ENDINGS) for path in files.values()}) > 1:
            names = ", ".join(path.name for path in files.values())
            raise DataError(
                f"{self.manual_dir}: the files must be all CoNLL-U files (.conllu) or all column "
                f"files (.txt, .conll); found {names}."
            )
        return files

    def features(self) -> dict[str, Any]:
        return {
            "text": tfds.features.Text(),
            "label": tfds.features.Sequence(tfds.features.ClassLabel()),
        }

    def read_splits(self) -> dict[str, Iterable[Example]]:
        places: dict[str, str] = {}  # file and line of the first word with each tag
        for path in self.raw_files.values():
            for words in read_tagged_sentences(path):
                if not _begins_document(words):
                    for word in words:
                        places.setdefault(word.tag, f"{path}:{word.line}")
        _check_tags(places)
        self.info.features["label"].feature.names = sorted(places)
        return {split: self._read_examples(split) for split in self.raw_files}

    def _find_file(self, stems: tuple[str, ...]) -> Path:
        """Find the file of a split, e.g. dev.conllu. `stems` are its possible names, e.g. dev."""
        names = [stem + ending for stem in stems for ending in ENDINGS]
        requirement = f"one file {' or '.join(stems)} with the ending {', '.join(ENDINGS)}"
        return find_one(self.manual_dir, names, requirement)

    def _read_examples(self, split: str) -> Iterator[Example]:
        """Yield the sentences of a split as examples.

        Empty sentences and -DOCSTART- lines are left out, and their numbers are recorded.
        """
        for words in read_tagged_sentences(self.raw_files[split]):
            if not words:
                self.leave_out(f"empty sentences of {split}")
            elif _begins_document(words):
                self.leave_out(f"{DOCUMENT} lines of {split}")
            else:
                yield {
                    "text": " ".join(word.form for word in words),
                    "label": [word.tag for word in words],
                }


def _begins_document(words: list[TaggedWord]) -> bool:
    """Return True if a sentence is the -DOCSTART- line of a column file."""
    return bool(words) and words[0].form == DOCUMENT


def _check_tags(places: Mapping[str, str]) -> None:
    """Raise `DataError` if only some of the tags mark spans, as `B-PER` does. `O` is ignored.

    `places` is a dict from each tag to the file and line of the first word with this tag.
    """
    if not any(map(PART_TAG.fullmatch, places)):
        return
    for tag, place in places.items():
        if not SPAN_TAG.fullmatch(tag):
            advice = ""
            if re.fullmatch(r"[A-Z]-.+", tag):
                advice = ", of an unknown scheme. In BILOU, L- means E- and U- means S-"
            raise DataError(
                f"{place}: the tag must be O, or a type after B-, I-, E- or S- (schemes IOB1, IOB2 "
                f"and IOBES); got {tag[:40]!r}{advice}."
            )
