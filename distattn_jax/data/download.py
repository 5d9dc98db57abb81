"""Download files from public URLs into a folder. The folder appears when all files are complete.

The digest of every download is compared with the known digest of its URL. If no digest is known,
the digest of the first download becomes the known one (trust on first use). The file
`{folder}.digests.json` records the digests of the downloads and of the files in the folder.
"""

import hashlib
import http.client
import json
import shutil
import tarfile
import tempfile
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from distattn_jax.data.files import ARCHIVE_ERRORS, DataError, read_json

TIMEOUT = 60  # seconds without a response


def advise_manual_download(homepage: str = "") -> str:
    """Return advice to a user whose download failed, for error messages.

    Args:
      homepage: Address of the page that offers the files; empty if it is unknown.
    """
    source = f" from {homepage}" if homepage else ""
    return (
        f"download the files{source} yourself and pass their folder as manual_dir "
        "(--data.manual-dir)"
    )


def download(
    urls: Mapping[str, str], folder: str | Path, *, separate: bool = False, homepage: str = ""
) -> None:
    """Download files into a new folder. Do nothing if the folder exists.

    Archives (.zip, .tar, .tar.gz, .tgz) are unpacked, other files are stored unchanged. The files
    are collected in a temporary folder, which is renamed when it is complete.

    Args:
      urls: Dict from the address of each file to its digest, such as `sha256:9d49...`. The digest
        is empty if it is unknown.
      folder: Folder to create.
      separate: True unpacks each archive into a subfolder that has the name of the archive.
      homepage: Address of the page that offers the files, for error messages.
    """
    folder, advice = Path(folder), advise_manual_download(homepage)
    if folder.is_dir():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    recorded = _read_record(folder).get("downloads", {})
    with tempfile.TemporaryDirectory(
        dir=folder.parent, prefix=f"{folder.name}.partial-"
    ) as temporary:
        complete = Path(temporary) / "complete"
        complete.mkdir()
        downloads = {}
        for url, known in urls.items():
            path = Path(temporary) / PurePosixPath(urllib.parse.urlsplit(url).path).name
            _fetch(url, path, advice)
            _check_digest(url, path, known, advice)
            downloads[url] = f"sha256:{hash_file(path)}"
            if downloads[url] != recorded.get(url, downloads[url]):
                raise DataError(
                    f"{url} is not the file that was downloaded before: expected {recorded[url]}, "
                    f"got {downloads[url]}. If the change is right, delete {_record_path(folder)}."
                )
            _unpack(url, path, complete / path.stem if separate else complete, advice)
        _write_record(folder, downloads, complete)
        try:
            complete.rename(folder)
        except OSError:
            # Another process may have created the folder in the meantime.
            if not folder.is_dir():
                raise


def check_files(folder: str | Path, digests: Mapping[Path, str]) -> None:
    """Raise `DataError` if a file has changed since it was downloaded.

    Args:
      folder: Folder that `download` created.
      digests: Dict from the path of a file in this folder to its SHA-256 digest.
    """
    recorded = _read_record(Path(folder)).get("files", {})
    for path, digest in digests.items():
        if digest != recorded.get(path.relative_to(folder).as_posix(), digest):
            raise DataError(
                f"{path}: has changed since it was downloaded. Delete {folder} to download it "
                f"again, or pass the folder as manual_dir (--data.manual-dir) to use it as it is."
            )


def hash_file(path: Path, algorithm: str = "sha256") -> str:
    """Return the digest of the content of a file, in hexadecimal digits."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, algorithm).hexdigest()
    except OSError as error:
        raise DataError(f"{path}: cannot be read, {error.strerror}.") from None


def _record_path(folder: Path) -> Path:
    """Return the path of the file that records the digests of a downloaded folder."""
    return folder.with_name(f"{folder.name}.digests.json")


def _read_record(folder: Path) -> dict[str, dict[str, str]]:
    """Return the recorded digests of a downloaded folder, or an empty dict if none are recorded."""
    path = _record_path(folder)
    record = read_json(path) if path.is_file() else {}
    if not isinstance(record, dict) or not all(isinstance(part, dict) for part in record.values()):
        raise DataError(f"{path}: must contain an object of objects. Delete it to write it anew.")
    return record


def _write_record(folder: Path, downloads: Mapping[str, str], complete: Path) -> None:
    """Record the digests of the downloads, and of the unpacked files in the folder `complete`."""
    paths = sorted(path for path in complete.rglob("*") if path.is_file())
    files = {path.relative_to(complete).as_posix(): hash_file(path) for path in paths}
    record = complete.with_name("digests.json")
    record.write_text(json.dumps({"downloads": downloads, "files": files}, indent=1) + "\n")
    record.rename(_record_path(folder))


def _fetch(url: str, path: Path, advice: str) -> None:
    """Download one file to `path`.

    Raise `DataError` if the download fails, or has another size than the server announced.
    `advice` is the end of the error message.
    """
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as response, path.open("wb") as file:
            if url.startswith("https:") and not response.geturl().startswith("https:"):
                raise DataError(
                    f"{url} leads to {response.geturl()}, which is not https; {advice}."
                )
            shutil.copyfileobj(response, file)
            size = response.headers.get("Content-Length")
    except (OSError, http.client.HTTPException) as error:
        raise DataError(f"{url} could not be downloaded, {error}; {advice}.") from None
    if size is not None and path.stat().st_size != int(size):
        raise DataError(
            f"{url} ended after {path.stat().st_size:,} of {int(size):,} bytes; "
            f"try again, or {advice}."
        )


def _check_digest(url: str, path: Path, known: str, advice: str) -> None:
    """Raise `DataError` if the digest of a download differs from the known digest of its URL."""
    if known:
        algorithm, _, expected = known.partition(":")
        actual = hash_file(path, algorithm)
        if actual != expected:
            raise DataError(
                f"{url} is not the published file: its {algorithm} digest must be {expected}; "
                f"got {actual}. Try again, or {advice}."
            )


def _unpack(url: str, path: Path, folder: Path, advice: str) -> None:
    """Unpack an archive into a folder. A file that is not an archive is moved to the folder."""
    try:
        if path.name.endswith(".zip"):
            with zipfile.ZipFile(path) as archive:
                _check_names(url, archive.namelist(), advice)
                archive.extractall(folder)
        elif path.name.endswith((".tar", ".tar.gz", ".tgz")):
            with tarfile.open(path) as archive:
                _check_names(url, archive.getnames(), advice)
                archive.extractall(folder, filter="data")
        else:
            path.rename(folder / path.name)
    except ARCHIVE_ERRORS as error:
        raise DataError(f"{url} could not be unpacked, {error}; {advice}.") from None


def _check_names(url: str, names: Sequence[str], advice: str) -> None:
    """Raise `DataError` if unpacking an archive would write outside the target folder.

    `names` are the paths of the files in the archive. `advice` is the end of the error message.
    """
    for name in names:
        path = PurePosixPath(name.replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts:
            raise DataError(f"{url} contains {name!r}, which is outside the folder; {advice}.")
