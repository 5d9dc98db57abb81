"""BERT, RoBERTa and ALBERT: trained weights in, any attention in their layers, weights out."""

from distattn_jax.models.pretrained.config import PretrainedConfig
from distattn_jax.models.pretrained.encoder import PretrainedEncoder
from distattn_jax.models.pretrained.files import (
    folder_of,
    load,
    parameters,
    read_config,
    save,
    stored_types,
    weight_files,
)

__all__ = [
    "PretrainedConfig",
    "PretrainedEncoder",
    "folder_of",
    "load",
    "parameters",
    "read_config",
    "save",
    "stored_types",
    "weight_files",
]
