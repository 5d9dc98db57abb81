"""Document classification: one label for each document."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from flax import nnx
from tokenizers import Tokenizer

from distattn_jax.data import Table, TextBuilder
from distattn_jax.models import DocumentClassifier
from distattn_jax.tasks.classification import Classification
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
    label_column,
    open_dataset,
    read_examples,
    read_labels,
    train_tokenizer,
)
from distattn_jax.tasks.text_task import model_arguments
from distattn_jax.train import Batch, Setting


@dataclasses.dataclass(frozen=True)
class DocumentClassificationConfig(DocumentConfig):
    """Options of an experiment on document classification."""

    task: ClassVar[str] = "document_classification"


class DocumentClassification(Classification):
    """Assign one class to each document."""

    length_columns = ("text",)
    length_unit = "sentences"

    @property
    def max_length(self) -> int | None:
        return self.config.data.sentences

    def make_model(self, setting: Setting, *, rngs: nnx.Rngs) -> DocumentClassifier:
        arguments = model_arguments(self, setting)
        return DocumentClassifier(classes=len(self.labels), rngs=rngs, **arguments)

    def call_model(self, model: Any, batch: Batch, **arguments: Any) -> Any:
        return call_on_documents(model, batch, **arguments)

    def encode(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return encode_documents(rows, self.tokenizer, self.config.data.longest)


def prepare(config: DocumentClassificationConfig) -> PreparedData:
    """Prepare a data set of labelled documents."""
    dataset = open_dataset(config.data)
    tokenizer = train_tokenizer(iterate_training_texts(dataset, ("text",)), config.data)
    tables = {split: read_table(config, dataset, split, tokenizer) for split in SPLITS}
    return prepare_documents(config, dataset, tokenizer, tables, labels=read_labels(dataset))


def read_table(
    config: DocumentClassificationConfig, dataset: TextBuilder, split: str, tokenizer: Tokenizer
) -> Table:
    """Return the examples of a split: the label, and the token ids of each sentence."""
    rows = read_examples(dataset, split)
    return Table({**encode_documents(rows, tokenizer, config.data.longest), **label_column(rows)})
