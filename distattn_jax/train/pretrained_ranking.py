"""Ranking on a pre-trained model: which of the candidates support a claim?"""

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Bool, Float

from distattn_jax.data import Nested, Ragged, TextBuilder
from distattn_jax.datasets import ClaimBuilder, load_candidates
from distattn_jax.models import PretrainedClassifier
from distattn_jax.train.config import DataConfig
from distattn_jax.train.fine_tuning import FineTuning, Texts, share_of
from distattn_jax.train.losses import Loss, weighted_sum
from distattn_jax.train.members import Setting
from distattn_jax.train.ranking import RECALL_AT, retrieval_metrics
from distattn_jax.train.task import Batch


class Ranked(NamedTuple):
    """The scores of candidates, and what of the attention to each of them was asked for."""

    scores: Float[Array, "B C"]
    received: Float[Array, "K L N S"] | None = None
    weights: Float[Array, "K L N T S"] | None = None


class PretrainedRanking(FineTuning):
    """Which papers support a claim: each is judged with the claim, right or not.

    An example is a claim with its candidates. Its loss is the mean over these of the binary
    cross-entropy, and so is that of a guide; the metrics are means over claims.
    """

    fields = ()
    unit = "candidates"
    criterion: ClassVar[str] = "mrr"

    def longest(self, config: DataConfig) -> int | None:
        return None

    @classmethod
    def labels_of(cls, builder: TextBuilder) -> tuple[str, ...]:
        return ()

    @classmethod
    def pairs(cls, builder: TextBuilder, split: str, config: DataConfig) -> Texts:
        assert isinstance(builder, ClaimBuilder)
        claims, papers, relevant, bm25 = load_candidates(builder, split)
        starts, counts = relevant.offsets, relevant.lengths
        rows = share_of(len(relevant), split, config)
        places = [place for row in rows for place in range(starts[row], starts[row + 1])]
        kept = [int(counts[row]) for row in rows]
        offsets = np.cumsum([0, *kept], dtype=np.int64)
        answers = {"relevant": Ragged(relevant.values[places], offsets)}
        if split != "train":
            answers["bm25"] = Ragged(bm25.values[places], offsets)  # no model reads it
        return Texts([claims[i] for i in places], [papers[i] for i in places], kept, answers)

    @classmethod
    def laid(cls, column: Ragged, texts: Texts, config: DataConfig) -> Nested:
        width = min(config.longest, -(-int(column.lengths.max(initial=1)) // 8) * 8)  # few shapes
        return Nested.from_counts(column, texts.counts, width)

    def model(self, setting: Setting, *, rngs: nnx.Rngs) -> PretrainedClassifier:
        return self.classifier(1, rngs)

    def outputs(self, model: PretrainedClassifier, batch: Batch, **arguments: Any) -> Ranked:
        each = _each(batch)
        said = model(each["tokens"], each["tokens_length"], each["types"], **arguments)
        return Ranked(said.logits.reshape(batch["tokens_words"].shape), *said[1:])

    def of_examples(self, loss: Loss) -> Loss:
        def mean(outputs: Ranked, batch: Batch) -> Float[Array, " B"]:
            losses = loss(outputs, {**batch, **_each(batch)})
            return _mean(losses.reshape(batch["tokens_words"].shape), _real(batch))

        return mean

    def loss(self, outputs: Ranked, batch: Batch) -> Float[Array, " B"]:
        right = batch["relevant"].astype(jnp.float32)
        return _mean(optax.sigmoid_binary_cross_entropy(outputs.scores, right), _real(batch))

    def counts(self, outputs: Ranked, batch: Batch) -> dict[str, Array]:
        right = batch["relevant"].astype(jnp.float32)
        found = retrieval_metrics(outputs.scores, right, batch["tokens_length"])
        sums = {name: weighted_sum(value, batch["weight"]) for name, value in found.items()}
        return {**sums, "claims": batch["weight"].sum()}

    def metrics(self, counts: Mapping[str, np.ndarray]) -> dict[str, float]:
        names = ("mrr", *(f"recall@{top}" for top in RECALL_AT))
        return {name: float(counts[name] / counts["claims"]) for name in names}

    def baseline(self, split: str) -> dict[str, float]:
        """The candidates in the order of BM25, by which the wrong ones were picked.

        Equals keep the order they are stored in, which is drawn: it favours none.
        """
        columns = self.tables[split].columns
        if "bm25" not in columns:
            return {}
        rows, most = np.arange(len(columns["bm25"])), int(columns["bm25"].lengths.max())
        scores, lengths = columns["bm25"].pad(rows, most)
        relevant, _ = columns["relevant"].pad(rows, most)
        found = retrieval_metrics(
            jnp.asarray(scores), jnp.asarray(relevant, jnp.float32), jnp.asarray(lengths)
        )
        return {name: float(values.mean()) for name, values in found.items()}


def _each(batch: Batch) -> Batch:
    """Every candidate as a row of its own: the columns of (B, C, T) as (B C, T)."""
    each = {
        name: column.reshape(-1, column.shape[-1])
        for name, column in batch.items()
        if f"{name}_words" in batch
    }
    return {**each, "tokens_length": batch["tokens_words"].reshape(-1)}


def _real(batch: Batch) -> Bool[Array, "B C"]:
    """True where there is a candidate."""
    return jnp.arange(batch["tokens_words"].shape[1])[None, :] < batch["tokens_length"][:, None]


def _mean(values: Float[Array, "B C"], real: Bool[Array, "B C"]) -> Float[Array, " B"]:
    """Over what is real; 0 where nothing is."""
    return jnp.where(real, values, 0).sum(axis=-1) / jnp.maximum(real.sum(axis=-1), 1)
