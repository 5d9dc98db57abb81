"""Language modeling: predict the next token of a text."""

import dataclasses
from typing import Any, ClassVar

import numpy as np
from flax import nnx
from tokenizers import Tokenizer

from distattn_jax.data import (
    END_ID,
    Ragged,
    Table,
    TextBuilder,
    encode,
    iterate_split,
    train_byte_level_bpe,
)
from distattn_jax.models import LanguageModel
from distattn_jax.tasks.preparation import (
    SPLITS,
    PreparedData,
    describe_data,
    iterate_training_texts,
    open_dataset,
)
from distattn_jax.tasks.text_task import (
    DatasetConfig,
    MethodsConfig,
    TransformerConfig,
    dataset_option,
    model_arguments,
)
from distattn_jax.tasks.token_prediction import TokenPrediction
from distattn_jax.train import Batch, Setting, option

COLUMN = "tokens"


@dataclasses.dataclass(frozen=True)
class LanguageModelingData(DatasetConfig):
    """Options of the data set, the vocabulary and the batches, for language modeling."""

    dataset: str = dataset_option("plain_text")
    vocabulary: int = option(8192, "largest number of subwords, trained on the training set")
    longest: int = option(256, "tokens of an example; texts are joined and cut into examples")
    batch_size: int = option(32, "number of examples in a batch, over all devices")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least(1, "longest")


@dataclasses.dataclass(frozen=True)
class LanguageModelConfig(TransformerConfig):
    """Options of the sizes and initial values of the language model."""

    dropout_rate: tuple[float, ...] = option((0.1,), "dropout rate", grid=True)
    layers: int = option(4, "layers of the decoder")
    heads: int = option(4, "attention heads")
    head_features: int = option(64, "width of a head")
    hidden_features: int = option(1024, "width of the hidden layer of the feed-forward networks")
    norm: str = option(
        "before",
        "place of the layer norms: after or before attention and feed-forward networks",
        choices=("after", "before"),
    )


@dataclasses.dataclass(frozen=True)
class LanguageModelingConfig(MethodsConfig):
    """Options of an experiment on language modeling."""

    task: ClassVar[str] = "language_modeling"
    data: LanguageModelingData = LanguageModelingData()
    model: LanguageModelConfig = LanguageModelConfig()


class LanguageModeling(TokenPrediction):
    """Predict every token of a text from the tokens before it."""

    length_columns = (COLUMN,)
    predicted: ClassVar[str] = COLUMN

    @property
    def max_length(self) -> int | None:
        return None  # No example is longer than --data.longest.

    def make_model(self, setting: Setting, *, rngs: nnx.Rngs) -> LanguageModel:
        arguments = model_arguments(self, setting)
        return LanguageModel(norm=self.config.model.norm, rngs=rngs, **arguments)

    def call_model(self, model: Any, batch: Batch, **arguments: Any) -> Any:
        return model(batch["inputs"], batch["inputs_length"], **arguments)


def prepare(config: LanguageModelingConfig) -> PreparedData:
    """Prepare a data set of texts."""
    dataset = open_dataset(config.data)
    texts = iterate_training_texts(dataset, ("text",))
    tokenizer = train_byte_level_bpe(texts, size=config.data.vocabulary, end=True)
    tables = {split: read_table(config, dataset, split, tokenizer) for split in SPLITS}
    mean_length = float(tables["train"].lengths((COLUMN,)).mean())
    longest = max(int(table.lengths((COLUMN,)).max()) for table in tables.values())
    counts = (f"{table.lengths((COLUMN,)).sum():,} of {split}" for split, table in tables.items())
    about, messages = describe_data(
        config.data,
        dataset,
        tokenizer,
        tables,
        labels=(),
        average_length=mean_length,
        sequence_lengths={"decoder": mean_length},
        longest_sequences={"decoder": longest},
        messages=(f"tokens: {', '.join(counts)}",),
    )
    return PreparedData(config, tokenizer, tables, about, messages)


def read_table(
    config: LanguageModelingConfig, dataset: TextBuilder, split: str, tokenizer: Tokenizer
) -> Table:
    """Return the examples of a split: predicted tokens, and the token before each as input.

    All texts are joined, with [END] after each text, and cut into examples of `longest` tokens. The
    last example may be shorter. The first input of an example is the last token of the example
    before it. The first input of the first example is [END].
    """
    rows = iterate_split(dataset, split)
    tokens = encode(tokenizer, (row["text"] for row in rows)).values
    starts = np.arange(0, len(tokens), config.data.longest, dtype=np.int64)
    offsets = np.append(starts, len(tokens))
    inputs = np.concatenate([[END_ID], tokens[:-1]]).astype(np.int32)
    return Table({"inputs": Ragged(inputs, offsets), COLUMN: Ragged(tokens, offsets)})
