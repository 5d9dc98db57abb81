"""Files from public addresses, all of them or none."""

import gzip
import http.client
import shutil
import tarfile
import tempfile
import urllib.parse
import urllib.request
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from distattn_jax.data.rows import DataError

SECONDS = 60  # without an answer before we give up
FAULTS = (zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error)
BY_HAND = "get the files by hand and pass their folder as manual_dir (--data.manual-dir)"


def download(addresses: Sequence[str], folder: str | Path) -> None:
    """Makes a folder of what is at the addresses, unless it is there.

    A .zip or .tar.gz is unpacked, any other file stays as it is. The folder gets its name when
    everything is in it: it is never there in part.
    """
    folder = Path(folder)
    if folder.is_dir():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        dir=folder.parent, prefix=f"{folder.name}.partial-"
    ) as partial:
        whole = Path(partial) / "whole"
        whole.mkdir()
        for address in addresses:
            name = PurePosixPath(urllib.parse.urlsplit(address).path).name
            _fetch(address, Path(partial) / name)
            _unpack(address, Path(partial) / name, whole)
        try:
            whole.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was faster
                raise


def _fetch(address: str, path: Path) -> None:
    try:
        with urllib.request.urlopen(address, timeout=SECONDS) as answer, path.open("wb") as file:
            shutil.copyfileobj(answer, file)
            wanted = answer.headers.get("Content-Length")
    except (OSError, http.client.HTTPException) as error:
        raise DataError(f"{address} could not be downloaded, {error}; {BY_HAND}.") from None
    if wanted is not None and path.stat().st_size != int(wanted):
        raise DataError(
            f"{address} broke off after {path.stat().st_size:,} of {int(wanted):,} bytes; "
            f"try again, or {BY_HAND}."
        )


def _unpack(address: str, path: Path, folder: Path) -> None:
    """Moves a file into the folder, or what it holds."""
    try:
        if path.name.endswith(".zip"):
            with zipfile.ZipFile(path) as archive:
                _check_inside(address, archive.namelist())
                archive.extractall(folder)
        elif path.name.endswith((".tar.gz", ".tgz")):
            with tarfile.open(path) as archive:
                _check_inside(address, archive.getnames())
                archive.extractall(folder, filter="data")
        else:
            path.rename(folder / path.name)
    except FAULTS as error:
        raise DataError(f"{address} could not be unpacked, {error}; {BY_HAND}.") from None


def _check_inside(address: str, names: Sequence[str]) -> None:
    """Nothing of an archive may be written outside the folder."""
    for name in names:
        parts = PurePosixPath(name.replace("\\", "/"))
        if parts.is_absolute() or ".." in parts.parts:
            raise DataError(f"{address} holds {name!r}, which would leave the folder; {BY_HAND}.")
