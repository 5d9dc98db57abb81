"""The pre-trained model that a run begins with: what fits it, and what is kept about it."""

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

from distattn_jax.models import PretrainedConfig
from distattn_jax.models import pretrained as models
from distattn_jax.train.config import Config, ModelConfig


def check(config: Config) -> None:
    """Raises where what is asked for does not fit the model."""
    source = config.model.pretrained
    sizes = models.read_config(models.resolve_folder(source))
    _check_sizes(config.model, sizes)
    if config.data.longest > sizes.max_length:
        raise ValueError(
            f"data.longest must be at most {sizes.max_length}, the positions of {source}; "
            f"got {config.data.longest}."
        )
    for name in ("layers", "layer"):
        layers = getattr(config.guiding, name)
        if any(layer >= sizes.layers for layer in layers):
            raise ValueError(
                f"guiding.{name} must be below {sizes.layers}, the layers of {source}; "
                f"got {layers}."
            )
    if sizes.heads % config.mesh.model:
        raise ValueError(
            f"mesh.model must divide {sizes.heads}, the heads of {source}; got {config.mesh.model}."
        )


def about(folder: Path, name: str, sizes: PretrainedConfig) -> dict[str, Any]:
    """What is known of the model of a folder, which was asked for by this name, for a file."""
    return {
        "name": Path(name).name,
        "digest": _digest(folder),
        "stored": models.stored_dtypes(folder),
        "config": dataclasses.asdict(sizes),
    }


def sized(config: ModelConfig, sizes: PretrainedConfig) -> ModelConfig:
    """With the sizes of the pre-trained model."""
    return dataclasses.replace(
        config,
        layers=sizes.layers,
        heads=sizes.heads,
        head_features=sizes.features // sizes.heads,
        features=sizes.features,
        hidden_features=sizes.hidden_features,
        embedding_features=sizes.embedding_features,
    )


def _check_sizes(config: ModelConfig, sizes: PretrainedConfig) -> None:
    """Sizes are those of the pre-trained model, or not given."""
    true, default = sized(config, sizes), ModelConfig()
    for field in dataclasses.fields(config):
        given, wanted = getattr(config, field.name), getattr(true, field.name)
        if given not in (wanted, getattr(default, field.name)):
            raise ValueError(
                f"model.{field.name} must be {wanted}, as in {config.pretrained}, or not be given; "
                f"got {given}."
            )


def _digest(folder: Path) -> str:
    """Of the weights, so that a result says which they were."""
    digest = hashlib.sha256()
    for path in models.weight_files(folder):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]
