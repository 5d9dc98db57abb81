"""Sizes and digest of a pre-trained model, and checks that a config fits this model."""

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

from distattn_jax.models import PretrainedConfig
from distattn_jax.models import pretrained as models


def read_sizes(name: str) -> PretrainedConfig:
    """Return the sizes of a pre-trained model. The pooler of the model is left out.

    Args:
      name: Folder or hub name of the model.
    """
    return dataclasses.replace(models.read_config(models.resolve_folder(name)), pooler=False)


def check_fits(config: Any) -> None:
    """Raise `ValueError` if a config exceeds the limits of its pre-trained model.

    The checks are on the maximum text length, the indices of the guided layers, and the number of
    devices among which the heads are divided.
    """
    source = config.model.pretrained
    sizes = read_sizes(source)
    if config.data.longest > sizes.max_length:
        raise ValueError(
            f"--data.longest must be at most {sizes.max_length}, the positions of {source}; "
            f"got {config.data.longest}."
        )
    for name in ("layers", "layer"):
        layers = getattr(config.guiding, name)
        if any(layer >= sizes.layers for layer in layers):
            raise ValueError(
                f"--guiding.{name} must be below {sizes.layers}, the layers of {source}; "
                f"got {layers}."
            )
    if sizes.heads % config.mesh.model:
        raise ValueError(
            f"--mesh.model must divide {sizes.heads}, the heads of {source}; "
            f"got {config.mesh.model}."
        )


def describe_source(name: str, sizes: PretrainedConfig) -> dict[str, Any]:
    """Return the name, digest, dtypes and sizes of a pre-trained model, to store in data.json."""
    folder = models.resolve_folder(name)
    return {
        "name": Path(name).name,
        "digest": _digest_weights(folder),
        "stored": models.stored_dtypes(folder),
        "config": dataclasses.asdict(sizes),
    }


def _digest_weights(folder: Path) -> str:
    """Return a short SHA-256 digest of the weight files."""
    digest = hashlib.sha256()
    for path in models.weight_files(folder):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]
