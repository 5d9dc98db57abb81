"""Configuration of a pre-trained encoder, read from and written to a Hugging Face config.json."""

import dataclasses
import functools
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from etils import epath
from jaxtyping import Array

FAMILIES = ("bert", "roberta", "albert")
MAX_LAYERS = 1000  # A damaged config.json must not keep a program busy forever.
MAX_INTEGER = 10**9  # Larger integers are as wrong as this one, and may be too large for a float.

_exact_gelu = functools.partial(jax.nn.gelu, approximate=False)
_tanh_gelu = functools.partial(jax.nn.gelu, approximate=True)
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": _exact_gelu,
    "gelu_new": _tanh_gelu,
    "gelu_fast": _tanh_gelu,
    "gelu_pytorch_tanh": _tanh_gelu,
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "tanh": jnp.tanh,
}


@dataclasses.dataclass(frozen=True)
class PretrainedConfig:
    """Configuration of BERT, RoBERTa or ALBERT.

    Attributes:
      family: "bert", "roberta" or "albert".
      vocabulary: Size V of the vocabulary.
      features: Width D of the encoder.
      layers: Number of layers L.
      heads: Number of attention heads N.
      hidden_features: Width inside the feed-forward networks.
      positions: Number of position embeddings.
      types: Number of token types, such as 2 in BERT: first and second text of a pair.
      embedding_features: Width of the embeddings. Must be D, except for ALBERT.
      groups: Number of groups of consecutive layers. The L / groups layers of a group share their
        parameters. Must be L, except for ALBERT.
      activation: Activation of the feed-forward networks, a key of `ACTIVATIONS`.
      dropout_rate: Dropout rate of the embeddings, and of the outputs of attention and feed-forward
        network in each layer.
      attention_dropout_rate: Dropout rate of the attention weights.
      classifier_dropout_rate: Dropout rate of the inputs of the last layer of a classifier.
      epsilon: Constant that the layer norms add to the variance.
      padding: Token id of padding. In RoBERTa, the first token of a text has the position
        `padding + 1`.
      pooler: True if the encoder has a pooler: a dense layer with tanh, applied to the output at
        the first token.
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
        _check_choice("family", self.family, FAMILIES)
        _check_choice("activation", self.activation, tuple(ACTIVATIONS))
        for field in dataclasses.fields(self):
            name, value = field.name, getattr(self, field.name)
            if field.type is int and name != "padding":
                _check(value >= 1, f"{name} must be at least 1; got {value}.")
            if name.endswith("dropout_rate"):
                _check(0 <= value < 1, f"{name} must be from 0 to below 1; got {value}.")
        message = f"layers must be at most {MAX_LAYERS}; got {self.layers}."
        _check(self.layers <= MAX_LAYERS, message)
        _check(0 < self.epsilon < 1, f"epsilon must be above 0 and below 1; got {self.epsilon}.")
        _check(
            0 <= self.padding < self.vocabulary,
            f"padding must be a token, 0 to {self.vocabulary - 1}; got {self.padding}.",
        )
        _check(
            self.max_length >= 1,
            f"positions must be above {self.first_position}, the first position of a text; "
            f"got {self.positions}.",
        )
        for name, divisor in (("features", "heads"), ("layers", "groups")):
            value, parts = getattr(self, name), getattr(self, divisor)
            message = f"{name} ({value}) must be a multiple of {divisor} ({parts})."
            _check(value % parts == 0, message)
        if self.family != "albert":
            for name, equal in (("embedding_features", "features"), ("groups", "layers")):
                value, expected = getattr(self, name), getattr(self, equal)
                message = f"{name} must be {equal} ({expected}) for {self.family}; got {value}."
                _check(value == expected, message)

    @property
    def first_position(self) -> int:
        """Index of the position embedding of the first token of a text."""
        return self.padding + 1 if self.family == "roberta" else 0

    @property
    def max_length(self) -> int:
        """Maximum number of tokens of a text."""
        return self.positions - self.first_position


# Attributes of `PretrainedConfig` and keys of config.json. The sizes are required, the others have
# the defaults of transformers.
_SIZES = {
    "vocabulary": "vocab_size",
    "features": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "hidden_features": "intermediate_size",
    "positions": "max_position_embeddings",
}
_BERT = {
    "types": ("type_vocab_size", 2),
    "epsilon": ("layer_norm_eps", 1e-12),
    "activation": ("hidden_act", "gelu"),
    "dropout_rate": ("hidden_dropout_prob", 0.1),
    "attention_dropout_rate": ("attention_probs_dropout_prob", 0.1),
    "classifier_dropout_rate": ("classifier_dropout", None),  # None means dropout_rate
    "padding": ("pad_token_id", 0),
}
_OPTIONAL: dict[str, dict[str, tuple[str, Any]]] = {
    "bert": _BERT,
    "roberta": _BERT | {"padding": ("pad_token_id", 1)},
    "albert": _BERT
    | {
        "activation": ("hidden_act", "gelu_new"),
        "dropout_rate": ("hidden_dropout_prob", 0.0),
        "attention_dropout_rate": ("attention_probs_dropout_prob", 0.0),
        "classifier_dropout_rate": ("classifier_dropout_prob", 0.1),
        "embedding_features": ("embedding_size", 128),
        "groups": ("num_hidden_groups", 1),
    },
}
# The only supported value of each of these keys.
_SUPPORTED: dict[str, Any] = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "inner_group_num": 1,
    "pruned_heads": {},
}


def parse_config(
    content: Mapping[str, Any],
    path: str | Path | epath.Path,
    *,
    family: str | None = None,
    pooler: bool = True,
) -> PretrainedConfig:
    """Convert the content of a config.json to a `PretrainedConfig`.

    A key that is missing or null has the default value of transformers. Raise a ValueError if a
    required key is missing or if a value is not supported.

    Args:
      content: Content of the file.
      path: Path of the file, for error messages.
      family: "bert", "roberta" or "albert". It is used if the file has no model_type, as in old
        files.
      pooler: True if the checkpoint contains a pooler, which config.json does not specify.
    """
    content = {key: value for key, value in content.items() if value is not None}
    family = content.get("model_type", family)
    if family not in FAMILIES:
        raise ValueError(
            f"{path}: model_type must be one of {', '.join(FAMILIES)}; got {family!r}."
        )
    for key, supported in _SUPPORTED.items():
        if content.get(key, supported) != supported:
            raise ValueError(f"{path}: {key} must be {supported!r}; got {content[key]!r}.")
    missing = [key for key in _SIZES.values() if key not in content]
    if missing:
        raise ValueError(f"{path}: {', '.join(missing)} must be given.")
    values = {name: content[key] for name, key in _SIZES.items()}
    for name, (key, default) in _OPTIONAL[family].items():
        values[name] = content.get(key, default)
    if values["classifier_dropout_rate"] is None:
        values["classifier_dropout_rate"] = values["dropout_rate"]
    values.setdefault("embedding_features", values["features"])
    values.setdefault("groups", values["layers"])
    keys = _SIZES | {name: key for name, (key, _) in _OPTIONAL[family].items()}
    for field in dataclasses.fields(PretrainedConfig):
        if field.name in keys:
            key = keys[field.name]
            values[field.name] = _check_type(f"{path}: {key}", values[field.name], field.type)
    _check_choice(f"{path}: hidden_act", values["activation"], tuple(ACTIVATIONS))
    try:
        return PretrainedConfig(family=family, pooler=pooler, **values)
    except ValueError as error:
        names = "|".join(keys)
        message = re.sub(rf"\b({names})\b(?= \(| must)", lambda match: keys[match[0]], str(error))
        raise ValueError(f"{path}: {message}") from error


def format_config(config: PretrainedConfig) -> str:
    """Convert a configuration to the text of a config.json."""
    content: dict[str, Any] = {
        "architectures": [f"{config.family.capitalize()}Model"],
        "model_type": config.family,
        "position_embedding_type": "absolute",
    }
    for name, key in _SIZES.items():
        content[key] = getattr(config, name)
    for name, (key, _) in _OPTIONAL[config.family].items():
        content[key] = getattr(config, name)
    return json.dumps(content, indent=2, sort_keys=True) + "\n"


def _check_type(name: str, value: Any, expected: Any) -> Any:
    """Return a value of a config.json. Raise a ValueError unless it has the expected type.

    If a float is expected, an integer is converted to float.

    Args:
      name: Path of the file and key of the value, for the error message.
      value: Value to check.
      expected: Expected type.
    """
    if expected is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(min(value, MAX_INTEGER))
    if not isinstance(value, expected) or isinstance(value, bool):
        raise ValueError(f"{name} must be of type {expected.__name__}; got {value!r}.")
    return value


def _check(condition: bool, message: str) -> None:
    """Raise a ValueError with this message unless the condition is True."""
    if not condition:
        raise ValueError(message)


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise a ValueError unless the value is one of the choices. `name` is for the message."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}; got {value!r}.")
