"""Language modeling: predict the next token of a text."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from tokenizers import Tokenizer

from distattn_jax.data import END_ID, Ragged, Table, TextBuilder, encode, iterate_split
from distattn_jax.models import LanguageModel
from distattn_jax.sharding import Layout
from distattn_jax.tasks.configs import (
    MAX_LAYERS,
    MethodsConfig,
    TransformerConfig,
    dataset_option,
)
from distattn_jax.tasks.token_prediction import TokenPrediction, inner_dropout_option, norm_option
from distattn_jax.train import DataConfig, option

COLUMN = "tokens"


@dataclasses.dataclass(frozen=True)
class LanguageModelingData(DataConfig):
    """Options of the data set, the vocabulary and the batches, for language modeling."""

    dataset: str = dataset_option("plain_text", "imdb")
    vocabulary: int = option(8192, "largest number of subwords, trained on the training set")
    longest: int = option(
        256, "tokens of an example; texts are joined and cut into examples", minimum=1
    )
    batch_size: int = option(32, "number of examples in a batch, over all devices", minimum=1)
    validation_tokens: int = option(
        0, "number of tokens at the start of the validation set that are used; 0 for all", minimum=0
    )
    test_tokens: int = option(
        0, "number of tokens at the start of the test set that are used; 0 for all", minimum=0
    )

    def count_used(self, split: str, available: int) -> int:
        """Return how many tokens of a split are used. They are at the start of the split.

        Args:
          split: Name of the split.
          available: Number of tokens of the whole split.
        """
        limit = {"validation": self.validation_tokens, "test": self.test_tokens}.get(split, 0)
        return min(limit, available) if limit else available


@dataclasses.dataclass(frozen=True)
class LanguageModelConfig(TransformerConfig):
    """Options of the sizes and initial values of the language model."""

    dropout_rate: tuple[float, ...] = option((0.1,), "dropout rate", grid=True, minimum=0)
    inner_dropout: bool = inner_dropout_option()
    layers: int = option(4, "layers of the decoder", minimum=1, maximum=MAX_LAYERS)
    heads: int = option(4, "attention heads", minimum=1)
    head_features: int = option(64, "width of a head", minimum=1)
    hidden_features: int = option(
        1024, "width of the hidden layer of the feed-forward networks", minimum=1
    )
    norm: str = norm_option("before")
    window: int = option(
        0, "largest distance of a token that a token attends to; 0 for all distances", minimum=0
    )


@dataclasses.dataclass(frozen=True)
class LanguageModelingConfig(MethodsConfig):
    """Options of an experiment on language modeling."""

    task: ClassVar[str] = "language_modeling"
    data: LanguageModelingData = LanguageModelingData()
    model: LanguageModelConfig = LanguageModelConfig()


class LanguageModeling(TokenPrediction):
    """Predict every token of a text from the tokens before it."""

    config_class = LanguageModelingConfig
    length_columns = (COLUMN,)
    network = LanguageModel
    inputs = ("inputs", "inputs_length")
    predicted: ClassVar[str] = COLUMN
    sequences: ClassVar[Mapping[str, str]] = {"decoder": COLUMN}
    layout = Layout(token_columns=("inputs", COLUMN))

    @classmethod
    def describe_examples(
        cls, config: Any, dataset: TextBuilder, tables: Mapping[str, Table]
    ) -> list[str]:
        splits = tables.items()
        counts = (f"{table.lengths((COLUMN,)).sum():,} of {split}" for split, table in splits)
        return [f"tokens: {', '.join(counts)}"]

    @classmethod
    def read_table(
        cls, config: Any, dataset: TextBuilder, split: str, tokenizer: Tokenizer
    ) -> Table:
        """Return the examples of a split, with the columns `tokens` (predicted) and `inputs`.

        All texts are joined, with [END] after each text, and cut into examples of `longest` tokens.
        The last example may be shorter. The options `validation_tokens` and `test_tokens` keep only
        the start of the joined texts. The input at each position is the token before the predicted
        token. The first input of an example is therefore the last token of the previous example.
        The first input of the first example is [END].
        """
        rows = iterate_split(dataset, split)
        tokens = encode(tokenizer, (row["text"] for row in rows)).values
        tokens = tokens[: config.data.count_used(split, len(tokens))]
        starts = np.arange(0, len(tokens), config.data.longest, dtype=np.int64)
        offsets = np.append(starts, len(tokens))
        inputs = np.concatenate([[END_ID], tokens[:-1]]).astype(np.int32)
        return Table({"inputs": Ragged(inputs, offsets), COLUMN: Ragged(tokens, offsets)})
