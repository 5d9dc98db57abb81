"""Options that several tasks share: vocabulary, sizes of the model, attention variants.

The config of a task extends `MethodsConfig` or `FineTuningConfig`. Its groups `data` and `model`
extend the classes of this module.
"""

import dataclasses
from typing import Any

from distattn_jax.attention import IMPLEMENTATIONS
from distattn_jax.data import TOKENIZERS
from distattn_jax.models import METHODS
from distattn_jax.train import Config, DataConfig, Options, option

RELATIVE_POSITION_METHODS = tuple(
    name for name, method in METHODS.items() if name.startswith("relative_") or method.has_switches
)
DISTANCE_AWARE_METHODS = tuple(
    name for name, method in METHODS.items() if method.has_distance_weights
)


def dataset_option(*names: str) -> Any:
    """Return the option `dataset` of a task.

    Args:
      *names: Names of the data sets that the task can use. The first name is the default.
    """
    return option(names[0], "name of the data set", choices=names)


def embedding_option() -> Any:
    """Return the option `embedding_features` of a model."""
    return option(300, "width of the embeddings, unless vectors are loaded", minimum=1)


@dataclasses.dataclass(frozen=True)
class WordConfig(DataConfig):
    """Options of the data set, the batches, and the vocabulary of words."""

    vocabulary: int = option(
        50_000,
        "largest size of the vocabulary, built on the training set",
        minimum=3,
        maximum=2**31 - 1,  # Token ids are 32-bit integers.
    )
    min_count: int = option(1, "word_level: words less frequent than this are unknown", minimum=1)
    vectors: str = option("", "GloVe file (text, .gz or .zip) with the initial embeddings")


@dataclasses.dataclass(frozen=True)
class TokenizerConfig(WordConfig):
    """Options of the data set, the batches, the vocabulary and the kind of tokenizer."""

    tokenizer: str = option("word_level", "kind of tokenizer", choices=tuple(TOKENIZERS))


@dataclasses.dataclass(frozen=True)
class ComputeConfig(Options):
    """Options of the computation of a model: dropout, dtype and implementation of attention."""

    dropout_rate: tuple[float, ...] = option((0.2,), "dropout rate", grid=True, minimum=0)
    dtype: str = option(
        "float32",
        "dtype of the computation; parameters are float32",
        choices=("float32", "bfloat16"),
    )
    implementation: str = option("", "implementation of attention; empty picks the fastest")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(all(rate < 1 for rate in self.dropout_rate), "dropout_rate", "below 1")
        names = ", ".join(IMPLEMENTATIONS)
        is_known = self.implementation in ("", *IMPLEMENTATIONS)
        self.require(is_known, "implementation", f"empty or one of {names}")


@dataclasses.dataclass(frozen=True)
class TransformerConfig(ComputeConfig):
    """Options of the sizes and initial values of Transformer layers with any attention variant."""

    layers: int = option(1, "encoder layers", minimum=1)
    heads: int = option(16, "attention heads", minimum=1)
    head_features: int = option(16, "width of a head", minimum=1)
    features: int = option(256, "width of the model", minimum=1)
    hidden_features: int = option(
        256, "width of the hidden layer of the feed-forward networks", minimum=1
    )
    max_distance: int = option(
        16,
        "distance at which relative positions are clipped",
        methods=RELATIVE_POSITION_METHODS,
        minimum=0,
    )
    initial_weight: tuple[float, ...] = option(
        (0.1,),
        "initial mean of |w|, the distance weight; w is negative in half of the heads",
        grid=True,
        methods=DISTANCE_AWARE_METHODS,
    )
    initial_shape: tuple[float, ...] = option(
        (0.0,),
        "initial v, the shape of the sigmoid of a head",
        grid=True,
        methods=DISTANCE_AWARE_METHODS,
    )
    distance_rate: tuple[float, ...] = option(
        (1.0,),
        "learning rate of w and v, divided by the learning rate of other parameters",
        grid=True,
        methods=DISTANCE_AWARE_METHODS,
        minimum=0,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.features % 2 == 0, "features", "even (sines and cosines)")


@dataclasses.dataclass(frozen=True)
class ModelConfig(TransformerConfig):
    """Options of the sizes and initial values of the model."""

    embedding_features: int = embedding_option()
    pooling_features: int = option(200, "width of the hidden layer of the pooling", minimum=1)


@dataclasses.dataclass(frozen=True)
class MethodsConfig(Config):
    """Options of an experiment that compares the attention variants in `models.METHODS`."""

    methods: tuple[str, ...] = option(
        ("distance_aware",),
        "attention variants to compare, one run each",
        choices=tuple(name for name, method in METHODS.items() if not method.has_switches),
        changes_result=False,
    )
    model: TransformerConfig = ModelConfig()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model.heads % self.mesh.model:
            raise ValueError(
                f"model.heads ({self.model.heads}) must be a multiple of "
                f"mesh.model ({self.mesh.model})."
            )
