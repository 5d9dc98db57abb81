"""Pair classification: one label for a premise and a hypothesis."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from flax import nnx
from tokenizers import Tokenizer

from distattn_jax.data import Table, TextBuilder
from distattn_jax.models import PairClassifier
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

FIELDS = ("premise", "hypothesis")


@dataclasses.dataclass(frozen=True)
class PairClassificationData(TextDataConfig):
    """Options of the data set, the vocabulary and the batches, for pair classification."""

    dataset: str = dataset_option("snli")


@dataclasses.dataclass(frozen=True)
class PairClassificationConfig(AttentionConfig):
    """Options of an experiment on pair classification."""

    task: ClassVar[str] = "pair_classification"
    data: PairClassificationData = PairClassificationData()


class PairClassification(Classification):
    """Assign one class to each pair of sentences."""

    fields = FIELDS
    length_columns = FIELDS

    def make_model(self, setting: Setting, *, rngs: nnx.Rngs) -> PairClassifier:
        arguments = model_arguments(self, setting)
        return PairClassifier(classes=len(self.labels), rngs=rngs, **arguments)

    def call_model(self, model: Any, batch: Batch, **arguments: Any) -> Any:
        pair = (batch[name] for field in FIELDS for name in (field, f"{field}_length"))
        return model(*pair, **arguments)

    def encode(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return encode_fields(rows, FIELDS, self.tokenizer)


def prepare(config: PairClassificationConfig) -> PreparedData:
    """Prepare a data set of labelled pairs of sentences."""
    dataset = open_dataset(config.data)
    tokenizer = train_tokenizer(iterate_training_texts(dataset, FIELDS), config.data)
    tables = {split: read_table(config, dataset, split, tokenizer) for split in SPLITS}
    lengths = [tables["train"].lengths((field,)) for field in FIELDS]
    longest = max(int(table.lengths(FIELDS).max(initial=1)) for table in tables.values())
    return prepare_with_embeddings(
        config,
        dataset,
        tokenizer,
        tables,
        embedding_path=("text", "embedding", "embedding"),
        average_length=float(sum(length.mean() for length in lengths)),
        sequence_lengths={"text": float(np.mean(lengths))},
        longest_sequences={"text": min(longest, config.data.longest)},
        labels=read_labels(dataset),
    )


def read_table(
    config: PairClassificationConfig, dataset: TextBuilder, split: str, tokenizer: Tokenizer
) -> Table:
    """Return the examples of a split: the label, and the token ids of the two sentences."""
    rows = read_examples(dataset, split)
    return Table({**encode_fields(rows, FIELDS, tokenizer), **label_column(rows)})
