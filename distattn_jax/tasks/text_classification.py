"""Classification of texts, or of pairs of sentences: one label for each example."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from flax import nnx
from tokenizers import Tokenizer

from distattn_jax.data import Table, TextBuilder
from distattn_jax.models import PairClassifier, TextClassifier
from distattn_jax.sharding import Layout
from distattn_jax.tasks.classification import Classification
from distattn_jax.tasks.configs import (
    MethodsConfig,
    WordConfig,
    dataset_option,
    longest_option,
    tokenizer_option,
)
from distattn_jax.tasks.preparation import TextLengths, encode_fields, label_column, read_examples
from distattn_jax.train import Config


@dataclasses.dataclass(frozen=True)
class TextClassificationData(WordConfig):
    """Options of the data set, the vocabulary and the batches, for text classification."""

    dataset: str = dataset_option("nearest", "text_files", "ag_news", "sst", "imdb")
    tokenizer: str = tokenizer_option()
    longest: int = longest_option()


@dataclasses.dataclass(frozen=True)
class TextClassificationConfig(MethodsConfig):
    """Options of an experiment on text classification."""

    task: ClassVar[str] = "text_classification"
    data: TextClassificationData = TextClassificationData()


class TextClassification(Classification):
    """Assign one class to each text."""

    config_class: ClassVar[type[Config]] = TextClassificationConfig
    length_columns: tuple[str, ...] = ("text",)
    network: ClassVar[Callable[..., nnx.Module]] = TextClassifier
    inputs: ClassVar[tuple[str, ...]] = ("text", "text_length")
    embedding_path = ("text", "embedding", "embedding")
    layout = Layout(token_columns=("text",))

    def encode(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return encode_fields(rows, self.fields, self.tokenizer)

    @classmethod
    def measure_lengths(cls, config: Any, tables: Mapping[str, Any]) -> TextLengths:
        lengths = [tables["train"].lengths((field,)) for field in cls.fields]
        longest = max(int(table.lengths(cls.fields).max(initial=1)) for table in tables.values())
        return TextLengths(
            float(sum(length.mean() for length in lengths)),
            {"text": float(np.mean(lengths))},
            {"text": min(longest, config.longest)},
        )

    @classmethod
    def read_table(
        cls, config: Any, dataset: TextBuilder, split: str, tokenizer: Tokenizer
    ) -> Table:
        """Return the examples of a split: the label, and the token ids of each field."""
        rows = read_examples(dataset, split)
        return Table({**encode_fields(rows, cls.fields, tokenizer), **label_column(rows)})


@dataclasses.dataclass(frozen=True)
class PairClassificationData(WordConfig):
    """Options of the data set, the vocabulary and the batches, for pair classification."""

    dataset: str = dataset_option("snli")
    tokenizer: str = tokenizer_option()
    longest: int = longest_option()


@dataclasses.dataclass(frozen=True)
class PairClassificationConfig(MethodsConfig):
    """Options of an experiment on pair classification."""

    task: ClassVar[str] = "pair_classification"
    data: PairClassificationData = PairClassificationData()


class PairClassification(TextClassification):
    """Assign one class to each pair of sentences, a premise and a hypothesis."""

    config_class = PairClassificationConfig
    fields = ("premise", "hypothesis")
    length_columns = fields
    network = PairClassifier
    inputs = ("premise", "premise_length", "hypothesis", "hypothesis_length")
    layout = Layout(token_columns=fields)
