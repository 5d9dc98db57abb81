"""Classification of texts or pairs of sentences with a fine-tuned pre-trained model."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from distattn_jax.data import TextBuilder, encode_pairs
from distattn_jax.tasks.classification import Classification, macro_precision, macro_recall
from distattn_jax.tasks.configs import FineTuningConfig, FineTuningData, dataset_option
from distattn_jax.tasks.fine_tuning import FineTuningTask
from distattn_jax.tasks.fine_tuning_data import COLUMNS, EncoderTexts, sample_rows
from distattn_jax.tasks.preparation import label_column, read_examples

PAIR, TEXT = ("premise", "hypothesis"), ("text",)


@dataclasses.dataclass(frozen=True)
class PretrainedClassificationData(FineTuningData):
    """Options of the data set and the batches, for classification with a pre-trained model."""

    dataset: str = dataset_option("multinli", "mednli", "text_files")


@dataclasses.dataclass(frozen=True)
class PretrainedClassificationConfig(FineTuningConfig):
    """Options of an experiment on classification with a pre-trained model."""

    task: ClassVar[str] = "pretrained_classification"
    data: PretrainedClassificationData = PretrainedClassificationData()


class PretrainedClassification(FineTuningTask, Classification):
    """Assign one class to each text, or to each pair of sentences."""

    config_class = PretrainedClassificationConfig
    inputs = ("tokens", "tokens_length", "types")

    def __init__(self, config: PretrainedClassificationConfig, **arguments: Any):
        super().__init__(config, **arguments)
        self.fields = text_fields(config.data)

    def metrics(self, counts: Mapping[str, np.ndarray]) -> dict[str, float]:
        confusion = np.asarray(counts["confusion"], np.float64)
        return {
            **super().metrics(counts),
            "macro_precision": macro_precision(confusion),
            "macro_recall": macro_recall(confusion),
        }

    def encode(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        first, second = _split_fields(rows, self.fields)
        columns = encode_pairs(self.tokenizer, first, second, self.config.data.longest).columns
        return {name: columns[name] for name in COLUMNS}

    @classmethod
    def read_texts(cls, dataset: TextBuilder, split: str, config: FineTuningData) -> EncoderTexts:
        """Return the texts and labels of a split."""
        rows = read_examples(dataset, split)
        rows = [rows[i] for i in sample_rows(len(rows), split, config)]
        return EncoderTexts(*_split_fields(rows, text_fields(config)), None, label_column(rows))


def text_fields(config: FineTuningData) -> tuple[str, ...]:
    """Return the names of the text fields of an example: one name, or two names for a pair."""
    return TEXT if config.dataset == "text_files" else PAIR


def _split_fields(
    rows: Sequence[Mapping[str, Any]], fields: tuple[str, ...]
) -> tuple[list[str], list[str] | None]:
    first, *second = ([row[field] for row in rows] for field in fields)
    return first, second[0] if second else None
