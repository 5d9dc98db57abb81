"""Shared base of all tasks on texts: options, tokenizer, labels and arguments of the model."""

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from tokenizers import Tokenizer

from distattn_jax.attention import IMPLEMENTATIONS
from distattn_jax.data import TOKENIZERS
from distattn_jax.models import METHODS, Sizes
from distattn_jax.train import Batch, Config, DataConfig, Options, Setting, Task, option

RELATIVE_POSITION_METHODS = tuple(
    name for name, method in METHODS.items() if name.startswith("relative_") or method.has_switches
)
DISTANCE_AWARE_METHODS = tuple(
    name for name, method in METHODS.items() if method.has_distance_weights
)


@dataclasses.dataclass(frozen=True)
class DatasetConfig(DataConfig):
    """Options that select a data set and define its batches."""

    dataset: str = option("", "name of the data set")
    directory: str = option("data", "folder of prepared data sets", changes_result=False)
    manual_dir: str = option(
        "", "folder with the raw files; empty downloads them if possible", changes_result=False
    )


def dataset_option(*names: str) -> Any:
    """Return the option `dataset` of a task.

    Args:
      *names: Names of the data sets that the task can use. The first name is the default.
    """
    return option(names[0], "name of the data set", choices=names)


@dataclasses.dataclass(frozen=True)
class WordConfig(DatasetConfig):
    """Options of the data set, the batches, and the vocabulary of words."""

    vocabulary: int = option(50_000, "largest size of the vocabulary, built on the training set")
    min_count: int = option(1, "words less frequent than this are unknown")
    vectors: str = option("", "GloVe file (text, .gz or .zip) with the initial embeddings")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least(1, "min_count")
        self.require_at_least(3, "vocabulary")
        self.require_at_most(2**31 - 1, "vocabulary")  # Token ids are 32-bit integers.


@dataclasses.dataclass(frozen=True)
class VocabularyConfig(WordConfig):
    """Options of the data set, the batches, the tokenizer and its vocabulary."""

    tokenizer: str = option("word_level", "kind of tokenizer", choices=tuple(TOKENIZERS))
    min_count: int = option(1, "word_level: words less frequent than this are unknown")


@dataclasses.dataclass(frozen=True)
class TextDataConfig(VocabularyConfig):
    """Options of the data set, the batches, the vocabulary and the maximum text length."""

    longest: int = option(512, "maximum number of tokens of a text; the rest is cut")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least(1, "longest")


@dataclasses.dataclass(frozen=True)
class ComputeConfig(Options):
    """Options of the computation of a model: dropout, dtype and implementation of attention."""

    dropout_rate: tuple[float, ...] = option((0.2,), "dropout rate", grid=True)
    dtype: str = option(
        "float32",
        "dtype of the computation; parameters are float32",
        choices=("float32", "bfloat16"),
    )
    implementation: str = option("", "implementation of attention; empty picks the fastest")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least(0, "dropout_rate")
        self.require(all(rate < 1 for rate in self.dropout_rate), "dropout_rate", "below 1")
        names = ", ".join(IMPLEMENTATIONS)
        is_known = self.implementation in ("", *IMPLEMENTATIONS)
        self.require(is_known, "implementation", f"empty or one of {names}")


@dataclasses.dataclass(frozen=True)
class TransformerConfig(ComputeConfig):
    """Options of the sizes and initial values of Transformer layers with any attention variant."""

    layers: int = option(1, "encoder layers")
    heads: int = option(16, "attention heads")
    head_features: int = option(16, "width of a head")
    features: int = option(256, "width of the model")
    hidden_features: int = option(256, "width of the hidden layer of the feed-forward networks")
    max_distance: int = option(
        16, "distance at which relative positions are clipped", methods=RELATIVE_POSITION_METHODS
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
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least(1, "layers", "heads", "head_features", "features", "hidden_features")
        self.require_at_least(0, "max_distance", "distance_rate")
        self.require(self.features % 2 == 0, "features", "even (sines and cosines)")


@dataclasses.dataclass(frozen=True)
class EmbeddingModelConfig(TransformerConfig):
    """Options of the sizes and initial values of a model with embeddings of words."""

    embedding_features: int = option(300, "width of the embeddings, unless vectors are loaded")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least(1, "embedding_features")


@dataclasses.dataclass(frozen=True)
class ModelConfig(EmbeddingModelConfig):
    """Options of the sizes and initial values of the model."""

    pooling_features: int = option(200, "width of the hidden layer of the pooling")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least(1, "pooling_features")


@dataclasses.dataclass(frozen=True)
class MethodsConfig(Config):
    """Options of an experiment that compares the attention variants in `models.METHODS`."""

    methods: tuple[str, ...] = option(
        ("distance_aware",),
        "attention variants to compare, one run each",
        choices=tuple(name for name, method in METHODS.items() if not method.has_switches),
        changes_result=False,
    )
    model: TransformerConfig = TransformerConfig()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model.heads % self.mesh.model:
            raise ValueError(
                f"model.heads ({self.model.heads}) must be a multiple of "
                f"mesh.model ({self.mesh.model})."
            )


@dataclasses.dataclass(frozen=True)
class EmbeddingConfig(MethodsConfig):
    """Options of an experiment on texts whose words have embeddings of their own."""

    data: WordConfig = WordConfig()
    model: EmbeddingModelConfig = EmbeddingModelConfig()


@dataclasses.dataclass(frozen=True)
class AttentionConfig(EmbeddingConfig):
    """Options of an experiment on texts that are encoded as one vector."""

    data: VocabularyConfig = VocabularyConfig()
    model: ModelConfig = ModelConfig()


class TextTask(Task):
    """Task whose examples are texts.

    Args:
      config: Options of the run, with exactly one entry in `methods`.
      tokenizer: Converts texts to token ids.
      labels: Names of the classes; empty for tasks without classes.
      data: Description of the data, as in data.json of a run.
      constants: Arrays that the training loss needs in addition to the batch.
    """

    config: Any

    def __init__(
        self,
        config: Config,
        *,
        tokenizer: Tokenizer,
        labels: tuple[str, ...] = (),
        data: Mapping[str, Any] | None = None,
        constants: Mapping[str, np.ndarray] | None = None,
    ):
        self.config, self.tokenizer, self.labels = config, tokenizer, labels
        self.data, self.constants = data or {}, constants or {}

    @property
    def max_length(self) -> int | None:
        return self.config.data.longest

    @property
    def uses_dropout(self) -> bool:
        return max(self.config.model.dropout_rate) > 0

    def apply(self, model: Any, batch: Batch) -> Any:
        return self.call_model(model, batch)

    def apply_for_training(
        self, model: Any, batch: Batch, setting: Setting, rngs: nnx.Rngs | None
    ) -> Any:
        return self.call_model(model, batch, dropout_rate=setting["dropout_rate"], rngs=rngs)

    @abc.abstractmethod
    def call_model(self, model: Any, batch: Batch, **arguments: Any) -> Any:
        """Call the model with the columns of a batch.

        Args:
          model: Model of this task.
          batch: Columns of the examples.
          **arguments: Further arguments of the model: `dropout_rate`, `rngs`, `received`, ...
        """

    def learning_rate_multiplier(self, path: tuple[str, ...], setting: Setting) -> Any:
        return setting.get("distance_rate", 1.0) if is_distance_parameter(path) else 1.0

    def select_columns(self, table: Any) -> Any:
        """Return the training table with only the columns that this run needs."""
        return table


class PredictingTask(TextTask):
    """Task that can make predictions for texts entered by a user.

    Attributes:
      fields: Names of the text fields of an example.
    """

    fields: tuple[str, ...] = ("text",)

    @abc.abstractmethod
    def encode(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the input columns of the model, by name.

        Args:
          rows: Examples with the text fields named in `fields`.
        """

    @abc.abstractmethod
    def format_predictions(self, outputs: Any) -> list[str]:
        """Return one line of text for each example, which describes the prediction."""


def is_distance_parameter(path: tuple[str, ...]) -> bool:
    """Return True if `path` is the path of a parameter w or v of distance-aware attention.

    w is the distance weight of a head, and v is the shape of its sigmoid.
    """
    return "variant" in path and ("weight" in path or "shape" in path)


def model_arguments(task: TextTask, setting: Setting) -> dict[str, Any]:
    """Return the constructor arguments shared by all models with a selectable attention variant.

    Args:
      task: Task with its config and tokenizer.
      setting: Hyperparameters of the model. Those that are fields of `Sizes`, such as initial
        values of parameters, replace the options of the config.
    """
    config = task.config.model
    names = {field.name for field in dataclasses.fields(Sizes)}
    options = {name: value for name, value in vars(config).items() if name in names}
    chosen = {name: value for name, value in setting.items() if name in names}
    return {
        "vocabulary": task.tokenizer.get_vocab_size(),
        "method": task.config.method,
        "sizes": Sizes(**{**options, **chosen}),
        "implementation": config.implementation or None,
        "dtype": jnp.dtype(config.dtype),
    }
