"""Documents: options, columns and statistics that all tasks on documents share.

A document is split into sentences, and each sentence into tokens.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from distattn_jax.data import Nested, Table, TextBuilder, encode, round_length, split_sentences
from distattn_jax.tasks.preparation import PreparedData, prepare_with_embeddings
from distattn_jax.tasks.text_task import AttentionConfig, TextDataConfig, dataset_option
from distattn_jax.train import Batch, option


@dataclasses.dataclass(frozen=True)
class DocumentData(TextDataConfig):
    """Options of the data set, the vocabulary and the batches, for tasks on documents."""

    dataset: str = dataset_option("amazon")
    longest: int = option(512, "maximum number of tokens of a sentence; the rest is cut")
    sentences: int = option(32, "maximum number of sentences of a document; the rest is cut")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least(1, "sentences")


@dataclasses.dataclass(frozen=True)
class DocumentConfig(AttentionConfig):
    """Options of an experiment on documents, shared by all tasks on documents."""

    data: DocumentData = DocumentData()


def encode_documents(
    rows: Sequence[Mapping[str, Any]], tokenizer: Tokenizer, longest: int
) -> dict[str, Nested]:
    """Return the column `text`: the token ids of every sentence of every document.

    Args:
      rows: Examples with the field `text`.
      tokenizer: Converts sentences to token ids.
      longest: Maximum number of tokens of a sentence. Longer sentences are truncated.
    """
    documents = [split_sentences(row["text"]) for row in rows]
    encoded = encode(tokenizer, [sentence for document in documents for sentence in document])
    width = round_length(int(encoded.lengths.max(initial=1)), longest)
    return {"text": Nested.from_counts(encoded, [len(document) for document in documents], width)}


def call_on_documents(model: Any, batch: Batch, **arguments: Any) -> Any:
    """Call a document model with the columns of a batch."""
    return model(batch["text"], batch["text_words"], batch["text_length"], **arguments)


def prepare_documents(
    config: Any,
    dataset: TextBuilder,
    tokenizer: Tokenizer,
    tables: Mapping[str, Table],
    *,
    labels: tuple[str, ...] = (),
    initial_parameters: Mapping[tuple[str | int, ...], np.ndarray] | None = None,
) -> PreparedData:
    """Load the initial embeddings, and return the prepared data of a task on documents.

    Args:
      config: Config of the experiment.
      dataset: Builder of the data set.
      tokenizer: Tokenizer trained on the training set.
      tables: Examples of each split.
      labels: Names of the classes.
      initial_parameters: Initial values of parameters other than the embeddings, by parameter path.
        Parameters that are not listed start with random values.
    """
    column = tables["train"].columns["text"]
    assert isinstance(column, Nested)
    truncated = (
        f"{column.truncated} of {len(column.inner)} sentences of train are cut to "
        f"{column.width} tokens"
    )
    return prepare_with_embeddings(
        config,
        dataset,
        tokenizer,
        tables,
        embedding_path=("document", "words", "embedding", "embedding"),
        average_length=float(len(column.inner.values) / len(tables["train"])),
        sequence_lengths={
            "words": float(column.inner.lengths.mean()),
            "sentences": float(column.lengths.mean()),
        },
        longest_sequences=_longest_sequences(config.data, tables),
        labels=labels,
        messages=(truncated,),
        initial_parameters=initial_parameters,
    )


def _longest_sequences(config: DocumentData, tables: Mapping[str, Table]) -> dict[str, int]:
    """Return the largest number of words of a sentence and of sentences of a document.

    Both are counted after truncation.
    """
    columns = [table.columns["text"] for table in tables.values()]
    nested = [column for column in columns if isinstance(column, Nested)]
    words = max(int(column.inner.lengths.max(initial=1)) for column in nested)
    sentences = max(int(column.lengths.max(initial=1)) for column in nested)
    return {"words": min(words, config.longest), "sentences": min(sentences, config.sentences)}
