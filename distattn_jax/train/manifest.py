"""Manifest of a checkpoint: a JSON file beside the folder, with digests of all files in the folder.

The manifest is written twice: before a checkpoint is saved and after all its files are written. The
first manifest says that the checkpoint is not complete. The second manifest lists the files and
their digests. If the manifest is missing, the checkpoint is damaged. If the manifest still says
"not complete", saving was interrupted, e.g. because the process was killed.
"""

import hashlib
import json
from typing import Any

from etils import epath

from distattn_jax.train.run_files import write_atomically


def manifest_path(checkpoint: epath.Path) -> epath.Path:
    """Return the path of the manifest of a checkpoint, e.g. `checkpoints/30.json`."""
    return checkpoint.with_name(f"{checkpoint.name}.json")


def mark_incomplete(checkpoint: epath.Path) -> None:
    """Write a manifest that says that the checkpoint is not complete."""
    _write(checkpoint, None)


def write_manifest(checkpoint: epath.Path) -> None:
    """Write the manifest of a checkpoint whose files are all written."""
    files = {
        str((folder / name).relative_to(checkpoint)): _hash_file(folder / name)
        for folder, _, names in checkpoint.walk()
        for name in names
    }
    _write(checkpoint, dict(sorted(files.items())))


def is_incomplete(checkpoint: epath.Path) -> bool:
    """Return True if the manifest says that the checkpoint is not complete."""
    try:
        return _read(checkpoint) is None
    except (OSError, ValueError):
        return False


def find_damage(checkpoint: epath.Path) -> str | None:
    """Return a message about the first file that is missing or damaged; None if all are intact."""
    path = manifest_path(checkpoint)
    try:
        files = _read(checkpoint)
    except ValueError as error:
        return f"{path} is damaged: {error}"
    except OSError as error:
        return _describe_failure(path, error)
    for name, digest in (files or {}).items():
        path = checkpoint / name
        try:
            if _hash_file(path) != digest:
                return f"{path} is damaged: it changed after it was saved"
        except OSError as error:
            return _describe_failure(path, error)
    return None


def _write(checkpoint: epath.Path, files: dict[str, str] | None) -> None:
    write_atomically(manifest_path(checkpoint), _format(checkpoint.name, files))


def _read(checkpoint: epath.Path) -> dict[str, str] | None:
    """Return a dict from file name to digest; None if the checkpoint is not complete."""
    text = manifest_path(checkpoint).read_text()
    content = json.loads(text)
    if not isinstance(content, dict) or text != _format(
        content.get("checkpoint"), content.get("files")
    ):
        raise ValueError("it changed after it was saved")
    if content["checkpoint"] != checkpoint.name:
        raise ValueError(f"it belongs to the checkpoint {content['checkpoint']}")
    return content["files"]


def _format(checkpoint: Any, files: Any) -> str:
    """Return the text of a manifest. It contains a digest of its own content."""
    content = {"checkpoint": checkpoint, "files": files}
    digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()
    return json.dumps({**content, "digest": digest}, indent=2) + "\n"


def _hash_file(path: epath.Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


def _describe_failure(path: epath.Path, error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return f"{path} is missing"
    return f"{path} cannot be read: {error.strerror or error}"
