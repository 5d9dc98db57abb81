"""BERT, RoBERTa and ALBERT encoders with any attention variant, loaded from checkpoints."""

from distattn_jax.models.pretrained.checkpoint import (
    load,
    read_config,
    read_parameters,
    resolve_folder,
    save,
    stored_dtypes,
    weight_files,
)
from distattn_jax.models.pretrained.config import PretrainedConfig
from distattn_jax.models.pretrained.encoder import PretrainedEncoder

__all__ = [
    "PretrainedConfig",
    "PretrainedEncoder",
    "load",
    "read_config",
    "read_parameters",
    "resolve_folder",
    "save",
    "stored_dtypes",
    "weight_files",
]
