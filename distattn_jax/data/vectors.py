"""Word vectors as GloVe and word2vec publish them: a word and its numbers on every line."""

import gzip
import hashlib
import io
import json
import math
import os
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float32

from distattn_jax.data.rows import DataError


class WordVectors(NamedTuple):
    """Vectors of words, row 0 for those that have none: zeros.

    Attributes:
      rows: the row of every word, from 1.
      vectors: by row.
    """

    rows: dict[str, int]
    vectors: Float32[np.ndarray, "W E"]


def load_embeddings(
    path: str | Path, words: Sequence[str], *, seed: int, cache: str | Path | None = None
) -> tuple[Float32[np.ndarray, "V E"], int]:
    """One vector for every word, and how many of them the file had.

    A word that the file lacks gets a draw from a normal distribution that spreads as the vectors
    found do; the first word is padding, and gets zeros. Only lines of words that are wanted are
    parsed, so that a large file takes seconds.

    Args:
      path: a text file, plain, .gz or .zip; of a .zip with several members, `file.zip:member`.
      words: the vocabulary, in the order of its ids.
      seed: of the draws.
      cache: an .npz file to keep the answer in, used as long as file, words and seed are the same.
    """
    file, member = _file(path)
    key = _key(file, member, words, seed)
    if cache is not None and (kept := _kept(Path(cache), key)) is not None:
        return kept
    rows = _found(path, words, start=1)
    found = np.array(list(rows.values()), np.float32)
    vectors = np.random.default_rng(seed).standard_normal(
        (len(words), found.shape[1]), dtype=np.float32
    )
    vectors *= found.std()
    vectors[list(rows)] = found
    vectors[0] = 0
    if cache is not None:
        _keep(Path(cache), key, vectors, len(rows))
    return vectors, len(rows)


def load_word_vectors(path: str | Path, words: Sequence[str]) -> WordVectors:
    """The vectors of those words that the file has.

    Args:
      path: a text file, plain, .gz or .zip; of a .zip with several members, `file.zip:member`.
      words: any.
    """
    found = _found(path, words, start=0)
    numbers = sorted(found)
    values = np.array([found[i] for i in numbers], np.float32)
    vectors = np.concatenate([np.zeros((1, values.shape[1]), np.float32), values])
    return WordVectors({words[i]: row for row, i in enumerate(numbers, start=1)}, vectors)


def _file(path: str | Path) -> tuple[Path, str]:
    """The file, and which member of it."""
    name, _, member = str(path).partition(".zip:")
    file = Path(f"{name}.zip" if member else name)
    if not file.is_file():
        raise DataError(f"{file}: no such file; looked for word vectors as text, .gz or .zip.")
    return file, member


def _found(path: str | Path, words: Sequence[str], *, start: int) -> dict[int, list[float]]:
    """The numbers of every word from `start` on that the file has, by its id."""
    wanted = {word.encode(): i for i, word in enumerate(words) if i >= start}
    try:
        with _opened(*_file(path)) as lines:
            rows = _read(str(path), lines, wanted)
    except (gzip.BadGzipFile, zipfile.BadZipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path}: broken archive, {error}.") from None
    if not rows:
        raise DataError(f"{path}: has none of the {len(words)} words.")
    return rows


def _read(path: str, lines: Iterable[bytes], wanted: dict[bytes, int]) -> dict[int, list[float]]:
    """The numbers of every wanted word, by its id; of a word that comes twice, the first."""
    begins = {word.partition(b" ")[0] for word in wanted}
    rows: dict[int, list[float]] = {}
    width = 0
    for line, text in enumerate(lines, start=1):
        if not width:
            fields = text.split()
            header = len(fields) == 2 and fields[0].isdigit() and fields[1].isdigit()
            width = int(fields[1]) if header else len(fields) - 1
            if width < 1:
                raise DataError(
                    f"{path}:{line}: must be a word and its numbers; got {text[:40]!r}."
                )
            if header:
                continue
        if text.partition(b" ")[0] not in begins:
            continue
        fields = text.rstrip().split(b" ")
        word, numbers = fields[:-width], fields[-width:]  # some words have spaces in them
        if not word or any(map(_is_number, word[1:])):
            raise DataError(f"{path}:{line}: must have {width} numbers; got {len(fields) - 1}.")
        row = wanted.get(b" ".join(word))
        if row is None or row in rows:
            continue
        try:
            rows[row] = list(map(float, numbers))
        except ValueError as error:
            raise DataError(f"{path}:{line}: not a number, {error}.") from None
        if not math.isfinite(sum(rows[row])):
            raise DataError(f"{path}:{line}: must have finite numbers only.")
    return rows


def _is_number(field: bytes) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def _opened(file: Path, member: str) -> Any:
    if file.suffix == ".gz":
        return gzip.open(file)
    if file.suffix != ".zip":
        return file.open("rb")
    with zipfile.ZipFile(file) as archive:
        names = archive.namelist()
        if member not in names and (member or len(names) != 1):
            raise DataError(
                f"{file}: must be given as {file}:member with one of {names}; got {member!r}."
            )
        opened: Any = archive.open(member or names[0])
        return io.BufferedReader(opened, 1 << 20)


def _key(file: Path, member: str, words: Sequence[str], seed: int) -> str:
    """What the answer depends on."""
    status = file.stat()
    parts = [str(file.resolve()), member, status.st_size, status.st_mtime_ns, seed, list(words)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _kept(cache: Path, key: str) -> tuple[np.ndarray, int] | None:
    try:
        with np.load(cache) as kept:
            if str(kept["key"]) == key:
                return kept["vectors"], int(kept["found"])
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile):
        pass  # not there, or not one of ours: it is made anew
    return None


def _keep(cache: Path, key: str, vectors: np.ndarray, found: int) -> None:
    """Written beside and moved: a reader never sees half of it."""
    cache.parent.mkdir(parents=True, exist_ok=True)
    beside = cache.with_name(f"{cache.name}.{os.getpid()}")
    with beside.open("wb") as file:
        np.savez(file, key=key, vectors=vectors, found=found)
    beside.replace(cache)
