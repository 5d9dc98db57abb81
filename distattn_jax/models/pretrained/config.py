"""What a pre-trained encoder is made of, and its config.json in the Hugging Face layout."""

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from etils import epath
from jaxtyping import Array

FAMILIES = ("bert", "roberta", "albert")

_exact = functools.partial(jax.nn.gelu, approximate=False)
_tanh = functools.partial(jax.nn.gelu, approximate=True)
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": _exact,
    "gelu_new": _tanh,
    "gelu_fast": _tanh,
    "gelu_pytorch_tanh": _tanh,
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "tanh": jnp.tanh,
}


@dataclasses.dataclass(frozen=True)
class PretrainedConfig:
    """Sizes and rates of BERT, RoBERTa or ALBERT.

    Attributes:
      family: "bert", "roberta" or "albert".
      vocabulary: V.
      features: D.
      layers: L.
      heads: N.
      hidden_features: width inside the feed-forward networks.
      positions: rows of the table of positions.
      types: rows of the table of token types.
      embedding_features: width of the embeddings; only ALBERT's may differ from D.
      groups: layers with parameters of their own, each used L / groups times in a row; ALBERT
        has few, mostly 1, the others L.
      activation: of the feed-forward networks, as config.json calls it.
      dropout_rate: before each residual, and of the embeddings.
      attention_dropout_rate: of the attention weights.
      classifier_dropout_rate: before the classes.
      epsilon: of the layer norms.
      padding: the token of padding; RoBERTa counts positions from the one after it.
      pooler: whether there is a layer for the pooled output.
    """

    family: str
    vocabulary: int
    features: int
    layers: int
    heads: int
    hidden_features: int
    positions: int
    types: int
    embedding_features: int
    groups: int
    activation: str = "gelu"
    dropout_rate: float = 0.1
    attention_dropout_rate: float = 0.1
    classifier_dropout_rate: float = 0.1
    epsilon: float = 1e-12
    padding: int = 0
    pooler: bool = True

    def __post_init__(self):
        _check("family", self.family, FAMILIES)
        _check("activation", self.activation, tuple(ACTIVATIONS))
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.type is int and field.name != "padding" and value < 1:
                raise ValueError(f"{field.name} must be at least 1; got {value}.")
            if field.name.endswith("dropout_rate") and not 0 <= value < 1:
                raise ValueError(f"{field.name} must be from 0 to below 1; got {value}.")
        if self.features % self.heads:
            raise ValueError(
                f"features ({self.features}) must be a multiple of heads ({self.heads})."
            )
        if self.layers % self.groups:
            raise ValueError(
                f"layers ({self.layers}) must be a multiple of groups ({self.groups})."
            )
        if self.family != "albert" and self.embedding_features != self.features:
            raise ValueError(
                f"embedding_features must be features ({self.features}) for {self.family}; "
                f"got {self.embedding_features}."
            )
        if self.family != "albert" and self.groups != self.layers:
            raise ValueError(
                f"groups must be layers ({self.layers}) for {self.family}; got {self.groups}."
            )

    @property
    def first_position(self) -> int:
        """The row of the first token in the table of positions."""
        return self.padding + 1 if self.family == "roberta" else 0

    @property
    def longest(self) -> int:
        """How many tokens a text may have."""
        return self.positions - self.first_position


# Our names, and those of config.json with what transformers takes when they are missing.
_SIZES = {
    "vocabulary": "vocab_size",
    "features": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "hidden_features": "intermediate_size",
    "positions": "max_position_embeddings",
}
_COMMON = {
    "types": ("type_vocab_size", 2),
    "epsilon": ("layer_norm_eps", 1e-12),
}
_BERT = _COMMON | {
    "activation": ("hidden_act", "gelu"),
    "dropout_rate": ("hidden_dropout_prob", 0.1),
    "attention_dropout_rate": ("attention_probs_dropout_prob", 0.1),
    "classifier_dropout_rate": ("classifier_dropout", None),  # None: that of the layers
    "padding": ("pad_token_id", 0),
}
_OPTIONAL: dict[str, dict[str, tuple[str, Any]]] = {
    "bert": _BERT,
    "roberta": _BERT | {"padding": ("pad_token_id", 1)},
    "albert": _COMMON
    | {
        "activation": ("hidden_act", "gelu_new"),
        "dropout_rate": ("hidden_dropout_prob", 0.0),
        "attention_dropout_rate": ("attention_probs_dropout_prob", 0.0),
        "classifier_dropout_rate": ("classifier_dropout_prob", 0.1),
        "padding": ("pad_token_id", 0),
        "embedding_features": ("embedding_size", 128),
        "groups": ("num_hidden_groups", 1),
    },
}
# What other values would change is not built here.
_ONLY: dict[str, Any] = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "inner_group_num": 1,
    "pruned_heads": {},
}
_ARCHITECTURES = {"bert": "BertModel", "roberta": "RobertaModel", "albert": "AlbertModel"}


def parse_config(
    given: Mapping[str, Any],
    path: str | Path | epath.Path,
    *,
    family: str | None = None,
    pooler: bool = True,
) -> PretrainedConfig:
    """The content of a config.json, in our words; what is null there is as good as missing.

    Args:
      given: the content.
      path: the file, for errors.
      family: where the file, being older than that field, has no model_type.
      pooler: whether the weights have one: config.json does not say.
    """
    given = {key: value for key, value in given.items() if value is not None}
    family = given.get("model_type", family)
    if family not in FAMILIES:
        raise ValueError(
            f"{path}: model_type must be one of {', '.join(FAMILIES)}; got {family!r}."
        )
    for key, only in _ONLY.items():
        if given.get(key, only) != only:
            raise ValueError(f"{path}: {key} must be {only!r}; got {given[key]!r}.")
    missing = [key for key in _SIZES.values() if key not in given]
    if missing:
        raise ValueError(f"{path}: {', '.join(missing)} must be given.")
    values = {name: given[key] for name, key in _SIZES.items()}
    for name, (key, default) in _OPTIONAL[family].items():
        values[name] = given.get(key, default)
    if values["classifier_dropout_rate"] is None:
        values["classifier_dropout_rate"] = values["dropout_rate"]
    values.setdefault("embedding_features", values["features"])
    values.setdefault("groups", values["layers"])
    keys = _SIZES | {name: key for name, (key, _) in _OPTIONAL[family].items()}
    for field in dataclasses.fields(PretrainedConfig):
        if field.name in keys:
            key = keys[field.name]
            values[field.name] = _typed(field.type, values[field.name], f"{path}: {key}")
    _check(f"{path}: hidden_act", values["activation"], tuple(ACTIVATIONS))
    try:
        return PretrainedConfig(family=family, pooler=pooler, **values)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def written(config: PretrainedConfig) -> str:
    """The text of its config.json."""
    content: dict[str, Any] = {
        "architectures": [_ARCHITECTURES[config.family]],
        "model_type": config.family,
        "position_embedding_type": "absolute",
    }
    for name, key in _SIZES.items():
        content[key] = getattr(config, name)
    for name, (key, _) in _OPTIONAL[config.family].items():
        content[key] = getattr(config, name)
    return json.dumps(content, indent=2, sort_keys=True) + "\n"


def _typed(wanted: Any, value: Any, what: str) -> Any:
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, wanted) or isinstance(value, bool):
        raise ValueError(f"{what} must be of type {wanted.__name__}; got {value!r}.")
    return value


def _check(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}; got {value!r}.")
