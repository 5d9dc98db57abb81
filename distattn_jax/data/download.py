"""Download files from public URLs into a folder. The folder appears when all files are complete."""

import http.client
import shutil
import tarfile
import tempfile
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from distattn_jax.data.files import ARCHIVE_ERRORS, DataError

TIMEOUT = 60  # seconds without a response
MANUAL_DOWNLOAD = (
    "download the files yourself and pass their folder as manual_dir (--data.manual-dir)"
)


def download(urls: Sequence[str], folder: str | Path) -> None:
    """Download files into a new folder. Do nothing if the folder exists.

    Archives (.zip, .tar.gz, .tgz) are unpacked, other files are stored unchanged. The files are
    collected in a temporary folder, which is renamed when it is complete.

    Args:
      urls: Addresses of the files.
      folder: Folder to create.
    """
    folder = Path(folder)
    if folder.is_dir():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        dir=folder.parent, prefix=f"{folder.name}.partial-"
    ) as temporary:
        complete = Path(temporary) / "complete"
        complete.mkdir()
        for url in urls:
            name = PurePosixPath(urllib.parse.urlsplit(url).path).name
            _fetch(url, Path(temporary) / name)
            _unpack(url, Path(temporary) / name, complete)
        try:
            complete.rename(folder)
        except OSError:
            # Another process may have created the folder in the meantime.
            if not folder.is_dir():
                raise


def _fetch(url: str, path: Path) -> None:
    """Download one file and check its size."""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as response, path.open("wb") as file:
            shutil.copyfileobj(response, file)
            size = response.headers.get("Content-Length")
    except (OSError, http.client.HTTPException) as error:
        raise DataError(f"{url} could not be downloaded, {error}; {MANUAL_DOWNLOAD}.") from None
    if size is not None and path.stat().st_size != int(size):
        raise DataError(
            f"{url} ended after {path.stat().st_size:,} of {int(size):,} bytes; "
            f"try again, or {MANUAL_DOWNLOAD}."
        )


def _unpack(url: str, path: Path, folder: Path) -> None:
    """Unpack an archive into a folder. A file that is not an archive is moved to the folder."""
    try:
        if path.name.endswith(".zip"):
            with zipfile.ZipFile(path) as archive:
                _check_names(url, archive.namelist())
                archive.extractall(folder)
        elif path.name.endswith((".tar.gz", ".tgz")):
            with tarfile.open(path) as archive:
                _check_names(url, archive.getnames())
                archive.extractall(folder, filter="data")
        else:
            path.rename(folder / path.name)
    except ARCHIVE_ERRORS as error:
        raise DataError(f"{url} could not be unpacked, {error}; {MANUAL_DOWNLOAD}.") from None


def _check_names(url: str, names: Sequence[str]) -> None:
    """Raise `DataError` if unpacking an archive would write outside the target folder.

    Args:
      url: Address of the archive, for error messages.
      names: Paths of the files in the archive.
    """
    for name in names:
        path = PurePosixPath(name.replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts:
            raise DataError(
                f"{url} contains {name!r}, which is outside the folder; {MANUAL_DOWNLOAD}."
            )
