"""Options that several tasks share: vocabulary, sizes of the model, attention variants, guides.

The config of a task is a subclass of `MethodsConfig` or `FineTuningConfig`. The class of its option
group `data` is a subclass of `DataConfig`. The class of its option group `model` is a subclass of
`ComputeConfig`.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from distattn_jax.attention import IMPLEMENTATIONS, PRECISIONS
from distattn_jax.data import TOKENIZERS
from distattn_jax.models import METHODS
from distattn_jax.tasks.guides import GUIDES, Guide
from distattn_jax.train import Config, DataConfig, Options, option

MAX_LAYERS = 1000  # A larger number is a typing error.

RELATIVE_POSITION_METHODS = tuple(
    name for name, method in METHODS.items() if name.startswith("relative_") or method.has_switches
)
DISTANCE_AWARE_METHODS = tuple(
    name for name, method in METHODS.items() if method.has_distance_weights
)
ALL_LAYERS = -1  # value of the option `guiding.layer`
# Advice for users who ask for a guide where variants are compared, or for a variant among guides.
USE_PRETRAINED = (
    "This is a guide of pre-trained models: use the recipe guided_texts for your own texts "
    "(docs/pretrained.md)."
)
USE_VARIANTS = "This is an attention variant: use the recipe text_files for your own texts."


def dataset_option(*names: str) -> Any:
    """Return the dataclass field of the option `dataset` of a task.

    Args:
      *names: Names of the data sets that the task can use. The first name is the default.
    """
    return option(names[0], "name of the data set", choices=names)


def tokenizer_option() -> Any:
    """Return the dataclass field of the option `tokenizer` of a task."""
    return option("word_level", "kind of tokenizer", choices=tuple(TOKENIZERS))


def longest_option() -> Any:
    """Return the dataclass field of the option `longest` of a task that truncates long texts."""
    return option(512, "maximum number of tokens of a text; the rest is cut", minimum=1)


def embedding_option() -> Any:
    """Return the dataclass field of the option `embedding_features` of a model."""
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
class ComputeConfig(Options):
    """Options of the computation of a model: dropout, dtype, attention and memory."""

    dropout_rate: tuple[float, ...] = option((0.2,), "dropout rate", grid=True, minimum=0)
    dtype: str = option(
        "float32",
        "dtype of the computation; parameters are float32",
        choices=("float32", "bfloat16"),
    )
    implementation: str = option("", "implementation of attention; empty picks the fastest")
    precision: str = option(
        "",
        "precision of matrix products in attention layers; BF16_BF16_F32 uses the fused 16-bit "
        "kernels for a float32 model; empty is JAX's default",
    )
    remat: bool = option(False, "recompute each layer in the backward pass, to save memory")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(all(rate < 1 for rate in self.dropout_rate), "dropout_rate", "below 1")
        names = ", ".join(IMPLEMENTATIONS)
        is_known = self.implementation in ("", *IMPLEMENTATIONS)
        self.require(is_known, "implementation", f"empty or one of {names}")
        is_known = self.precision in ("", *PRECISIONS)
        self.require(is_known, "precision", f"empty or one of {', '.join(PRECISIONS)}")


@dataclasses.dataclass(frozen=True)
class TransformerConfig(ComputeConfig):
    """Options of the sizes and initial values of Transformer layers with any attention variant."""

    layers: int = option(1, "encoder layers", minimum=1, maximum=MAX_LAYERS)
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
    local_heads: bool = option(
        False,
        "start with a negative w in all heads, not in half of them: local heads are fast on long "
        "texts",
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
        choices={
            name: method.summary for name, method in METHODS.items() if not method.has_switches
        },
        advice=dict.fromkeys(GUIDES.keys() - {"none"}, USE_PRETRAINED),
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


def _guides_where(condition: Callable[[Guide], bool]) -> tuple[str, ...]:
    return tuple(name for name, guide in GUIDES.items() if condition(guide))


GUIDES_WITH_LOSSES = _guides_where(lambda guide: bool(guide.terms))


def _weight_option(name: str, default: float, explanation: str) -> Any:
    """Return the dataclass field of an option: the weight of auxiliary losses on the attention.

    A guide is a set of auxiliary losses. Only guides that have the weight `name` use this option.
    """
    methods = _guides_where(lambda guide: name in guide.weights)
    return option((default,), explanation, grid=True, methods=methods, minimum=0)


@dataclasses.dataclass(frozen=True)
class FineTuningData(DataConfig):
    """Options of the data set and the batches, for fine-tuning a pre-trained model."""

    longest: int = option(
        512, "maximum number of tokens of a text or pair; the rest is cut", minimum=1
    )
    share: float = option(1.0, "fraction of the training set to learn from")
    parses: str = option(
        "", "folder with the parsed training set (CoNLL-U)", methods=("dependency",)
    )
    vectors: str = option(
        "", "GloVe file (text, .gz or .zip) of word vectors", methods=("word_similarity",)
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(0 < self.share <= 1, "share", "above 0 and at most 1")


@dataclasses.dataclass(frozen=True)
class PretrainedModelConfig(ComputeConfig):
    """Options of the pre-trained model and its computation."""

    pretrained: str = option("", "folder or hub name of the pre-trained model")
    dropout_rate: tuple[float, ...] = option(
        (0.1,), "dropout rate; replaces the rate in the model's config.json", grid=True, minimum=0
    )


@dataclasses.dataclass(frozen=True)
class GuidingConfig(Options):
    """Options of guides. A guide is a set of auxiliary losses on the attention of the model."""

    alpha: tuple[float, ...] = _weight_option(
        "alpha", 0.01, "weight of the map discrimination guide (MDG)"
    )
    beta: tuple[float, ...] = _weight_option(
        "beta", 0.01, "weight of the pattern decorrelation guide (PDG)"
    )
    gamma: tuple[float, ...] = _weight_option("gamma", 1.0, "weight of any other guide")
    layers: tuple[int, ...] = option(
        (),
        "guided layers; the first layer is 1; empty guides all layers",
        methods=GUIDES_WITH_LOSSES,
    )
    layer: tuple[int, ...] = option(
        (ALL_LAYERS,),
        "the only guided layer; the first layer is 1; -1 guides the layers of the option `layers`",
        grid=True,
        methods=GUIDES_WITH_LOSSES,
    )
    scaling: str = option(
        "mean",
        "compute MDG and PDG as means, or as sums as in the paper",
        choices=("mean", "sum"),
        methods=_guides_where(lambda guide: guide.received),
    )
    temperature: float = option(
        1.0,
        "temperature of the map discrimination guide (MDG)",
        methods=_guides_where(lambda guide: "alpha" in guide.weights),
    )
    pmi_tokens: int = option(
        4096,
        "number of frequent tokens whose pointwise mutual information is used",
        methods=("pmi",),
        minimum=1,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.temperature > 0, "temperature", "above 0")
        from_1 = "from 1 on, because layers count from 1 (the first layer is 1, not 0)"
        self.require(all(layer > 0 for layer in self.layers), "layers", from_1)
        self.require(len(set(self.layers)) == len(self.layers), "layers", "different ones")
        unset = self.layer == (ALL_LAYERS,)
        self.require(0 not in self.layer, "layer", f"-1 or {from_1}")
        valid = min(self.layer) > 0 and len(set(self.layer)) == len(self.layer)
        self.require(unset or valid, "layer", "-1 alone, or different layers from 1 on")
        self.require(unset or not self.layers, "layer", "-1 where layers are given")


@dataclasses.dataclass(frozen=True)
class FineTuningConfig(Config):
    """Options of an experiment that fine-tunes a pre-trained model with different guides.

    A guide is a set of auxiliary losses on the attention of the model.
    """

    methods: tuple[str, ...] = option(
        ("none",),
        "guides to compare, with one run for each",
        choices={name: guide.summary for name, guide in GUIDES.items()},
        advice={
            **dict.fromkeys(METHODS, USE_VARIANTS),
            "both": "The guide ag is MDG and PDG together.",
        },
        changes_result=False,
    )
    data: FineTuningData = FineTuningData()
    model: PretrainedModelConfig = PretrainedModelConfig()
    guiding: GuidingConfig = GuidingConfig()
