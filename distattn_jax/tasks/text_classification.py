"""Text classification: one label for each text."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from flax import nnx
from tokenizers import Tokenizer

from distattn_jax.data import Table, TextBuilder
from distattn_jax.models import TextClassifier
from distattn_jax.tasks.classification import Classification
from distattn_jax.tasks.preparation import (
    SPLITS,
    PreparedData,
    encode_fields,
    iterate_training_texts,
    label_column,
    open_dataset,
    prepare_with_embeddings,
    read_examples,
    read_labels,
    train_tokenizer,
)
from distattn_jax.tasks.text_task import (
    AttentionConfig,
    TextDataConfig,
    dataset_option,
    model_arguments,
)
from distattn_jax.train import Batch, Setting

FIELDS = ("text",)


@dataclasses.dataclass(frozen=True)
class TextClassificationData(TextDataConfig):
    """Options of the data set, the vocabulary and the batches, for text classification."""

    dataset: str = dataset_option("nearest", "text_files", "ag_news", "sst", "imdb")


@dataclasses.dataclass(frozen=True)
class TextClassificationConfig(AttentionConfig):
    """Options of an experiment on text classification."""

    task: ClassVar[str] = "text_classification"
    data: TextClassificationData = TextClassificationData()


class TextClassification(Classification):
    """Assign one class to each text."""

    length_columns = FIELDS

    def make_model(self, setting: Setting, *, rngs: nnx.Rngs) -> TextClassifier:
        arguments = model_arguments(self, setting)
        return TextClassifier(classes=len(self.labels), rngs=rngs, **arguments)

    def call_model(self, model: Any, batch: Batch, **arguments: Any) -> Any:
        return model(batch["text"], batch["text_length"], **arguments)

    def encode(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return encode_fields(rows, FIELDS, self.tokenizer)


def prepare(config: TextClassificationConfig) -> PreparedData:
    """Prepare a data set of labelled texts."""
    dataset = open_dataset(config.data)
    tokenizer = train_tokenizer(iterate_training_texts(dataset, FIELDS), config.data)
    tables = {split: read_table(config, dataset, split, tokenizer) for split in SPLITS}
    mean_length = float(tables["train"].lengths(FIELDS).mean())
    longest = max(int(table.lengths(FIELDS).max(initial=1)) for table in tables.values())
    return prepare_with_embeddings(
        config,
        dataset,
        tokenizer,
        tables,
        embedding_path=("text", "embedding", "embedding"),
        average_length=mean_length,
        sequence_lengths={"text": mean_length},
        longest_sequences={"text": min(longest, config.data.longest)},
        labels=read_labels(dataset),
    )


def read_table(
    config: TextClassificationConfig, dataset: TextBuilder, split: str, tokenizer: Tokenizer
) -> Table:
    """Return the examples of a split: the label and the token ids of each text."""
    rows = read_examples(dataset, split)
    return Table({**encode_fields(rows, FIELDS, tokenizer), **label_column(rows)})
