"""What all tasks on texts share: a vocabulary, word vectors, and how examples become tables."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from tokenizers import Tokenizer

from distattn_jax.data import DataError, Ragged, Table, TextBuilder, encode, load_split
from distattn_jax.models import Sizes
from distattn_jax.train.config import DataConfig, ModelConfig
from distattn_jax.train.members import Setting
from distattn_jax.train.task import Task


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
      fields: the texts of an example, by the names they have in the data.
      embedding: where the model keeps its embeddings.
    """

    fields: ClassVar[tuple[str, ...]] = ("text",)
    embedding: ClassVar[tuple[str, ...]]

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

    def initial(self) -> Mapping[tuple[str, ...], np.ndarray]:
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
