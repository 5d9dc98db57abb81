"""Read rows of CSV, TSV and JSON Lines files. Error messages contain the file and the line."""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from distattn_jax.data.files import DataError, parse_json, read_lines

JSON_LINES = (".jsonl", ".json")
FORMATS = (".csv", ".tsv", *JSON_LINES)
MAX_FIELD = 2**31 - 1  # characters of a CSV field; Python's default is only 131,072
# File names of the splits: as most data sets publish them, and as users may call their own files.
PUBLISHED_PARTS = {"train": "train", "validation": "dev", "test": "test"}
SPLIT_STEMS = {
    "train": ("train",),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test",),
}
Row = tuple[int, dict[str, str]]  # line number and values by column


def read_rows(
    path: str | Path,
    *,
    columns: Sequence[str] | None = None,
    header: bool = True,
    suffix: str | None = None,
) -> Iterator[Row]:
    """Yield (line number, dict from column name to text) for every row of a file.

    The file is .csv, .tsv, .jsonl or .json, or one of these compressed as .gz. Fields of a .csv
    file may be quoted and may then contain line breaks. Fields of a .tsv file have no quoting. Each
    line of a .jsonl or .json file is one JSON object. A number in such an object is returned as
    text, exactly as the file spells it. `DataError` is raised for a malformed row and for a file
    without rows.

    Args:
      path: File in UTF-8.
      columns: Names of the columns to return. None returns all columns. A file without a header
        requires the names of all its columns.
      header: True if the first row of a .csv or .tsv file contains the column names.
      suffix: Format of the file, for example ".tsv". None uses the suffix of the path.
    """
    path = Path(path)
    if suffix is None:
        suffix = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    if suffix not in FORMATS:
        raise DataError(
            f"{path}: the file name must end in {', '.join(FORMATS)}, or one of them and .gz."
        )
    if not path.is_file():
        raise DataError(f"{path}: no such file; expected a {suffix} file.")
    if suffix in JSON_LINES:
        return _require_rows(path, _read_objects(path, columns))
    if columns is None and not header:
        raise ValueError("columns must be given for a file without a header; got None.")
    return _require_rows(path, _read_table(path, suffix, columns, header))


def find_file(folder: str | Path, stem: str) -> Path:
    """Find the file of a folder that has this stem and a suffix that `read_rows` accepts.

    The suffixes are .csv, .tsv, .jsonl and .json, and each of these followed by .gz. For example,
    the stem `train` finds the file train.csv. Raise `DataError` if no file or more than one file is
    found.
    """
    names = [stem + suffix + zipped for suffix in FORMATS for zipped in ("", ".gz")]
    found = [name for name in names if (Path(folder) / name).is_file()]
    if not found:
        raise DataError(f"{folder}: must contain one of {', '.join(names)}; found none.")
    if len(found) > 1:
        raise DataError(f"{folder}: must contain one file {stem}; found {', '.join(found)}.")
    return Path(folder) / found[0]


def find_one(folder: Path, names: Sequence[str], requirement: str) -> Path:
    """Find the file of a folder that has one of these names, and return its path.

    Raise `DataError` if no file or more than one file is found. `requirement` describes the file in
    the error message.
    """
    found = [name for name in names if (folder / name).is_file()]
    if len(found) != 1:
        raise DataError(
            f"{folder}: must contain {requirement}; found {', '.join(found) or 'none'}."
        )
    return folder / found[0]


def make_layout(pattern: str, parts: Mapping[str, str] = PUBLISHED_PARTS) -> dict[str, str]:
    """Return the file names of a data set: a dict from split to file name, for `find_layout`.

    For example, the pattern "snli_1.0_{}.txt" results in the name "snli_1.0_dev.txt" for the split
    `validation`.

    Args:
      pattern: File name with `{}` in place of the published name of the split.
      parts: Dict from each split to its published name, e.g. from `validation` to `dev`.
    """
    return {split: pattern.format(part) for split, part in parts.items()}


def find_layout(
    folder: str | Path, layouts: Sequence[Mapping[str, str]]
) -> tuple[int, dict[str, Path]]:
    """Find the files of a data set that is published with several sets of file names (layouts).

    The folder itself is searched first, then its direct subfolders. A layout is found if a single
    folder contains all files of the layout. If several layouts are found, the first of them in
    `layouts` is used.

    Args:
      folder: Folder to search.
      layouts: One dict for each layout, from a key, e.g. the name of the split, to the file name.

    Returns:
      Index of the layout that was found, and a dict from the keys of this layout to the paths of
      its files.
    """
    folder = Path(folder)
    subfolders = sorted(path for path in folder.iterdir() if path.is_dir())
    for places in ([folder], subfolders):
        found = [
            (layout, {key: place / name for key, name in names.items()})
            for place in places
            for layout, names in enumerate(layouts)
            if all((place / name).is_file() for name in names.values())
        ]
        parents = sorted({path.parent.name for _, files in found for path in files.values()})
        if len(parents) > 1:
            raise DataError(
                f"{folder}: must contain the data set once; found it in {parents}. "
                "Pass one of these folders."
            )
        if found:
            return found[0]
    wanted = ", or ".join(", ".join(names.values()) for names in layouts)
    raise DataError(
        f"{folder}: this folder or a direct subfolder must contain {wanted}; found no complete set."
    )


def _read_objects(path: Path, columns: Sequence[str] | None) -> Iterator[Row]:
    """Yield the rows of a JSON Lines file."""
    for line, text in read_lines(path):
        row = parse_json(text, f"{path}:{line}", numbers_as_text=True)
        if not isinstance(row, dict):
            raise DataError(f"{path}:{line}: must be a JSON object; got {text.strip()[:40]}.")
        wanted = row if columns is None else columns
        yield line, {name: _get_text(path, line, row, name) for name in wanted}


def _get_text(path: Path, line: int, row: dict[str, Any], name: str) -> str:
    """Return one value of a JSON object as text."""
    if name not in row:
        raise DataError(f"{path}:{line}: no column {name!r}, only {list(row)}.")
    value = row[name]
    if isinstance(value, bool):
        return json.dumps(value)
    if not isinstance(value, str):
        kind = "null" if value is None else "a list" if isinstance(value, list) else "an object"
        raise DataError(f"{path}:{line}: {name!r} must be text or a number; got {kind}.")
    return value


def _read_table(
    path: Path, suffix: str, columns: Sequence[str] | None, header: bool
) -> Iterator[Row]:
    """Yield the rows of a .csv or .tsv file."""
    records = _read_records(path, suffix)
    # Line 0 means that there is no header. A file with a header may still be empty.
    line, names = next(records, (0, [])) if header else (0, columns or [])
    wanted = names if columns is None else columns
    missing = [name for name in wanted if name not in names]
    if line and missing:
        raise DataError(f"{path}:{line}: no column {missing[0]!r} in the header {names}.")
    if line and len(set(names)) < len(names):
        raise DataError(f"{path}:{line}: the header {names} contains a name twice.")
    for line, fields in records:
        if len(fields) != len(names):
            raise DataError(f"{path}:{line}: must have {len(names)} fields; got {len(fields)}.")
        row = dict(zip(names, fields, strict=True))
        yield line, {name: row[name] for name in wanted}


def _read_records(path: Path, suffix: str) -> Iterator[tuple[int, list[str]]]:
    """Yield (number of the first line, fields) for every record of a .csv or .tsv file."""
    if suffix == ".tsv":
        for line, text in read_lines(path):
            yield line, text.rstrip("\r\n").split("\t")
        return
    csv.field_size_limit(MAX_FIELD)
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


def _require_rows(path: Path, rows: Iterator[Row]) -> Iterator[Row]:
    """Yield all rows. Raise `DataError` if there are no rows."""
    empty = True
    for row in rows:
        empty = False
        yield row
    if empty:
        raise DataError(f"{path}: has no rows.")
