"""Read sentences with one tag for each word, from column files (CoNLL-2003) and CoNLL-U files.

A column file has one word on each line, columns separated by tabs or by spaces, and a blank line
after each sentence. The first column is the word and the last column is the tag:

    -DOCSTART- -X- O O

    EU NNP I-NP I-ORG
    rejects VBZ I-VP O

A CoNLL-U file has ten columns separated by tabs: the id of a word (column 1), its form (column 2),
its part of speech (column 4, the tag) and seven more.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from distattn_jax.data.conllu import ENDINGS as CONLLU_ENDINGS
from distattn_jax.data.conllu import FIELDS as CONLLU_FIELDS
from distattn_jax.data.files import DataError, read_lines

COLUMN_ENDINGS = (".txt", ".conll", ".txt.gz", ".conll.gz")
DOCUMENT = "-DOCSTART-"  # first column of a line that begins a document of a column file
COMMENT = "# "
NO_TAG = "_"  # the tag of a word without a part of speech in a CoNLL-U file
NO_BREAK_SPACE = "\N{NO-BREAK SPACE}"
# Ids of a multiword token, such as 1-2, and of an empty node, such as 1.1.
NO_WORD = re.compile(r"\d+-\d+|\d+\.\d+")


class TaggedWord(NamedTuple):
    """Word with its tag.

    Attributes:
      line: Number of the line in the file.
      form: The word. Spaces inside the word are replaced by a no-break space.
      tag: The tag.
    """

    line: int
    form: str
    tag: str


def read_tagged_sentences(path: str | Path) -> Iterator[list[TaggedWord]]:
    """Yield the words of each sentence of a column file or a CoNLL-U file.

    A file whose name ends in .conllu or .conllu.gz is a CoNLL-U file. In CoNLL-U files, multiword
    tokens (`1-2`) are skipped, because their words have lines of their own. Empty nodes (`1.1`) are
    skipped, too. Comments are skipped in all files. A line of a column file is a comment if it
    starts with `# ` and its number of columns differs from that of the words.

    An empty sentence, e.g. between two blank lines, is an empty list. A -DOCSTART- line of a column
    file is a sentence of one word. Raise `DataError` with file and line for a malformed line.
    """
    path = Path(path)
    return _read_conllu(path) if path.name.endswith(CONLLU_ENDINGS) else _read_columns(path)


def _read_columns(path: Path) -> Iterator[list[TaggedWord]]:
    """Yield the sentences of a column file."""
    count = _count_columns(path)
    words: list[TaggedWord] = []
    after_document = False  # The blank line after -DOCSTART- ends no sentence.
    for line, raw in read_lines(path):
        fields = _split_columns(raw)
        if not fields:
            if words or not after_document:
                yield words
            words, after_document = [], False
        elif fields[0] == DOCUMENT:
            if words:
                yield words
            yield [TaggedWord(line, DOCUMENT, fields[-1])]
            words, after_document = [], True
        elif raw.startswith(COMMENT) and len(fields) != count:
            continue
        elif len(fields) < 2 or len(fields) != count:
            raise DataError(
                f"{path}:{line}: must have {max(count, 2)} columns, the first for the word and the "
                f"last for the tag; got {len(fields)}."
            )
        else:
            words.append(_make_word(path, line, fields[0], fields[-1]))
    if words:
        yield words


def _count_columns(path: Path) -> int:
    """Return the number of columns of the first word of a column file."""
    for _, raw in read_lines(path):
        fields = _split_columns(raw)
        if fields and fields[0] != DOCUMENT and not raw.startswith(COMMENT):
            return len(fields)
    return 0


def _split_columns(line: str) -> list[str]:
    """Return the columns of a line, separated by tabs or, in a line without tabs, by spaces.

    Other white space, such as a no-break space, does not separate columns. It may be a word.
    """
    text = line.strip(" \t\r\n")
    parts = re.split("\t" if "\t" in text else " +", text)
    return [part.strip(" ") for part in parts] if text else []


def _read_conllu(path: Path) -> Iterator[list[TaggedWord]]:
    """Yield the sentences of a CoNLL-U file."""
    words: list[TaggedWord] = []
    for line, raw in read_lines(path):
        text = raw.rstrip("\r\n")
        if text.startswith("#"):
            continue
        if not text.strip():
            yield words
            words = []
            continue
        fields = text.split("\t")
        if len(fields) != CONLLU_FIELDS:
            raise DataError(
                f"{path}:{line}: must have {CONLLU_FIELDS} columns, separated by tabs; "
                f"got {len(fields)}."
            )
        if NO_WORD.fullmatch(fields[0]):
            continue
        if fields[0] != str(len(words) + 1):
            raise DataError(
                f"{path}:{line}: the id must be {len(words) + 1}; got {fields[0][:40]!r}."
            )
        if fields[3] == NO_TAG:
            raise DataError(f"{path}:{line}: the part of speech (column 4) is missing.")
        words.append(_make_word(path, line, fields[1], fields[3]))
    if words:
        yield words


def _make_word(path: Path, line: int, form: str, tag: str) -> TaggedWord:
    """Return a word with its tag.

    Raise `DataError` if `form` is empty, or if `tag` is empty or contains white space.
    """
    form = re.sub(" +", NO_BREAK_SPACE, form.strip(" "))
    if not form:
        raise DataError(f"{path}:{line}: the word is empty.")
    if len(tag.split()) != 1:
        raise DataError(f"{path}:{line}: the tag must be one word; got {tag[:40]!r}.")
    return TaggedWord(line, form, tag)
