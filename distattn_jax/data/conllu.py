"""Dependency parses in CoNLL-U files, looked up by text and aligned with the tokens of a tokenizer.

    # newdoc
    # text = It rains.
    1   It      _   _   _   _   2   nsubj   _   SpaceAfter=No
    2   rains   _   _   _   _   0   root    _   _

A word has ten tab-separated fields, of which three are used: the id (field 1), the form (field 2)
and the id of the syntactic head (field 7). A text is everything between two `# newdoc` lines and
contains one or more sentences. In a file without `# newdoc` lines, each sentence is a text of its
own. Parses are looked up by the text with all white space removed. The texts may therefore be in
any order, and a text that occurs several times needs only one parse.
"""

import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32

from distattn_jax.data.files import DataError, read_lines

FIELDS = 10  # id, form, lemma, two tags, features, head, relation, two more
ENDINGS = (".conllu", ".conllu.gz")
NEW_TEXT = "# newdoc"
TEXT = "# text = "
SPACE = re.compile(r"\s")
MAX_DIGITS = 9  # digits of the index of a word
EXCERPT = 60  # characters of a text in an error message


class DependencyParse(NamedTuple):
    """Words of one text and their syntactic heads.

    Attributes:
      ends: Number of characters from the start of the text to the end of each word, not counting
        white space, shape (words,).
      heads: Index of the syntactic head of each word, shape (words,). The first word of the text
        has index 1. Index 0 marks a root, which has no head.
    """

    ends: Int32[np.ndarray, " words"]
    heads: Int32[np.ndarray, " words"]

    def __len__(self) -> int:
        return len(self.ends)

    def find_words(
        self, text: str, spans: Sequence[tuple[int, int]]
    ) -> Int32[np.ndarray, " tokens"]:
        """Return the index of the word in which each token begins. The first word has index 1.

        A token that contains only white space has index 0.

        Args:
          text: Text that was parsed.
          spans: Character offsets of the start and the end of each token in `text`.
        """
        spaces = [space.start() for space in SPACE.finditer(text)]
        bounds = np.asarray(spans, np.int64).reshape(-1, 2)
        starts, stops = (bounds - np.searchsorted(spaces, bounds)).T  # white space not counted
        numbers = 1 + np.searchsorted(self.ends, starts, side="right")
        return np.where(stops > starts, numbers, 0).astype(np.int32)


class ParsedTexts:
    """Dependency parses from CoNLL-U files, looked up by text: `parsed_texts[text]`.

    White space in the text is ignored. If a text occurs more than once, its first parse is used.

    Args:
      path: A .conllu file, plain or .gz, or a folder of such files.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        no_words = np.zeros(0, np.int32)
        self._parses: dict[str, DependencyParse] = {"": DependencyParse(no_words, no_words)}
        for file in _find_files(self.path):
            for text, parse in _read_texts(file):
                self._parses.setdefault(text, parse)

    def __len__(self) -> int:
        return len(self._parses) - 1

    def __getitem__(self, text: str) -> DependencyParse:
        parse = self._parses.get(_remove_space(text))
        if parse is None:
            raise DataError(
                f"{self.path}: must contain a parse of every text, with the same characters; "
                f"found no parse of {text[:EXCERPT]!r}."
            )
        return parse


def _find_files(path: Path) -> list[Path]:
    """Return the CoNLL-U file at this path, or all CoNLL-U files of this folder."""
    if path.is_file():
        return [path]
    files = sorted(file for file in path.glob("*") if file.name.endswith(ENDINGS))
    if not files:
        raise DataError(f"{path}: must be a file, or a folder with files {ENDINGS}; found none.")
    return files


def _read_texts(path: Path) -> Iterator[tuple[str, DependencyParse]]:
    """Yield (text without white space, dependency parse) for each text of a CoNLL-U file."""
    has_documents = any(text.startswith(NEW_TEXT) for _, text in read_lines(path))
    forms: list[str] = []
    heads: list[int] = []
    for starts_text, sentence in _read_sentences(path):
        if forms and (starts_text or not has_documents):
            yield _make_parse(forms, heads)
            forms, heads = [], []
        before = len(forms)
        for form, head in sentence:
            forms.append(form)
            heads.append(head and head + before)
    if not forms:
        raise DataError(f"{path}: has no sentences.")
    yield _make_parse(forms, heads)


def _make_parse(forms: list[str], heads: list[int]) -> tuple[str, DependencyParse]:
    """Return the word forms of a text, joined without spaces, and its dependency parse."""
    ends = np.fromiter(itertools.accumulate(map(len, forms)), np.int32, len(forms))
    return "".join(forms), DependencyParse(ends, np.asarray(heads, np.int32))


def _read_sentences(path: Path) -> Iterator[tuple[bool, list[tuple[str, int]]]]:
    """Yield (starts_text, words) for each sentence; each word is a pair (form, head).

    `starts_text` is True if the sentence is the first one of a text.
    """
    starts_text, comment, comment_line = False, None, 0
    lines: list[tuple[int, list[str]]] = []
    # The added empty line ends the last sentence if the file does not.
    for line, raw in itertools.chain(read_lines(path), [(0, "")]):
        text = raw.rstrip("\r\n")
        if text.startswith("#"):
            starts_text |= text.startswith(NEW_TEXT)
            if text.startswith(TEXT):
                comment, comment_line = text.removeprefix(TEXT), line
        elif text:
            fields = text.split("\t")
            if len(fields) != FIELDS:
                raise DataError(f"{path}:{line}: must have {FIELDS} fields; got {len(fields)}.")
            lines.append((line, fields))
        elif lines:
            words = _read_words(path, lines)
            if comment is not None and _remove_space(comment) != "".join(form for form, _ in words):
                raise DataError(
                    f"{path}:{comment_line}: the text must be the text of its words, "
                    f"{' '.join(form for form, _ in words)[:EXCERPT]!r}; "
                    f"got {comment[:EXCERPT]!r}."
                )
            yield starts_text, words
            starts_text, comment, lines = False, None, []


def _read_words(path: Path, lines: list[tuple[int, list[str]]]) -> list[tuple[str, int]]:
    """Return (form, index of the syntactic head) for every word of a sentence.

    The first word has index 1. Index 0 means that the word has no head. A multiword token such
    as `3-4 don't` is treated as one word. Each part of the token has a head, and the first of these
    heads that lies outside the token is the head of the token. Empty nodes (`5.1`) are skipped.

    `lines` are pairs (line number, fields).
    """
    count = sum(fields[0].isdecimal() for _, fields in lines)
    forms: list[str] = []
    heads: list[list[int]] = []  # for each form, the heads of all its parts
    form_of_word = [0]  # number of the form that contains each word
    last_part = 0  # number of the last word of the current form
    for line, fields in lines:
        number, form, head = fields[0], _remove_space(fields[1]), fields[6]
        if "." in number:
            continue
        first, dash, last = number.partition("-")
        if first != str(len(form_of_word)):
            raise DataError(
                f"{path}:{line}: the id must be {len(form_of_word)}; got {number[:40]!r}."
            )
        if dash and not len(form_of_word) < _parse_index(last) <= count:
            raise DataError(
                f"{path}:{line}: the id must end with a word after {first}, at most {count}; "
                f"got {number[:40]!r}."
            )
        if len(form_of_word) > last_part:
            if not form:
                raise DataError(f"{path}:{line}: the form must not be empty.")
            forms.append(form)
            heads.append([])
            last_part = _parse_index(last or first)
        if not dash:
            if not 0 <= _parse_index(head) <= count:
                raise DataError(f"{path}:{line}: the head must be 0 to {count}; got {head[:40]!r}.")
            heads[-1].append(_parse_index(head))
            form_of_word.append(len(forms))
    return [
        (form, next((form_of_word[head] for head in parts if form_of_word[head] != i), 0))
        for i, (form, parts) in enumerate(zip(forms, heads, strict=True), start=1)
    ]


def _parse_index(text: str) -> int:
    """Return the index of a word, or -1 if the text is not an index."""
    return int(text) if text.isdecimal() and len(text) <= MAX_DIGITS else -1


def _remove_space(text: str) -> str:
    """Remove all white space."""
    return "".join(text.split())
