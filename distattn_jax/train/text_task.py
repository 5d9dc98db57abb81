"""What all tasks on texts share: a vocabulary, word vectors, and how examples become tables."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from etils import epath
from jaxtyping import Float
from tokenizers import Tokenizer

from distattn_jax.data import (
    TOKENIZERS,
    DataError,
    Ragged,
    Table,
    TextBuilder,
    encode,
    load_embeddings,
    load_split,
)
from distattn_jax.models import METHODS, Sizes
from distattn_jax.train.config import Config, DataConfig, ModelConfig
from distattn_jax.train.flags import to_dict
from distattn_jax.train.members import Setting
from distattn_jax.train.task import Task

FOR_PRETRAINED = ("model.pretrained", "model.remat", "data.share", "data.parses", "guiding.")


class Own(NamedTuple):
    """What a task makes of its data beside the tables.

    Attributes:
      config: with what only the data could say.
      arguments: of the task, beside those that all have.
      tables: the examples of each split.
      about: what is known of it, for a file; a trained model is put together again from it.
      said: lines that a person should see.
    """

    config: Config
    arguments: Mapping[str, Any]
    tables: Mapping[str, Any]
    about: Mapping[str, Any]
    said: tuple[str, ...]


class TextTask(Task):
    """A task whose model reads texts.

    Args:
      method: name of the attention.
      config: sizes of the model.
      labels: names of the classes; none where there are no classes.
      tokenizer: gives the size of the vocabulary.
      tables: the examples of each split; none to predict.
      vectors: initial embeddings (V, E), or None.

    Attributes:
      methods: those it can be learned with, by name.
      fields: the texts of an example, by the names they have in the data.
      embedding: where the model keeps its embeddings.
      unread: how the names of the options begin that mean nothing to it.
    """

    methods: ClassVar[Mapping[str, Any]] = METHODS
    fields: ClassVar[tuple[str, ...]] = ("text",)
    embedding: ClassVar[tuple[str, ...]]
    unread: ClassVar[tuple[str, ...]] = (*FOR_PRETRAINED, "data.sentences")

    def __init__(
        self,
        method: str,
        config: ModelConfig,
        *,
        labels: tuple[str, ...],
        tokenizer: Tokenizer,
        tables: Mapping[str, Any],
        vectors: Float[np.ndarray, "V E"] | None = None,
    ):
        self.method, self.config, self.vectors = method, config, vectors
        self.labels, self.tokenizer, self.tables = labels, tokenizer, tables

    @classmethod
    def check(cls, config: Config) -> None:
        """Raises where the task cannot be learned as it is configured."""
        cls.check_methods(config)
        cls.check_unread(config)

    @classmethod
    def check_unread(cls, config: Config) -> None:
        """Raises where an option is given that would change nothing."""
        defaults = to_dict(Config())
        for name, value in to_dict(config).items():
            if name.startswith(cls.unread) and value != defaults[name]:
                raise ValueError(
                    f"{name} must not be given for the task {config.task}, to which it means "
                    f"nothing; got {value!r}."
                )

    @classmethod
    def check_methods(cls, config: Config) -> None:
        """Raises where one of the methods is of another kind: an attention or a guide."""
        for method in config.methods:
            if method not in cls.methods:
                raise ValueError(
                    f"methods must be some of {', '.join(cls.methods)} for the task "
                    f"{config.task}; got {method!r}."
                )

    @classmethod
    def tokenizer_of(cls, builder: TextBuilder, config: Config) -> Tokenizer:
        """How texts become tokens: learned from the training set."""
        data = config.data
        if data.tokenizer == "word_level":
            arguments = {"min_count": data.min_count, "max_size": data.vocabulary}
        else:
            arguments = {"size": data.vocabulary}
        return TOKENIZERS[data.tokenizer](cls.texts(builder), **arguments)

    @classmethod
    def own(
        cls,
        config: Config,
        builder: TextBuilder,
        tokenizer: Tokenizer,
        tables: Mapping[str, Any],
        *,
        folder: epath.Path,
    ) -> Own:
        """Initial embeddings, if a file is given; `folder`: of the experiment."""
        if not config.data.vectors:
            said = "no word vectors given (--data.vectors): embeddings start random"
            return Own(config, {"vectors": None}, tables, {}, (said,))
        vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda entry: entry[1])
        vectors, found = load_embeddings(
            config.data.vectors,
            [word for word, _ in vocabulary],
            seed=config.data.seed,
            cache=None if "://" in str(folder) else str(folder / "vectors.npz"),
        )
        said = f"word vectors for {found} of {len(vocabulary)} tokens; the rest are random"
        width = dataclasses.replace(config.model, embedding_features=vectors.shape[1])
        config = dataclasses.replace(config, model=width)
        return Own(config, {"vectors": vectors}, tables, {}, (said,))

    @classmethod
    def arguments_of(cls, about: Mapping[str, Any]) -> dict[str, Any]:
        """Those of a task whose model is trained, from what a run has kept about its data."""
        return {}

    @classmethod
    def texts(cls, builder: TextBuilder) -> Iterator[str]:
        """The texts that the vocabulary is learned from."""
        for row in load_split(builder, "train"):
            yield from (row[field] for field in cls.fields)

    @classmethod
    def labels_of(cls, builder: TextBuilder) -> tuple[str, ...]:
        """The names of the classes."""
        return tuple(builder.info.features["label"].names)

    @classmethod
    def table(
        cls, builder: TextBuilder, split: str, tokenizer: Tokenizer, config: DataConfig
    ) -> Any:
        """The examples of a split."""
        rows = load_split(builder, split)
        if not rows:
            raise DataError(f"the split {split!r} of {builder.name} has no examples.")
        return Table({**cls.encoded(rows, tokenizer, config), **cls.answers(rows)})

    @classmethod
    def encoded(
        cls, rows: Sequence[Mapping[str, Any]], tokenizer: Tokenizer, config: DataConfig
    ) -> dict[str, Any]:
        """The columns that the model reads."""
        return {field: encode(tokenizer, [row[field] for row in rows]) for field in cls.fields}

    @classmethod
    def answers(cls, rows: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
        """The columns that it is to find."""
        return {"label": np.asarray([row["label"] for row in rows], np.int32)}

    @classmethod
    def average_length(cls, table: Any) -> float:
        """Tokens of an example, as it was before anything was cut."""
        columns = [table.columns[field] for field in cls.fields]
        assert all(isinstance(column, Ragged) for column in columns)
        return float(sum(column.lengths.mean() for column in columns))

    @classmethod
    def sequence_lengths(cls, table: Any) -> dict[str, float]:
        """How long the sequences are that heads attend to, by the level of the heads."""
        lengths = [table.columns[field].lengths for field in cls.fields]
        return {"text": float(np.mean(lengths))}

    @classmethod
    def about_the_table(cls, table: Any) -> list[str]:
        """What a person should know of how examples were made of texts."""
        return []

    def initial(self) -> Mapping[tuple[str | int, ...], np.ndarray]:
        return {} if self.vectors is None else {self.embedding: self.vectors}

    def said(self, outputs: Any) -> list[str]:
        """What the outputs say of every example, for a person; a task without `fields` is mute."""
        return []

    def arguments(self, setting: Setting) -> dict[str, Any]:
        """Those that all models take."""
        config = self.config
        sizes = Sizes(
            heads=config.heads,
            head_features=config.head_features,
            features=config.features,
            layers=config.layers,
            hidden_features=config.hidden_features,
            embedding_features=config.embedding_features,
            pooling_features=config.pooling_features,
            max_distance=config.max_distance,
            initial_weight=setting.initial_weight,
            initial_shape=setting.initial_shape,
        )
        return {
            "vocabulary": self.tokenizer.get_vocab_size(),
            "method": self.method,
            "sizes": sizes,
            "implementation": config.implementation or None,
            "dtype": jnp.dtype(config.dtype),
        }
