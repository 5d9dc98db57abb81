"""Pre-trained word vectors in the text format of GloVe and word2vec: one word per line."""

import gzip
import hashlib
import io
import json
import os
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float32

from distattn_jax.data.files import ARCHIVE_ERRORS, DataError

LARGEST = 1e6  # absolute value of a number; products of larger vectors overflow in float32


class WordVectors(NamedTuple):
    """Word vectors loaded from a file.

    Attributes:
      rows: Dict from each word to the index of its row in `vectors`. The first word has row 1.
      vectors: Vectors, shape (W, E). Row 0 is all zeros, for words without a vector.
    """

    rows: dict[str, int]
    vectors: Float32[np.ndarray, "W E"]


def load_embeddings(
    path: str | Path, words: Sequence[str], *, seed: int, cache: str | Path | None = None
) -> tuple[Float32[np.ndarray, "V E"], int]:
    """Load initial embeddings for a vocabulary from a file of word vectors.

    A word that the file does not contain is given a random vector from a normal distribution. The
    standard deviation of this distribution is that of all elements of the vectors that were found.
    Word 0 is padding, and its vector is 0. Only the lines of words in the vocabulary are parsed, so
    that loading from a large file takes seconds.

    Args:
      path: Text file, plain, .gz or .zip. Write `archive.zip:name` to select one of several
        files in a .zip archive.
      words: Vocabulary in the order of the token ids.
      seed: Seed of the random vectors.
      cache: File (.npz) that stores the result. The stored result is used again if the file of
        vectors, `words` and `seed` have not changed. None disables the cache.

    Returns:
      Embeddings, shape (V, E), and the number of words of the vocabulary that the file contains.
    """
    file, member = _split_path(path)
    key = _make_key(file, member, words, seed)
    if cache is not None and (cached := _read_cache(Path(cache), key)) is not None:
        return cached
    rows = _find_words(path, words, start=1)
    found = np.array(list(rows.values()), np.float32)
    vectors = np.random.default_rng(seed).standard_normal(
        (len(words), found.shape[1]), dtype=np.float32
    )
    vectors *= found.std()
    vectors[list(rows)] = found
    vectors[0] = 0
    if cache is not None:
        _write_cache(Path(cache), key, vectors, len(rows))
    return vectors, len(rows)


def load_word_vectors(path: str | Path, words: Sequence[str]) -> WordVectors:
    """Load word vectors from a file. Words that the file does not contain are omitted.

    Args:
      path: Text file, plain, .gz or .zip. Write `archive.zip:name` to select one of several
        files in a .zip archive.
      words: Words to search for.
    """
    found = _find_words(path, words, start=0)
    numbers = sorted(found)
    values = np.array([found[i] for i in numbers], np.float32)
    vectors = np.concatenate([np.zeros((1, values.shape[1]), np.float32), values])
    return WordVectors({words[i]: row for row, i in enumerate(numbers, start=1)}, vectors)


def _split_path(path: str | Path) -> tuple[Path, str]:
    """Split the path `archive.zip:name` into the archive and the name of a file inside it.

    Any other path is returned unchanged, with an empty name.
    """
    name, _, member = str(path).partition(".zip:")
    file = Path(f"{name}.zip" if member else name)
    if not file.is_file():
        raise DataError(f"{file}: no such file; expected word vectors as text, .gz or .zip.")
    return file, member


def _find_words(path: str | Path, words: Sequence[str], *, start: int) -> dict[int, list[float]]:
    """Search a file for the vectors of `words[start:]`.

    Returns:
      Dict from the index i of each word that was found to the vector of `words[i]`.
    """
    wanted = {word.encode(): i for i, word in enumerate(words) if i >= start}
    try:
        with _open(*_split_path(path)) as lines:
            rows = _parse_lines(str(path), lines, wanted)
    except ARCHIVE_ERRORS as error:
        raise DataError(f"{path}: broken archive, {error}.") from None
    if not rows:
        raise DataError(f"{path}: contains none of the {len(words)} words.")
    return rows


def _parse_lines(
    path: str, lines: Iterable[bytes], wanted: dict[bytes, int]
) -> dict[int, list[float]]:
    """Parse the vectors of the words in `wanted`. If a word is repeated, its first line is used.

    `wanted` is a dict from each word to its index.

    Returns:
      Dict from the index of each word that was found to its vector.
    """
    first_parts = {word.partition(b" ")[0] for word in wanted}
    rows: dict[int, list[float]] = {}
    width = 0
    for line, text in enumerate(lines, start=1):
        if not width:
            fields = text.split()
            header = len(fields) == 2 and all(field.isdigit() for field in fields)
            width = int(fields[1][:9]) if header else len(fields) - 1
            if width < 1:
                raise DataError(
                    f"{path}:{line}: must be a word and its numbers; got {text[:40]!r}."
                )
            if header:
                continue
        if text.partition(b" ")[0] not in first_parts:
            continue
        fields = text.rstrip().split(b" ")
        word, numbers = fields[:-width], fields[-width:]  # a word may contain spaces
        if not word or any(map(_is_number, word[1:])):
            raise DataError(f"{path}:{line}: must have {width} numbers; got {len(fields) - 1}.")
        row = wanted.get(b" ".join(word))
        if row is None or row in rows:
            continue
        try:
            rows[row] = list(map(float, numbers))
        except ValueError as error:
            raise DataError(f"{path}:{line}: not a number, {error}.") from None
        if not all(abs(number) <= LARGEST for number in rows[row]):
            raise DataError(
                f"{path}:{line}: all numbers must be from {-LARGEST:g} to {LARGEST:g}; "
                f"got {numbers[0].decode()} ... {numbers[-1].decode()}."
            )
    return rows


def _is_number(field: bytes) -> bool:
    """Return True if the field can be parsed as a number."""
    try:
        float(field)
    except ValueError:
        return False
    return True


def _open(file: Path, member: str) -> Any:
    """Open a plain, .gz or .zip file for reading lines of bytes.

    `member` is the name of the file inside a .zip archive. It is empty if the archive has only
    one file.
    """
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


def _make_key(file: Path, member: str, words: Sequence[str], seed: int) -> str:
    """Return a hash of the inputs of `load_embeddings`: the file of vectors, words and seed.

    The path, size and modification time identify the file. Its content is not read.
    """
    status = file.stat()
    parts = [str(file.resolve()), member, status.st_size, status.st_mtime_ns, seed, list(words)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _read_cache(cache: Path, key: str) -> tuple[np.ndarray, int] | None:
    """Return the cached result of `load_embeddings`.

    Return None if the cache is missing, unreadable, or was written for a different key.
    """
    try:
        with cache.open("rb") as file, np.load(file) as stored:
            if str(stored["key"]) == key:
                return stored["vectors"], int(stored["found"])
    except (*ARCHIVE_ERRORS, KeyError, TypeError, ValueError):
        pass  # A missing or unreadable cache is written again.
    return None


def _write_cache(cache: Path, key: str, vectors: np.ndarray, found: int) -> None:
    """Write a temporary file and rename it to `cache`, so that `cache` is never incomplete."""
    cache.parent.mkdir(parents=True, exist_ok=True)
    temporary = cache.with_name(f"{cache.name}.{os.getpid()}")
    with temporary.open("wb") as file:
        np.savez(file, key=key, vectors=vectors, found=found)
    temporary.replace(cache)
