"""Document regression: a rating for each document, e.g. the stars of a review."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float
from tokenizers import Tokenizer

from distattn_jax.data import Table, TextBuilder
from distattn_jax.models import DocumentRegressor
from distattn_jax.tasks.documents import (
    DocumentConfig,
    call_on_documents,
    encode_documents,
    prepare_documents,
)
from distattn_jax.tasks.preparation import (
    SPLITS,
    PreparedData,
    iterate_training_texts,
    open_dataset,
    read_examples,
    train_tokenizer,
)
from distattn_jax.tasks.text_task import PredictingTask, model_arguments
from distattn_jax.train import Batch, Setting, weighted_sum


@dataclasses.dataclass(frozen=True)
class DocumentRegressionConfig(DocumentConfig):
    """Options of an experiment on document regression."""

    task: ClassVar[str] = "document_regression"


class DocumentRegression(PredictingTask):
    """Predict the rating of each document. The ratings are the numeric labels of the data set.

    The initial bias of the model's output is the mean rating of the training set.
    """

    criterion: ClassVar[str] = "rmse"
    length_columns = ("text",)
    length_unit = "sentences"

    @property
    def max_length(self) -> int | None:
        return self.config.data.sentences

    def make_model(self, setting: Setting, *, rngs: nnx.Rngs) -> DocumentRegressor:
        return DocumentRegressor(rngs=rngs, **model_arguments(self, setting))

    def call_model(self, model: Any, batch: Batch, **arguments: Any) -> Any:
        return call_on_documents(model, batch, **arguments)

    def encode(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return encode_documents(rows, self.tokenizer, self.config.data.longest)

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
        error = table.columns["rating"] - mean_rating(train_table)
        return {"rmse": float(np.sqrt((error**2).mean())), "mae": float(np.abs(error).mean())}

    def format_predictions(self, outputs: Any) -> list[str]:
        return [f"{rating:.2f}" for rating in np.asarray(outputs.rating)]


def prepare(config: DocumentRegressionConfig) -> PreparedData:
    """Prepare a data set of rated documents."""
    dataset = open_dataset(config.data)
    tokenizer = train_tokenizer(iterate_training_texts(dataset, ("text",)), config.data)
    tables = {split: read_table(config, dataset, split, tokenizer) for split in SPLITS}
    bias: dict[tuple[str | int, ...], np.ndarray] = {
        ("rating", "bias"): mean_rating(tables["train"])[None]
    }
    return prepare_documents(config, dataset, tokenizer, tables, initial_parameters=bias)


def read_table(
    config: DocumentRegressionConfig, dataset: TextBuilder, split: str, tokenizer: Tokenizer
) -> Table:
    """Return the examples of a split: the rating, and the token ids of each sentence."""
    rows = read_examples(dataset, split)
    # TFDS numbers the labels "1" to "5" from 0.
    ratings = np.asarray([row["label"] + 1 for row in rows], np.float32)
    return Table({**encode_documents(rows, tokenizer, config.data.longest), "rating": ratings})


def mean_rating(table: Table) -> np.ndarray:
    """Return the mean rating of a table, as a float32 scalar array."""
    return np.asarray(table.columns["rating"].mean(), np.float32)  # type: ignore[union-attr]
