"""News recommendation: rank the candidates of an impression by the reader's history.

An impression is a list of news items (candidates) that were shown to a reader. The history is the
list of news items that the reader clicked before.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Array, Float
from tokenizers import Tokenizer

from distattn_jax.data import TextBuilder
from distattn_jax.datasets import Mind, OnDiskImpressions
from distattn_jax.datasets.mind import HISTORY
from distattn_jax.datasets.on_disk_impressions import TITLE_LENGTH
from distattn_jax.models import NewsRecommender
from distattn_jax.tasks.configs import MethodsConfig, WordConfig, dataset_option, tokenizer_option
from distattn_jax.tasks.preparation import TextLengths, train_tokenizer
from distattn_jax.tasks.ranking_metrics import impression_metrics, softmax_loss
from distattn_jax.tasks.text_task import TextTask
from distattn_jax.train import Batch, weighted_sum


@dataclasses.dataclass(frozen=True)
class NewsRecommendationData(WordConfig):
    """Options of the data set, the vocabulary and the batches, for news recommendation."""

    dataset: str = dataset_option("mind", "mind_large")
    tokenizer: str = tokenizer_option()


@dataclasses.dataclass(frozen=True)
class NewsRecommendationConfig(MethodsConfig):
    """Options of an experiment on news recommendation."""

    task: ClassVar[str] = "news_recommendation"
    data: NewsRecommendationData = NewsRecommendationData()


class NewsRecommendation(TextTask):
    """Rank candidate news items for a reader. The metrics are means over impressions.

    All candidates of an impression are kept, because the metrics depend on all of them.
    """

    criterion: ClassVar[str] = "auc"
    config_class = NewsRecommendationConfig
    length_columns = ("candidates",)
    length_unit = "candidates"
    network = NewsRecommender
    inputs = ("history", "history_words", "history_length", "candidates", "candidates_words")
    embedding_path = ("titles", "embedding", "embedding")

    def loss(self, outputs: Any, batch: Batch) -> Float[Array, " B"]:
        return softmax_loss(outputs.scores, batch["clicks"], batch["candidates_length"])

    def counts(self, outputs: Any, batch: Batch) -> dict[str, Array]:
        metrics = impression_metrics(outputs.scores, batch["clicks"], batch["candidates_length"])
        sums = {name: weighted_sum(value, batch["weight"]) for name, value in metrics.items()}
        return {**sums, "impressions": batch["weight"].sum()}

    def metrics(self, counts: Mapping[str, np.ndarray]) -> dict[str, float]:
        names = ("auc", "mrr", "ndcg@5", "ndcg@10")
        return {name: float(counts[name] / counts["impressions"]) for name in names}

    @classmethod
    def make_tokenizer(cls, config: Any, dataset: TextBuilder) -> Tokenizer:
        assert isinstance(dataset, Mind)
        return train_tokenizer(dataset.training_titles, config)

    @classmethod
    def measure_lengths(cls, config: Any, tables: Mapping[str, Any]) -> TextLengths:
        mean_length = float(tables["train"].title_lengths[1:].mean())
        longest = max(int(table.title_lengths.max()) for table in tables.values())
        return TextLengths(
            mean_length,
            {"titles": mean_length},  # The lengths of histories are not counted.
            {"titles": min(longest, TITLE_LENGTH), "user": HISTORY},
        )

    @classmethod
    def read_table(
        cls, config: Any, dataset: TextBuilder, split: str, tokenizer: Tokenizer
    ) -> OnDiskImpressions:
        """Return the impressions of a split, which stay on disk until a batch needs them."""
        assert isinstance(dataset, Mind)
        return OnDiskImpressions.from_builder(dataset, split, tokenizer)
