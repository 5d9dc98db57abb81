"""Language modeling: predict the next token of a text."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from tokenizers import Tokenizer

from distattn_jax.data import END_ID, Ragged, Table, TextBuilder, encode, iterate_split
from distattn_jax.models import LanguageModel
from distattn_jax.tasks.preparation import PreparedData, open_dataset
from distattn_jax.tasks.text_task import dataset_option
from distattn_jax.tasks.token_prediction import (
    TokenPrediction,
    TokenPredictionConfig,
    TokenPredictionData,
    TokenPredictionModelConfig,
    norm_option,
    prepare_token_prediction,
)
from distattn_jax.train import Batch, option

COLUMN = "tokens"


@dataclasses.dataclass(frozen=True)
class LanguageModelingData(TokenPredictionData):
    """Options of the data set, the vocabulary and the batches, for language modeling."""

    dataset: str = dataset_option("plain_text", "imdb")
    longest: int = option(256, "tokens of an example; texts are joined and cut into examples")
    batch_size: int = option(32, "number of examples in a batch, over all devices")
    validation_tokens: int = option(
        0, "number of tokens at the start of the validation set that are used; 0 for all"
    )
    test_tokens: int = option(
        0, "number of tokens at the start of the test set that are used; 0 for all"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least(1, "longest")
        self.require_at_least(0, "validation_tokens", "test_tokens")

    def count_used(self, split: str, available: int) -> int:
        """Return the number of tokens at the start of a split that are used.

        Args:
          split: Name of the split.
          available: Number of tokens of the split.
        """
        limit = {"validation": self.validation_tokens, "test": self.test_tokens}.get(split, 0)
        return min(limit, available) if limit else available


@dataclasses.dataclass(frozen=True)
class LanguageModelConfig(TokenPredictionModelConfig):
    """Options of the sizes and initial values of the language model."""

    layers: int = option(4, "layers of the decoder")
    norm: str = norm_option("before")


@dataclasses.dataclass(frozen=True)
class LanguageModelingConfig(TokenPredictionConfig):
    """Options of an experiment on language modeling."""

    task: ClassVar[str] = "language_modeling"
    data: LanguageModelingData = LanguageModelingData()
    model: LanguageModelConfig = LanguageModelConfig()


class LanguageModeling(TokenPrediction):
    """Predict every token of a text from the tokens before it."""

    length_columns = (COLUMN,)
    network = LanguageModel
    predicted: ClassVar[str] = COLUMN

    def call_model(self, model: Any, batch: Batch, **arguments: Any) -> Any:
        return model(batch["inputs"], batch["inputs_length"], **arguments)


def prepare(config: LanguageModelingConfig) -> PreparedData:
    """Prepare a data set of texts."""
    return prepare_token_prediction(
        config,
        open_dataset(config.data),
        ("text",),
        read_table=read_table,
        columns={"decoder": COLUMN},
        describe=describe_tokens,
    )


def describe_tokens(tables: Mapping[str, Table]) -> list[str]:
    """Return a message about the number of tokens of every split."""
    counts = (f"{table.lengths((COLUMN,)).sum():,} of {split}" for split, table in tables.items())
    return [f"tokens: {', '.join(counts)}"]


def read_table(
    config: LanguageModelingConfig, dataset: TextBuilder, split: str, tokenizer: Tokenizer
) -> Table:
    """Return the examples of a split: predicted tokens, and the token before each as input.

    All texts are joined, with [END] after each text, and cut into examples of `longest` tokens. The
    options `validation_tokens` and `test_tokens` keep only the start of the joined texts. The last
    example may be shorter. The first input of an example is the last token of the example before
    it. The first input of the first example is [END].
    """
    rows = iterate_split(dataset, split)
    tokens = encode(tokenizer, (row["text"] for row in rows)).values
    tokens = tokens[: config.data.count_used(split, len(tokens))]
    starts = np.arange(0, len(tokens), config.data.longest, dtype=np.int64)
    offsets = np.append(starts, len(tokens))
    inputs = np.concatenate([[END_ID], tokens[:-1]]).astype(np.int32)
    return Table({"inputs": Ragged(inputs, offsets), COLUMN: Ragged(tokens, offsets)})
