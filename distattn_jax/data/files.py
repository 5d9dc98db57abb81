"""Read text files and JSON in UTF-8. Error messages contain the file and the line."""

import collections
import gzip
import json
import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from etils import epath

AnyPath = str | Path | epath.Path  # a local path or a cloud bucket
# Errors that Python's modules raise for a damaged or encrypted archive or gzip file.
ARCHIVE_ERRORS = (
    *(OSError, EOFError, RuntimeError, UnicodeDecodeError, struct.error),
    *(zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError),
)


class DataError(ValueError):
    """Error in a data file. The message is `{file}:{line}: {reason}` or `{file}: {reason}`."""


def read_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """Yield (line number, text) for every line of a UTF-8 file, plain or .gz.

    Line numbers start at 1. The text includes the line ending. If lines end with a carriage return
    alone, they would be one long line. A file with as many of these as lines raises DataError after
    its last line.
    """
    path, line, returns = Path(path), 0, 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for line, raw in enumerate(file, start=1):
                returns += raw.count(b"\r") - raw.endswith(b"\r\n")
                yield line, decode_line(raw, f"{path}:{line}", first=line == 1)
    except ARCHIVE_ERRORS as error:
        kind = "gzip" if path.suffix == ".gz" else "file"
        raise DataError(f"{path}:{line + 1}: broken {kind}, {error}.") from None
    if returns > 1 and returns >= line:
        raise DataError(
            f"{path}: {returns} carriage returns (\\r) without a line feed in {line} lines. If "
            "they end lines, convert them to line feeds (\\n)."
        )


def decode_line(raw: bytes, location: str, *, first: bool = False) -> str:
    """Decode a line of a UTF-8 file.

    Args:
      raw: Bytes of the line.
      location: File and line, for the error message.
      first: True if this is the first line of its file. A byte order mark is then removed.
    """
    try:
        return raw.decode("utf-8-sig" if first else "utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{location}: not UTF-8, {error}.") from None


def read_text(path: AnyPath) -> str:
    """Return the content of a UTF-8 file."""
    raw = epath.Path(path).read_bytes()
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}:{line}: not UTF-8, {error}.") from None


def read_json(path: AnyPath) -> Any:
    """Return the content of a JSON file."""
    return parse_json(read_text(path), str(path), has_lines=True)


def parse_json(
    text: str, location: str, *, numbers_as_text: bool = False, has_lines: bool = False
) -> Any:
    """Parse JSON. Raise `DataError` if the text is malformed, or is not valid Unicode.

    Args:
      text: Text to parse.
      location: File, and line if known, for the error message.
      numbers_as_text: True returns every number as text, exactly as it is spelled.
      has_lines: True if `text` is a whole file. The error message for malformed JSON then also
        contains the line number.
    """
    parse_number = str if numbers_as_text else None
    try:
        content = json.loads(
            text,
            parse_int=parse_number,
            parse_float=parse_number,
            object_pairs_hook=_check_keys,
        )
        if "\\ud" in text.lower():  # An escape may be half of a surrogate pair.
            json.dumps(content, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise DataError(f"{location}: broken JSON, half of a surrogate pair.") from None
    except _DuplicateKeyError as error:
        raise DataError(
            f"{location}: broken JSON, the key {error.args[0]!r} occurs twice."
        ) from None
    except RecursionError:
        raise DataError(f"{location}: broken JSON, nested too deeply.") from None
    except json.JSONDecodeError as error:
        location = f"{location}:{error.lineno}" if has_lines else location
        raise DataError(f"{location}: broken JSON, {error.msg} (column {error.colno}).") from None
    except ValueError:  # Python limits the digits of an integer.
        raise DataError(f"{location}: broken JSON, a number has too many digits.") from None
    return content


class _DuplicateKeyError(Exception):
    """Raised for a JSON object with two equal keys. The argument is the key."""


def _check_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object as a dict. Raise `_DuplicateKeyError` if a key occurs twice."""
    content = dict(pairs)
    if len(content) < len(pairs):
        counts = collections.Counter(key for key, _ in pairs)
        raise _DuplicateKeyError(max(counts, key=counts.__getitem__))
    return content
