"""Readers of the published formats: every row with its line, every fault with file and line."""

import csv
import gzip
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

OBJECTS = (".jsonl", ".json")
FORMATS = (".csv", ".tsv", *OBJECTS)
Row = tuple[int, dict[str, str]]


class DataError(ValueError):
    """A fault in the data: `{file}:{line}: {reason}`, or `{file}: {reason}`."""


def read_rows(
    path: str | Path,
    *,
    columns: Sequence[str] | None = None,
    header: bool = True,
    kind: str | None = None,
) -> Iterator[Row]:
    """All rows of a .csv, .tsv, .jsonl or .json file, plain or .gz: line and values by column.

    Fields of a .csv may be quoted, and then span lines; those of a .tsv are taken as they are.
    Every line of a .jsonl or .json is an object, whose numbers come as they are written. A row that
    cannot be read is an error, and so is a file without rows: nothing is dropped.

    Args:
      path: the file, in UTF-8.
      columns: the names wanted, all others are left out; `None`: all. Without a header, the
        names of all fields of a row.
      header: the first row of a .csv or .tsv names the columns.
      kind: the format; `None`: as the name ends.
    """
    path = Path(path)
    if kind is None:
        kind = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    if kind not in FORMATS:
        raise DataError(f"{path}: the name must end in {', '.join(FORMATS)}, or one of them + .gz.")
    if not path.is_file():
        raise DataError(f"{path}: no such file; looked for a {kind} file.")
    if kind in OBJECTS:
        rows = _objects(path, columns)
    elif header:
        rows = _with_header(path, kind, columns)
    elif columns is None:
        raise ValueError("columns must be given for a file without a header; got None.")
    else:
        rows = (
            (line, dict(zip(columns, fields, strict=True)))
            for line, fields in _fields(path, kind)
            if _has(path, line, fields, len(columns))
        )
    return _not_empty(path, rows)


def find_file(folder: str | Path, stem: str) -> Path:
    """The one file of a folder that is `stem` + .csv, .tsv, .jsonl or .json, plain or .gz."""
    names = [stem + kind + zipped for kind in FORMATS for zipped in ("", ".gz")]
    found = [name for name in names if (Path(folder) / name).is_file()]
    if not found:
        raise DataError(f"{folder}: looked for {', '.join(names)}; found none of them.")
    if len(found) > 1:
        raise DataError(f"{folder}: must hold one file of {stem}; found {', '.join(found)}.")
    return Path(folder) / found[0]


def find_set(folder: str | Path, forms: Sequence[Mapping[str, str]]) -> tuple[int, dict[str, Path]]:
    """The files of a set that is published in several forms: which form it is, and its files.

    All files of a form are looked for in the folder itself, then in each of the folders in it.
    Where one holds several forms, it is the first of them.

    Args:
      folder: where to look.
      forms: names of files, by any names of ours.
    """
    folder = Path(folder)
    below = sorted(path for path in folder.iterdir() if path.is_dir())
    for places in ([folder], below):
        found = [
            (form, {key: place / name for key, name in names.items()})
            for place in places
            for form, names in enumerate(forms)
            if all((place / name).is_file() for name in names.values())
        ]
        in_places = sorted({path.parent.name for _, files in found for path in files.values()})
        if len(in_places) > 1:
            raise DataError(
                f"{folder}: must hold the set once; found it in {in_places}, one of which to pass."
            )
        if found:
            return found[0]
    wanted = ", or ".join(", ".join(names.values()) for names in forms)
    raise DataError(f"{folder}: looked here and one folder below for {wanted}; found none whole.")


def _with_header(path: Path, kind: str, columns: Sequence[str] | None) -> Iterator[Row]:
    rows = _fields(path, kind)
    for line, names in rows:
        wanted = names if columns is None else columns
        missing = [name for name in wanted if name not in names]
        if missing:
            raise DataError(f"{path}:{line}: no column {missing[0]!r} in the header {names}.")
        if len(set(names)) < len(names):
            raise DataError(f"{path}:{line}: a name comes twice in the header {names}.")
        break
    for line, fields in rows:
        if _has(path, line, fields, len(names)):
            row = dict(zip(names, fields, strict=True))
            yield line, {name: row[name] for name in wanted}


def _objects(path: Path, columns: Sequence[str] | None) -> Iterator[Row]:
    for line, text in read_lines(path):
        try:
            row = json.loads(text, parse_int=str, parse_float=str)
        except json.JSONDecodeError as error:
            raise DataError(f"{path}:{line}: broken JSON, {error}.") from None
        if not isinstance(row, dict):
            raise DataError(f"{path}:{line}: must be a JSON object; got {text.strip()[:40]}.")
        wanted = row if columns is None else columns
        yield line, {name: _text(path, line, row, name) for name in wanted}


def _text(path: Path, line: int, row: dict[str, Any], name: str) -> str:
    if name not in row:
        raise DataError(f"{path}:{line}: no column {name!r}, only {list(row)}.")
    value = row[name]
    if isinstance(value, bool):
        return json.dumps(value)
    if not isinstance(value, str):
        raise DataError(
            f"{path}:{line}: {name!r} must be text or a number; got {json.dumps(value)[:40]}."
        )
    return value


def _fields(path: Path, kind: str) -> Iterator[tuple[int, list[str]]]:
    """The fields of every record, with the line that it begins on."""
    if kind == ".tsv":
        for line, text in read_lines(path):
            yield line, text.rstrip("\r\n").split("\t")
        return
    reader = csv.reader((text for _, text in read_lines(path)), strict=True)
    line = 1
    while True:
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            unterminated = "end of data" in str(error)
            reason = "a quote that is never closed" if unterminated else f"broken CSV, {error}"
            raise DataError(f"{path}:{line}: {reason}.") from None
        yield line, fields
        line = reader.line_num + 1


def read_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """All lines of a file in UTF-8, plain or .gz, with their numbers and their ends."""
    path, line = Path(path), 0
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        try:
            for line, raw in enumerate(file, start=1):
                yield line, raw.decode("utf-8-sig" if line == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"{path}:{line}: not UTF-8, {error}.") from None
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise DataError(f"{path}:{line + 1}: broken gzip, {error}.") from None


def _has(path: Path, line: int, fields: list[str], count: int) -> bool:
    """True: the row has as many fields as it must."""
    if len(fields) != count:
        raise DataError(f"{path}:{line}: must have {count} fields; got {len(fields)}.")
    return True


def _not_empty(path: Path, rows: Iterator[Row]) -> Iterator[Row]:
    empty = True
    for row in rows:
        empty = False
        yield row
    if empty:
        raise DataError(f"{path}: has no rows.")
