"""News for readers, as a task: which of the candidates do they click?"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
from flax import nnx
from jaxtyping import Array, Float
from tokenizers import Tokenizer

from distattn_jax.data import TextBuilder
from distattn_jax.datasets import Mind, OnDiskImpressions
from distattn_jax.models import NewsRecommender, RankingOutput
from distattn_jax.train.config import DataConfig
from distattn_jax.train.losses import weighted_sum
from distattn_jax.train.members import Setting
from distattn_jax.train.ranking import impression_metrics, softmax_loss
from distattn_jax.train.task import Batch
from distattn_jax.train.text_task import TextTask


class NewsRecommendation(TextTask):
    """Which candidates a reader clicks; the metrics are means over impressions."""

    fields = ()
    by = ("candidates",)
    unit = "candidates"
    unread = (*TextTask.unread, "data.longest")
    criterion: ClassVar[str] = "auc"
    embedding = ("titles", "embedding", "embedding")

    def longest(self, config: DataConfig) -> int | None:
        return None

    @classmethod
    def texts(cls, builder: TextBuilder) -> Iterator[str]:
        assert isinstance(builder, Mind)
        return iter(builder.training_titles)

    @classmethod
    def labels_of(cls, builder: TextBuilder) -> tuple[str, ...]:
        return ()

    @classmethod
    def table(
        cls, builder: TextBuilder, split: str, tokenizer: Tokenizer, config: DataConfig
    ) -> OnDiskImpressions:
        assert isinstance(builder, Mind)
        return OnDiskImpressions.from_builder(builder, split, tokenizer)

    @classmethod
    def average_length(cls, table: OnDiskImpressions) -> float:
        return float(table.title_lengths[1:].mean())

    @classmethod
    def sequence_lengths(cls, table: OnDiskImpressions) -> dict[str, float]:
        return {"titles": cls.average_length(table)}  # histories are not counted

    def model(self, setting: Setting, *, rngs: nnx.Rngs) -> NewsRecommender:
        return NewsRecommender(rngs=rngs, **self.arguments(setting))

    def outputs(self, model: NewsRecommender, batch: Batch, **dropout: Any) -> RankingOutput:
        return model(
            batch["history"],
            batch["history_words"],
            batch["history_length"],
            batch["candidates"],
            batch["candidates_words"],
            **dropout,
        )

    def loss(self, outputs: RankingOutput, batch: Batch) -> Float[Array, " B"]:
        return softmax_loss(outputs.scores, batch["clicks"], batch["candidates_length"])

    def counts(self, outputs: RankingOutput, batch: Batch) -> dict[str, Array]:
        found = impression_metrics(outputs.scores, batch["clicks"], batch["candidates_length"])
        sums = {name: weighted_sum(value, batch["weight"]) for name, value in found.items()}
        return {**sums, "impressions": batch["weight"].sum()}

    def metrics(self, counts: Mapping[str, np.ndarray]) -> dict[str, float]:
        names = ("auc", "mrr", "ndcg@5", "ndcg@10")
        return {name: float(counts[name] / counts["impressions"]) for name in names}
