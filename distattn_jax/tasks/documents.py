"""Tasks on documents: classification, and regression of a rating, e.g. the stars of a review.

A document is split into sentences, and each sentence into tokens.
"""

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from tokenizers import Tokenizer

from distattn_jax.data import Nested, Table, TextBuilder, encode, round_length, split_sentences
from distattn_jax.models import DocumentClassifier, DocumentRegressor
from distattn_jax.tasks.classification import Classification
from distattn_jax.tasks.configs import MethodsConfig, WordConfig, dataset_option, tokenizer_option
from distattn_jax.tasks.preparation import TextLengths, label_column, read_examples
from distattn_jax.tasks.text_task import PredictingTask, Prediction
from distattn_jax.train import Batch, option, weighted_sum


@dataclasses.dataclass(frozen=True)
class DocumentData(WordConfig):
    """Options of the data set, the vocabulary and the batches, for tasks on documents."""

    dataset: str = dataset_option("amazon")
    tokenizer: str = tokenizer_option()
    longest: int = option(512, "maximum number of tokens of a sentence; the rest is cut", minimum=1)
    sentences: int = option(
        32, "maximum number of sentences of a document; the rest is cut", minimum=1
    )


@dataclasses.dataclass(frozen=True)
class DocumentClassificationConfig(MethodsConfig):
    """Options of an experiment on document classification."""

    task: ClassVar[str] = "document_classification"
    data: DocumentData = DocumentData()


@dataclasses.dataclass(frozen=True)
class DocumentRegressionConfig(MethodsConfig):
    """Options of an experiment on document regression."""

    task: ClassVar[str] = "document_regression"
    data: DocumentData = DocumentData()


class DocumentTask(PredictingTask):
    """Task whose examples are documents."""

    length_columns = ("text",)
    length_unit = "sentences"
    inputs = ("text", "text_words", "text_length")
    embedding_path = ("document", "words", "embedding", "embedding")

    @property
    def max_length(self) -> int | None:
        return self.config.data.sentences

    def encode(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return _encode_documents(rows, self.tokenizer, self.config.data.longest)

    @classmethod
    def read_table(
        cls, config: Any, dataset: TextBuilder, split: str, tokenizer: Tokenizer
    ) -> Table:
        """Return the examples of a split: token ids of each sentence, and labels or ratings."""
        rows = read_examples(dataset, split)
        documents = _encode_documents(rows, tokenizer, config.data.longest)
        return Table({**documents, **cls.read_answers(rows)})

    @classmethod
    @abc.abstractmethod
    def read_answers(cls, rows: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
        """Return a dict with one column, the labels or the ratings that the model predicts."""

    @classmethod
    def describe_examples(
        cls, config: Any, dataset: TextBuilder, tables: Mapping[str, Any]
    ) -> list[str]:
        column = tables["train"].columns["text"]
        return [
            f"{column.truncated} of {len(column.inner)} sentences of train are cut to "
            f"{column.width} tokens"
        ]

    @classmethod
    def measure_lengths(cls, config: DocumentData, tables: Mapping[str, Any]) -> TextLengths:
        """Return the lengths of sentences in words, and of documents in sentences."""
        train, *_ = columns = [table.columns["text"] for table in tables.values()]
        words = max(int(column.inner.lengths.max(initial=1)) for column in columns)
        sentences = max(int(column.lengths.max(initial=1)) for column in columns)
        means = {
            "words": float(train.inner.lengths.mean()),
            "sentences": float(train.lengths.mean()),
        }
        longest = {
            "words": min(words, config.longest),
            "sentences": min(sentences, config.sentences),
        }
        return TextLengths(len(train.inner.values) / len(train), means, longest)


class DocumentClassification(DocumentTask, Classification):
    """Assign one class to each document."""

    config_class = DocumentClassificationConfig
    network = DocumentClassifier

    @classmethod
    def read_answers(cls, rows: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
        return label_column(rows)


class DocumentRegression(DocumentTask):
    """Predict the rating of each document. The ratings are the numeric labels of the data set.

    The initial bias of the model's output is the mean rating of the training set.
    """

    criterion: ClassVar[str] = "rmse"
    config_class = DocumentRegressionConfig
    network = DocumentRegressor

    def loss(self, outputs: Any, batch: Batch) -> Float[Array, " B"]:
        return jnp.square(outputs.rating - batch["rating"])

    def counts(self, outputs: Any, batch: Batch) -> dict[str, Array]:
        error = outputs.rating - batch["rating"]
        return {
            "squared": weighted_sum(jnp.square(error), batch["weight"]),
            "absolute": weighted_sum(jnp.abs(error), batch["weight"]),
            "examples": batch["weight"].sum(),
        }

    def metrics(self, counts: Mapping[str, np.ndarray]) -> dict[str, float]:
        return {
            "rmse": float(np.sqrt(counts["squared"] / counts["examples"])),
            "mae": float(counts["absolute"] / counts["examples"]),
        }

    def baseline(self, train_table: Any, table: Any) -> dict[str, float]:
        """Return the errors of always predicting the mean rating of the training set."""
        error = table.columns["rating"] - _mean_rating(train_table)
        return {"rmse": float(np.sqrt((error**2).mean())), "mae": float(np.abs(error).mean())}

    def make_predictions(self, rows: Sequence[Mapping[str, Any]], outputs: Any) -> list[Prediction]:
        """Return the ratings. The columns are the rating and the text."""
        return [
            Prediction(
                {**row, "rating": float(rating)},
                f"{rating:.2f}",
                self.join_columns(row, f"{rating:.2f}"),
            )
            for row, rating in zip(rows, np.asarray(outputs.rating), strict=False)
        ]

    @classmethod
    def read_answers(cls, rows: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
        # TFDS numbers the labels "1" to "5" from 0.
        return {"rating": np.asarray([row["label"] + 1 for row in rows], np.float32)}

    @classmethod
    def initial_parameters(cls, train_table: Any) -> dict[tuple[str | int, ...], np.ndarray]:
        return {("rating", "bias"): _mean_rating(train_table)[None]}


def _mean_rating(table: Table) -> np.ndarray:
    """Return the mean rating of a table, as a float32 scalar array."""
    return np.asarray(table.columns["rating"].mean(), np.float32)  # type: ignore[union-attr]


def _encode_documents(
    rows: Sequence[Mapping[str, Any]], tokenizer: Tokenizer, longest: int
) -> dict[str, Nested]:
    """Return a dict with the column `text`: the token ids of every sentence of every document.

    Sentences with more than `longest` tokens are truncated.
    """
    documents = [split_sentences(row["text"]) for row in rows]
    encoded = encode(tokenizer, [sentence for document in documents for sentence in document])
    width = round_length(int(encoded.lengths.max(initial=1)), longest)
    return {"text": Nested.from_counts(encoded, [len(document) for document in documents], width)}
