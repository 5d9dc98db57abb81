"""Names and shapes of the tensors of an encoder in checkpoints of the transformers library."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from distattn_jax.models.pretrained.config import PretrainedConfig

ParameterPath = tuple[str | int, ...]  # names and indices from an NNX module to a parameter

# Prefixes of tensors of the heads of other tasks, and of constants that old versions stored.
IGNORED_PREFIXES = (
    "cls.",
    "lm_head.",
    "classifier.",
    "qa_outputs.",
    "predictions.",
    "sop_classifier.",
    "embeddings.position_ids",
    "embeddings.token_type_ids",
)

# Dense layers of a Transformer layer: name in BERT and RoBERTa, name in ALBERT, inputs, outputs.
_DENSE_LAYERS = {
    "attention.query": ("attention.self.query", "attention.query", "features", "heads"),
    "attention.key": ("attention.self.key", "attention.key", "features", "heads"),
    "attention.value": ("attention.self.value", "attention.value", "features", "heads"),
    "attention.out": ("attention.output.dense", "attention.dense", "heads", "features"),
    "feed_forward.hidden": ("intermediate.dense", "ffn", "features", "hidden"),
    "feed_forward.out": ("output.dense", "ffn_output", "hidden", "features"),
}
# Layer norms of a Transformer layer: name in BERT and RoBERTa, name in ALBERT.
_NORMS = {
    "attention_norm": ("attention.output.LayerNorm", "attention.LayerNorm"),
    "feed_forward_norm": ("output.LayerNorm", "full_layer_layer_norm"),
}


class StoredTensor(NamedTuple):
    """Tensor of a checkpoint that stores one parameter of the encoder, in another shape.

    Attributes:
      name: Name of the tensor, without the prefix of the family, such as "bert.".
      shape: Shape of the tensor. It is (outputs, inputs) for the kernel of a dense layer.
      parameter_shape: Shape of the parameter. It is (*inputs, *outputs) for the kernel of a dense
        layer, where the attention heads have their own axis.
      is_matrix: True if the tensor is the kernel of a dense layer, which is stored transposed.
    """

    name: str
    shape: tuple[int, ...]
    parameter_shape: tuple[int, ...]
    is_matrix: bool = False

    def to_parameter(self, tensor: np.ndarray) -> np.ndarray:
        """Convert the tensor of the checkpoint to the parameter of the encoder, in float32."""
        tensor = tensor.T if self.is_matrix else tensor
        return np.ascontiguousarray(tensor, np.float32).reshape(self.parameter_shape)

    def from_parameter(self, parameter: np.ndarray) -> np.ndarray:
        """Convert the parameter of the encoder to the tensor of the checkpoint."""
        if self.is_matrix:
            parameter = parameter.reshape(self.shape[::-1]).T
        return np.ascontiguousarray(parameter).reshape(self.shape)


def tensors_by_path(config: PretrainedConfig) -> dict[ParameterPath, StoredTensor]:
    """Return a dict from the path of each encoder parameter to the tensor that stores it.

    A path is a tuple of attribute names and list indices, such as ("layers", 0, "attention_norm",
    "scale").

    Args:
      config: Configuration of the encoder.
    """
    tensors = dict(_embedding_tensors(config))
    for index in range(config.groups):
        tensors |= _layer_tensors(config, index)
    if config.pooler:
        name = "pooler" if config.family == "albert" else "pooler.dense"
        tensors |= _dense_tensors(("pooler",), name, (config.features,), (config.features,))
    return tensors


def normalize_name(name: str, family: str) -> str:
    """Convert the name of a stored tensor to the form of `StoredTensor.name`.

    Remove the prefix of the family, such as "bert.", and replace the old names "gamma" and "beta"
    of the parameters of layer norms.
    """
    name = name.removeprefix(f"{family}.")
    for old, new in ((".gamma", ".weight"), (".beta", ".bias")):
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name


def is_ignored(name: str, config: PretrainedConfig) -> bool:
    """Return True for a tensor that a checkpoint may contain, but that the encoder does not use.

    Args:
      name: Name of the tensor, as returned by `normalize_name`.
      config: Configuration of the encoder.
    """
    return name.startswith(IGNORED_PREFIXES) or (not config.pooler and name.startswith("pooler."))


def _embedding_tensors(config: PretrainedConfig) -> Iterator[tuple[ParameterPath, StoredTensor]]:
    """Yield (parameter path, stored tensor) for each parameter of the embeddings."""
    width = config.embedding_features
    for part, name, rows in (
        ("tokens", "word_embeddings", config.vocabulary),
        ("positions", "position_embeddings", config.positions),
        ("types", "token_type_embeddings", config.types),
    ):
        shape = (rows, width)
        path = ("embeddings", part, "embedding")
        yield path, StoredTensor(f"embeddings.{name}.weight", shape, shape)
    yield from _norm_tensors(("embeddings", "norm"), "embeddings.LayerNorm", width).items()
    if config.family == "albert":
        name, features = "encoder.embedding_hidden_mapping_in", (config.features,)
        yield from _dense_tensors(("embeddings", "project"), name, (width,), features).items()


def _layer_tensors(config: PretrainedConfig, index: int) -> dict[ParameterPath, StoredTensor]:
    """Return a dict from parameter path to stored tensor for the layer with this index."""
    is_albert = config.family == "albert"
    albert_prefix = f"encoder.albert_layer_groups.{index}.albert_layers.0"
    prefix = albert_prefix if is_albert else f"encoder.layer.{index}"
    shapes = {
        "features": (config.features,),
        "hidden": (config.hidden_features,),
        "heads": (config.heads, config.features // config.heads),
    }
    tensors: dict[ParameterPath, StoredTensor] = {}
    for part, (bert_name, albert_name, inputs, outputs) in _DENSE_LAYERS.items():
        name = f"{prefix}.{albert_name if is_albert else bert_name}"
        path: ParameterPath = ("layers", index, *part.split("."))
        tensors |= _dense_tensors(path, name, shapes[inputs], shapes[outputs])
    for part, (bert_name, albert_name) in _NORMS.items():
        name = f"{prefix}.{albert_name if is_albert else bert_name}"
        tensors |= _norm_tensors(("layers", index, part), name, config.features)
    return tensors


def _dense_tensors(
    path: ParameterPath, name: str, inputs: tuple[int, ...], outputs: tuple[int, ...]
) -> dict[ParameterPath, StoredTensor]:
    """Return a dict from parameter path to stored tensor for kernel and bias of a dense layer.

    Args:
      path: Path of the dense layer in the encoder.
      name: Name of the dense layer in the checkpoint.
      inputs: Sizes of the input axes of the kernel, such as (D,).
      outputs: Sizes of the output axes of the kernel, such as (N, H).
    """
    shape = (int(np.prod(outputs)), int(np.prod(inputs)))
    return {
        (*path, "kernel"): StoredTensor(f"{name}.weight", shape, (*inputs, *outputs), True),
        (*path, "bias"): StoredTensor(f"{name}.bias", shape[:1], outputs),
    }


def _norm_tensors(path: ParameterPath, name: str, width: int) -> dict[ParameterPath, StoredTensor]:
    """Return a dict from parameter path to stored tensor for scale and bias of a layer norm.

    Args:
      path: Path of the layer norm in the encoder.
      name: Name of the layer norm in the checkpoint.
      width: Size of scale and bias.
    """
    return {
        (*path, "scale"): StoredTensor(f"{name}.weight", (width,), (width,)),
        (*path, "bias"): StoredTensor(f"{name}.bias", (width,), (width,)),
    }
