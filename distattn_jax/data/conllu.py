"""A parser's heads from CoNLL-U files, found by their text and laid on the pieces of a tokenizer.

    # newdoc
    # text = It rains.
    1   It      _   _   _   _   2   nsubj   _   SpaceAfter=No
    2   rains   _   _   _   _   0   root    _   _

A word has ten fields, with tabs between them; read are the id, the form and the head, the seventh.
A text is what stands between two lines `# newdoc`: one sentence or several. In a file without such
lines every sentence is a text of its own. Files are matched to texts by characters alone, white
space left out, so that their order does not matter and a text that comes often is parsed once.
"""

import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32

from distattn_jax.data.rows import DataError, read_lines

FIELDS = 10  # of a word: id, form, lemma, two tags, features, head, relation, two more
ENDINGS = (".conllu", ".conllu.gz")
NEW_TEXT = "# newdoc"
SPACE = re.compile(r"\s")
SHOWN = 60  # characters of a text in an error


class DependencyParse(NamedTuple):
    """The words of one text.

    Attributes:
      ends: the character after each word, counted without white space.
      heads: the number of each word's syntactic head, from 1; 0: it has none.
    """

    ends: Int32[np.ndarray, " words"]
    heads: Int32[np.ndarray, " words"]

    def __len__(self) -> int:
        return len(self.ends)

    def words(self, text: str, spans: Sequence[tuple[int, int]]) -> Int32[np.ndarray, " pieces"]:
        """The number of the word, from 1, in which each span begins; 0: the span is white space.

        Args:
          text: that was parsed.
          spans: first character and the one after the last, white space counted.
        """
        spaces = [space.start() for space in SPACE.finditer(text)]
        bounds = np.asarray(spans, np.int64).reshape(-1, 2)
        starts, stops = (bounds - np.searchsorted(spaces, bounds)).T  # white space left out
        numbers = 1 + np.searchsorted(self.ends, starts, side="right")
        return np.where(stops > starts, numbers, 0).astype(np.int32)


class ParsedTexts:
    """The parses of many texts.

    Args:
      path: a .conllu file, plain or .gz, or a folder of such. Of a text that comes more than once,
        the first parse counts.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self._of: dict[str, DependencyParse] = {
            "": DependencyParse(np.zeros(0, np.int32), np.zeros(0, np.int32))
        }
        for file in _files(self.path):
            for key, parse in _read(file):
                self._of.setdefault(key, parse)

    def __len__(self) -> int:
        return len(self._of) - 1

    def __getitem__(self, text: str) -> DependencyParse:
        parse = self._of.get(_solid(text))
        if parse is None:
            raise DataError(
                f"{self.path}: must hold a parse of every text, character by character; "
                f"has none of {text[:SHOWN]!r}."
            )
        return parse


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    files = sorted(file for file in path.glob("*") if file.name.endswith(ENDINGS))
    if not files:
        raise DataError(f"{path}: looked for a file, or a folder of files {ENDINGS}; found none.")
    return files


def _read(path: Path) -> Iterator[tuple[str, DependencyParse]]:
    """The characters and the parse of every text."""
    documents = any(text.startswith(NEW_TEXT) for _, text in read_lines(path))
    forms: list[str] = []
    heads: list[int] = []
    for opens, sentence in _sentences(path):
        if forms and (opens or not documents):
            yield _text(forms, heads)
            forms, heads = [], []
        before = len(forms)
        for form, head in sentence:
            forms.append(form)
            heads.append(head and head + before)
    if not forms:
        raise DataError(f"{path}: has no sentences.")
    yield _text(forms, heads)


def _text(forms: list[str], heads: list[int]) -> tuple[str, DependencyParse]:
    ends = np.fromiter(itertools.accumulate(map(len, forms)), np.int32, len(forms))
    return "".join(forms), DependencyParse(ends, np.asarray(heads, np.int32))


def _sentences(path: Path) -> Iterator[tuple[bool, list[tuple[str, int]]]]:
    """Whether a text begins with it, and the form and head of every word, sentence by sentence."""
    opens, said, begins = False, None, 0
    lines: list[tuple[int, list[str]]] = []
    for line, raw in itertools.chain(read_lines(path), [(0, "")]):  # the last may lack its end
        text = raw.rstrip("\r\n")
        if text.startswith("#"):
            opens |= text.startswith(NEW_TEXT)
            if text.startswith("# text = "):
                said, begins = text.removeprefix("# text = "), line
        elif text:
            fields = text.split("\t")
            if len(fields) != FIELDS:
                raise DataError(f"{path}:{line}: must have {FIELDS} fields; got {len(fields)}.")
            lines.append((line, fields))
        elif lines:
            words = _words(path, lines)
            if said is not None and _solid(said) != "".join(form for form, _ in words):
                raise DataError(
                    f"{path}:{begins}: the text must be what its words spell, "
                    f"{' '.join(form for form, _ in words)[:SHOWN]!r}; got {said[:SHOWN]!r}."
                )
            yield opens, words
            opens, said, lines = False, None, []


def _words(path: Path, lines: list[tuple[int, list[str]]]) -> list[tuple[str, int]]:
    """Form and head of every word as it is written.

    What is written as one and parsed as several (`3-4  don't`) is one word here, which takes the
    first head outside of it. Words that are not written (`5.1`) are none.
    """
    count = sum(fields[0].isdecimal() for _, fields in lines)
    forms: list[str] = []
    heads: list[list[int]] = []  # of each form: those of all words written so
    form_of = [0]  # the form of each word, by its number
    spanned = 0  # the last word of the latest form
    for line, fields in lines:
        number, form, head = fields[0], _solid(fields[1]), fields[6]
        if "." in number:
            continue
        first, dash, last = number.partition("-")
        if first != str(len(form_of)):
            raise DataError(f"{path}:{line}: the id must be {len(form_of)}; got {number!r}.")
        if dash and not (last.isdecimal() and int(first) < int(last) <= count):
            raise DataError(
                f"{path}:{line}: the id must end with a word after {first}, at most {count}; "
                f"got {number!r}."
            )
        if len(form_of) > spanned:
            if not form:
                raise DataError(f"{path}:{line}: the form must not be empty.")
            forms.append(form)
            heads.append([])
            spanned = int(last or first)
        if not dash:
            if not head.isdecimal() or int(head) > count:
                raise DataError(f"{path}:{line}: the head must be 0 to {count}; got {head!r}.")
            heads[-1].append(int(head))
            form_of.append(len(forms))
    return [
        (form, next((form_of[head] for head in own if form_of[head] != i), 0))
        for i, (form, own) in enumerate(zip(forms, heads, strict=True), start=1)
    ]


def _solid(text: str) -> str:
    """Without white space."""
    return "".join(text.split())
