"""The names that transformers gives to what our parameters hold."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from distattn_jax.models.pretrained.config import PretrainedConfig

Path = tuple[str | int, ...]  # of a parameter in an NNX module

# Tensors of other tasks' heads, and constants that older versions stored.
LEFTOVERS = (
    "cls.",
    "lm_head.",
    "classifier.",
    "qa_outputs.",
    "predictions.",
    "sop_classifier.",
    "embeddings.position_ids",
    "embeddings.token_type_ids",
)


class Tensor(NamedTuple):
    """A tensor in a file, and the same as a parameter.

    Attributes:
      name: in the file, without the family's prefix.
      shape: there; of a matrix (out, in).
      own: the shape of the parameter; of a matrix, in comes first, and heads have axes.
      is_matrix: whether it is a matrix to multiply with, hence transposed.
    """

    name: str
    shape: tuple[int, ...]
    own: tuple[int, ...]
    is_matrix: bool = False

    def parameter(self, tensor: np.ndarray) -> np.ndarray:
        """Of a file, as we hold it."""
        tensor = tensor.T if self.is_matrix else tensor
        return np.ascontiguousarray(tensor, np.float32).reshape(self.own)

    def stored(self, parameter: np.ndarray) -> np.ndarray:
        """Ours, as a file holds it."""
        if self.is_matrix:
            parameter = parameter.reshape(self.shape[::-1]).T
        return np.ascontiguousarray(parameter).reshape(self.shape)


def tensors_of(config: PretrainedConfig) -> dict[Path, Tensor]:
    """All tensors of a model, by the paths of the parameters of `PretrainedEncoder`."""
    tensors = dict(_embeddings(config))
    for number in range(config.groups):
        tensors |= _layer(config, number)
    if config.pooler:
        name = "pooler" if config.family == "albert" else "pooler.dense"
        tensors |= _dense(("pooler",), name, (config.features,), (config.features,))
    return tensors


def plain_name(name: str, family: str) -> str:
    """Without the prefix that models with a head put in front, and with today's endings."""
    name = name.removeprefix(f"{family}.")
    for old, new in ((".gamma", ".weight"), (".beta", ".bias")):
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name


def is_leftover(name: str, config: PretrainedConfig) -> bool:
    """Whether a tensor, by its plain name, is one that the encoder is known not to need."""
    return name.startswith(LEFTOVERS) or (not config.pooler and name.startswith("pooler."))


def _embeddings(config: PretrainedConfig) -> Iterator[tuple[Path, Tensor]]:
    width = config.embedding_features
    for part, name, rows in (
        ("tokens", "word_embeddings", config.vocabulary),
        ("positions", "position_embeddings", config.positions),
        ("types", "token_type_embeddings", config.types),
    ):
        shape = (rows, width)
        path = ("embeddings", part, "embedding")
        yield path, Tensor(f"embeddings.{name}.weight", shape, shape)
    yield from _norm(("embeddings", "norm"), "embeddings.LayerNorm", width).items()
    if config.family == "albert":
        name = "encoder.embedding_hidden_mapping_in"
        yield from _dense(("embeddings", "project"), name, (width,), (config.features,)).items()


def _layer(config: PretrainedConfig, number: int) -> dict[Path, Tensor]:
    if config.family == "albert":
        layer = f"encoder.albert_layer_groups.{number}.albert_layers.0"
        names = {
            "project": "attention.",
            "out": "attention.dense",
            "attention_norm": "attention.LayerNorm",
            "hidden": "ffn",
            "feed_forward": "ffn_output",
            "feed_forward_norm": "full_layer_layer_norm",
        }
    else:
        layer = f"encoder.layer.{number}"
        names = {
            "project": "attention.self.",
            "out": "attention.output.dense",
            "attention_norm": "attention.output.LayerNorm",
            "hidden": "intermediate.dense",
            "feed_forward": "output.dense",
            "feed_forward_norm": "output.LayerNorm",
        }
    names = {part: f"{layer}.{name}" for part, name in names.items()}
    own: Path = ("layers", number)
    wide, inner = (config.features,), (config.hidden_features,)
    by_head = (config.heads, config.features // config.heads)
    tensors: dict[Path, Tensor] = {}
    for part in ("query", "key", "value"):
        tensors |= _dense((*own, "attention", part), names["project"] + part, wide, by_head)
    tensors |= _dense((*own, "attention", "out"), names["out"], by_head, wide)
    tensors |= _dense((*own, "feed_forward", "hidden"), names["hidden"], wide, inner)
    tensors |= _dense((*own, "feed_forward", "out"), names["feed_forward"], inner, wide)
    for part in ("attention_norm", "feed_forward_norm"):
        tensors |= _norm((*own, part), names[part], config.features)
    return tensors


def _dense(
    path: Path, name: str, inputs: tuple[int, ...], outputs: tuple[int, ...]
) -> dict[Path, Tensor]:
    wide, narrow = int(np.prod(outputs)), int(np.prod(inputs))
    return {
        (*path, "kernel"): Tensor(f"{name}.weight", (wide, narrow), (*inputs, *outputs), True),
        (*path, "bias"): Tensor(f"{name}.bias", (wide,), outputs),
    }


def _norm(path: Path, name: str, width: int) -> dict[Path, Tensor]:
    return {
        (*path, "scale"): Tensor(f"{name}.weight", (width,), (width,)),
        (*path, "bias"): Tensor(f"{name}.bias", (width,), (width,)),
    }
