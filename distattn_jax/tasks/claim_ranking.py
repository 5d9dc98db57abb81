"""Claim ranking: find the papers that support a claim, with a fine-tuned pre-trained model."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from distattn_jax.data import DataError, Ragged, TextBuilder
from distattn_jax.datasets import ClaimBuilder, load_candidates
from distattn_jax.tasks.configs import FineTuningConfig, FineTuningData, dataset_option
from distattn_jax.tasks.fine_tuning import FineTuningTask
from distattn_jax.tasks.fine_tuning_data import EncoderTexts, sample_rows
from distattn_jax.tasks.ranking_metrics import RECALL_AT, retrieval_metrics
from distattn_jax.train import Batch, Loss, weighted_sum
from distattn_jax.train.losses import length_mask, masked_mean


@dataclasses.dataclass(frozen=True)
class ClaimRankingData(FineTuningData):
    """Options of the data set and the batches, for claim ranking."""

    dataset: str = dataset_option("covid_fact", "cross_genre")


@dataclasses.dataclass(frozen=True)
class ClaimRankingConfig(FineTuningConfig):
    """Options of an experiment on claim ranking."""

    task: ClassVar[str] = "claim_ranking"
    data: ClaimRankingData = ClaimRankingData()


class CandidateOutput(NamedTuple):
    """Scores and attention of the model for B claims with C candidates each.

    The model reads K = B · C texts. A text is a pair of a claim and a candidate.

    Attributes:
      scores: Logits of relevance, shape (B, C).
      received: Attention that each key receives, summed over the queries, for every layer and head,
        shape (K, L, N, S). None if not requested.
      weights: Attention maps of every layer and head, shape (K, L, N, T, S). None if not requested.
    """

    scores: Float[Array, "B C"]
    received: Float[Array, "K L N S"] | None = None
    weights: Float[Array, "K L N T S"] | None = None


class ClaimRanking(FineTuningTask):
    """Score the relevance of every candidate paper of a claim.

    An example is a claim with its candidates. The loss of an example, and each auxiliary loss on
    the attention, is the mean over the candidates. The metrics are means over claims. All
    candidates of a claim are kept, because the metrics depend on all of them.
    """

    criterion: ClassVar[str] = "mrr"
    config_class = ClaimRankingConfig
    length_unit = "candidates"

    def per_example(self, loss: Loss) -> Loss:
        """Convert a loss per candidate into a loss per claim: the mean over the candidates."""

        def mean(outputs: Any, batch: Batch) -> Float[Array, " B"]:
            losses = loss(outputs, {**batch, **_flatten_candidates(batch)})
            return masked_mean(
                losses.reshape(batch["tokens_words"].shape), length_mask(batch, "tokens")
            )

        return mean

    @property
    def logits(self) -> int:
        return 1  # the relevance of the candidate

    def call_model(self, model: Any, batch: Batch, **arguments: Any) -> CandidateOutput:
        flat = _flatten_candidates(batch)
        outputs = model(flat["tokens"], flat["tokens_length"], flat["types"], **arguments)
        scores = outputs.logits.reshape(batch["tokens_words"].shape)
        return CandidateOutput(scores, outputs.received, outputs.weights)

    def loss(self, outputs: CandidateOutput, batch: Batch) -> Float[Array, " B"]:
        relevant = batch["relevant"].astype(jnp.float32)
        losses = optax.sigmoid_binary_cross_entropy(outputs.scores, relevant)
        return masked_mean(losses, length_mask(batch, "tokens"))

    def counts(self, outputs: CandidateOutput, batch: Batch) -> dict[str, Array]:
        relevant = batch["relevant"].astype(jnp.float32)
        metrics = retrieval_metrics(outputs.scores, relevant, batch["tokens_length"])
        sums = {name: weighted_sum(value, batch["weight"]) for name, value in metrics.items()}
        return {**sums, "claims": batch["weight"].sum()}

    def metrics(self, counts: Mapping[str, np.ndarray]) -> dict[str, float]:
        names = ("mrr", *(f"recall@{k}" for k in RECALL_AT))
        return {name: float(counts[name] / counts["claims"]) for name in names}

    def baseline(self, train_table: Any, table: Any) -> dict[str, float]:
        """Return the metrics of ranking the candidates by their BM25 scores.

        The irrelevant candidates were also chosen by their BM25 scores. Candidates with equal
        scores keep their stored order, which is random. The result is an empty dict if `table` has
        no column `bm25`, as in the training set.
        """
        columns = table.columns
        if "bm25" not in columns:
            return {}
        rows, most = np.arange(len(columns["bm25"])), int(columns["bm25"].lengths.max())
        scores, lengths = columns["bm25"].pad(rows, most)
        relevant, _ = columns["relevant"].pad(rows, most)
        metrics = retrieval_metrics(
            jnp.asarray(scores), jnp.asarray(relevant, jnp.float32), jnp.asarray(lengths)
        )
        return {name: float(values.mean()) for name, values in metrics.items()}

    @classmethod
    def read_texts(cls, dataset: TextBuilder, split: str, config: FineTuningData) -> EncoderTexts:
        """Return the pairs (claim, candidate) of a split and the relevance of each candidate."""
        assert isinstance(dataset, ClaimBuilder)
        claims, papers, relevant, bm25 = load_candidates(dataset, split)
        if not len(relevant):
            raise DataError(f"the split {split!r} of {dataset.name} has no examples.")
        starts, counts = relevant.offsets, relevant.lengths
        rows = sample_rows(len(relevant), split, config)
        places = [place for row in rows for place in range(starts[row], starts[row + 1])]
        kept = [int(counts[row]) for row in rows]
        offsets = np.cumsum([0, *kept], dtype=np.int64)
        answers = {"relevant": Ragged(relevant.values[places], offsets)}
        if split != "train":
            answers["bm25"] = Ragged(bm25.values[places], offsets)  # Only the baseline reads it.
        return EncoderTexts([claims[i] for i in places], [papers[i] for i in places], kept, answers)


def _flatten_candidates(batch: Batch) -> Batch:
    """Return the token columns of a batch with one row for each candidate.

    For B claims with C candidates of T tokens, columns of shape (B, C, T) get the shape (B · C, T).
    The result also has the column `tokens_length`, the number of tokens of each candidate.
    """
    flat = {
        name: column.reshape(-1, column.shape[-1])
        for name, column in batch.items()
        if f"{name}_words" in batch
    }
    return {**flat, "tokens_length": batch["tokens_words"].reshape(-1)}
