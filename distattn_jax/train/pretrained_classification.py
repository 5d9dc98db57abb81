"""Pairs of sentences, and texts, with their classes, on pre-trained models."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from flax import nnx
from tokenizers import Tokenizer

from distattn_jax.data import TextBuilder, encode_pairs, load_split
from distattn_jax.models import PretrainedClassifier
from distattn_jax.train.classification import Classification, macro_precision, macro_recall
from distattn_jax.train.config import DataConfig
from distattn_jax.train.fine_tuning import FineTuning, Texts, share_of
from distattn_jax.train.members import Setting
from distattn_jax.train.task import Batch


class PretrainedClassification(FineTuning, Classification):
    """Which class a pair of sentences belongs to."""

    fields: ClassVar[tuple[str, ...]] = ("premise", "hypothesis")

    @classmethod
    def pairs(cls, builder: TextBuilder, split: str, config: DataConfig) -> Texts:
        rows = load_split(builder, split)
        rows = [rows[i] for i in share_of(len(rows), split, config)]
        return Texts(*cls._sides(rows), [1] * len(rows), cls.answers(rows))

    @classmethod
    def encoded(
        cls, rows: Sequence[Mapping[str, Any]], tokenizer: Tokenizer, config: DataConfig
    ) -> dict[str, Any]:
        columns = encode_pairs(tokenizer, *cls._sides(rows), config.longest).columns
        return {name: columns[name] for name in cls.read}

    @classmethod
    def _sides(cls, rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[str] | None]:
        first, *second = ([row[field] for row in rows] for field in cls.fields)
        return first, second[0] if second else None

    def model(self, setting: Setting, *, rngs: nnx.Rngs) -> PretrainedClassifier:
        return self.classifier(len(self.labels), rngs)

    def outputs(self, model: PretrainedClassifier, batch: Batch, **arguments: Any) -> Any:
        return model(batch["tokens"], batch["tokens_length"], batch["types"], **arguments)

    def metrics(self, counts: Mapping[str, np.ndarray]) -> dict[str, float]:
        confusion = np.asarray(counts["confusion"], np.float64)
        return {
            **super().metrics(counts),
            "macro_precision": macro_precision(confusion),
            "macro_recall": macro_recall(confusion),
        }


class PretrainedTextClassification(PretrainedClassification):
    """Which class a text belongs to."""

    fields = ("text",)
