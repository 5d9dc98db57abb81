"""Shared base of all tasks on texts: config, tokenizer, labels and arguments of the model."""

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import nnx
from tokenizers import Tokenizer

from distattn_jax.data import TextBuilder
from distattn_jax.models import METHODS, Sizes
from distattn_jax.tasks.preparation import (
    SPLITS,
    PreparedData,
    TextLengths,
    describe_prepared,
    initial_embeddings,
    iterate_training_texts,
    open_dataset,
    train_tokenizer,
)
from distattn_jax.train import Batch, Config, Setting, Task


class TextTask(Task):
    """Task whose examples are texts.

    Args:
      config: Options of the run, with exactly one entry in `methods`.
      tokenizer: Tokenizer that converts texts to token ids.
      labels: Names of the classes; empty for tasks without classes.
      data: Description of the data, as in data.json of a run.
      constants: Dict of arrays that the training loss needs in addition to the batch.

    Attributes:
      config_class: Class of the config. Its attribute `task` is the name of the task.
      network: Class of the model.
      inputs: Names of the columns that are the positional arguments of the model, in order.
      fields: Names of the text fields of an example.
      sequences: Dict from the name of an encoder or decoder to the column of its input sequences.
      embedding_path: Path of the embedding table among the model's parameters. Empty if the model
        cannot use word vectors from a file.
    """

    config: Any
    config_class: ClassVar[type[Config]]
    network: ClassVar[Callable[..., nnx.Module]]
    inputs: ClassVar[tuple[str, ...]]
    fields: tuple[str, ...] = ("text",)
    sequences: ClassVar[Mapping[str, str]] = {}
    embedding_path: ClassVar[tuple[str, ...]] = ()

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

    @classmethod
    def prepare(cls, config: Any) -> PreparedData:
        """Prepare the data that all runs of an experiment share."""
        dataset = open_dataset(config.data)
        tokenizer = cls.make_tokenizer(config.data, dataset)
        tables = {split: cls.read_table(config, dataset, split, tokenizer) for split in SPLITS}
        parameters = cls.initial_parameters(tables["train"])
        messages = cls.describe_examples(config.data, dataset, tables)
        if cls.embedding_path:
            config, embeddings, message = initial_embeddings(config, tokenizer)
            messages.append(message)
            if embeddings is not None:
                parameters[cls.embedding_path] = embeddings
        return describe_prepared(
            config,
            dataset,
            tokenizer,
            tables,
            lengths=cls.measure_lengths(config.data, tables),
            messages=messages,
            labels=cls.list_labels(dataset),
            initial_parameters=parameters,
        )

    @classmethod
    def make_tokenizer(cls, config: Any, dataset: TextBuilder) -> Tokenizer:
        """Return a tokenizer that is trained on the training set."""
        return train_tokenizer(iterate_training_texts(dataset, cls.fields), config)

    @classmethod
    def measure_lengths(cls, config: Any, tables: Mapping[str, Any]) -> TextLengths:
        """Return the mean and the largest lengths of the texts."""
        lengths = {
            name: [table.lengths((column,)) for table in tables.values()]
            for name, column in cls.sequences.items()
        }
        means = {name: float(train.mean()) for name, (train, *_) in lengths.items()}
        longest = {name: max(int(split.max()) for split in x) for name, x in lengths.items()}
        return TextLengths(sum(means.values()), means, longest)

    @classmethod
    def list_labels(cls, dataset: TextBuilder) -> tuple[str, ...]:
        """Return the names of the classes; by default no names."""
        return ()

    @classmethod
    def initial_parameters(cls, train_table: Any) -> dict[tuple[str | int, ...], np.ndarray]:
        """Return a dict from parameter path to an initial value computed from the training set.

        By default, the dict is empty.
        """
        return {}

    @classmethod
    def describe_examples(
        cls, config: Any, dataset: TextBuilder, tables: Mapping[str, Any]
    ) -> list[str]:
        """Return lines to print about the examples of all splits."""
        return []

    @classmethod
    @abc.abstractmethod
    def read_table(cls, config: Any, dataset: TextBuilder, split: str, tokenizer: Tokenizer) -> Any:
        """Return the examples of a split, encoded with the tokenizer."""

    @property
    def uses_dropout(self) -> bool:
        return max(self.config.model.dropout_rate) > 0

    def make_model(self, setting: Setting, *, rngs: nnx.Rngs) -> nnx.Module:
        return self.network(rngs=rngs, **self.model_arguments(setting))

    def model_arguments(self, setting: Setting) -> dict[str, Any]:
        """Return the keyword arguments of `network`, the class of the model.

        If a hyperparameter in `setting`, such as `initial_weight`, is also a field of `Sizes`, its
        value in `setting` replaces its value in the config.
        """
        config = self.config.model
        names = {field.name for field in dataclasses.fields(Sizes)}
        options = {name: value for name, value in vars(config).items() if name in names}
        chosen = {name: value for name, value in setting.items() if name in names}
        return {
            "vocabulary": self.tokenizer.get_vocab_size(),
            "method": self.config.method,
            "sizes": Sizes(**{**options, **chosen}),
            "implementation": config.implementation or None,
            "precision": config.precision or None,
            "dtype": jnp.dtype(config.dtype),
            "remat": config.remat,
        }

    def apply(self, model: Any, batch: Batch) -> Any:
        return self.call_model(model, batch)

    def apply_for_training(
        self, model: Any, batch: Batch, setting: Setting, rngs: nnx.Rngs | None
    ) -> Any:
        return self.call_model(model, batch, dropout_rate=setting["dropout_rate"], rngs=rngs)

    def call_model(self, model: Any, batch: Batch, **arguments: Any) -> Any:
        """Call the model with the columns of a batch.

        Args:
          model: Model of this task.
          batch: Columns of the examples.
          **arguments: Further arguments of the model: `dropout_rate`, `rngs`, `received`, ...
        """
        return model(*(batch[name] for name in self.inputs), **arguments)

    def learning_rate_multiplier(self, path: tuple[str, ...], setting: Setting) -> Any:
        if "variant" not in path:
            return 1.0
        rate = METHODS[self.config.method].position_rate
        return rate * setting.get("distance_rate", 1.0) if is_distance_parameter(path) else rate

    def select_columns(self, table: Any) -> Any:
        """Return the training table without the columns that this run does not need."""
        return table


class Prediction(NamedTuple):
    """Prediction of a model for one text, or for a pair of texts.

    Attributes:
      values: Texts and prediction as JSON values, e.g. the label and the probability of each label.
      summary: Prediction without the text, in one line.
      lines: Prediction with the text, in columns that are separated by tabs.
    """

    values: dict[str, Any]
    summary: str
    lines: str


class PredictingTask(TextTask):
    """Task that can make predictions for texts entered by a user."""

    @abc.abstractmethod
    def encode(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Encode texts as inputs of the model, and return a dict from name to column.

        Args:
          rows: Examples with the text fields named in `fields`.
        """

    @abc.abstractmethod
    def make_predictions(self, rows: Sequence[Mapping[str, Any]], outputs: Any) -> list[Prediction]:
        """Return the predictions for the first examples of a batch.

        Args:
          rows: Examples with the text fields named in `fields`. The batch may have more examples,
            which are padding.
          outputs: Outputs of the model for the batch.
        """

    def join_columns(self, row: Mapping[str, Any], *columns: str) -> str:
        """Return columns and the text fields of an example, separated by tabs."""
        return "\t".join([*columns, *(" ".join(row[field].split()) for field in self.fields)])


def is_distance_parameter(path: tuple[str, ...]) -> bool:
    """Return True if `path` is the path of a parameter w or v of distance-aware attention.

    w is the distance weight of a head, and v is the shape of its sigmoid.
    """
    return "variant" in path and ("weight" in path or "shape" in path)
