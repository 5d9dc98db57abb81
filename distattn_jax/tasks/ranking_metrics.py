"""Ranking metrics of MIND (Wu et al. 2020), recall, and a softmax loss over candidates.

The candidates of an impression are sorted by descending score. Candidates with equal scores keep
the order of the input. rᵢ is the rank of candidate i, which is 1 for the highest score. cᵢ is 1 if
candidate i was clicked (or is relevant), otherwise 0.

    AUC    = fraction of pairs (clicked, not clicked) in which the clicked candidate scores higher;
             a pair of equal scores counts as one half
    MRR    = (Σᵢ cᵢ / rᵢ) / Σᵢ cᵢ in `impression_metrics` (mean over clicks, as in MIND);
             1 / rᵢ of the first relevant candidate in `retrieval_metrics` (usual definition)
    nDCG@k = Σ{rᵢ ≤ k} (2^cᵢ - 1) / log₂(1 + rᵢ), divided by the maximum of this sum over all orders
    R@k    = Σ{rᵢ ≤ k} cᵢ / Σᵢ cᵢ, the fraction of the clicked candidates with a rank of at most k
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

RECALL_AT = (1, 3, 5, 20)


def impression_metrics(
    scores: Float[Array, "B C"], clicks: Float[Array, "B C"], lengths: Int[Array, " B"]
) -> dict[str, Float[Array, " B"]]:
    """Return the AUC, MRR, nDCG@5 and nDCG@10 of every impression.

    All metrics are 0 for an impression without clicks. AUC is also 0 if every candidate is clicked.
    All metrics are NaN if the score of a candidate is NaN.

    Args:
      scores: Scores of the candidates, shape (B, C).
      clicks: 1 for clicked candidates and 0 for the others, shape (B, C).
      lengths: Number of candidates of each impression, shape (B,). The rest of a row is padding.

    Returns:
      Metrics of shape (B,) with the keys auc, mrr, ndcg@5 and ndcg@10.
    """
    ranked = _rank(scores, clicks, lengths)
    metrics = {
        "auc": _auc(ranked),
        "mrr": _mean_reciprocal_rank(ranked.clicked),
        "ndcg@5": _ndcg(ranked.clicked, 5),
        "ndcg@10": _ndcg(ranked.clicked, 10),
    }
    return {name: jnp.where(ranked.is_nan, jnp.nan, value) for name, value in metrics.items()}


def retrieval_metrics(
    scores: Float[Array, "B C"], relevant: Float[Array, "B C"], lengths: Int[Array, " B"]
) -> dict[str, Float[Array, " B"]]:
    """Return the reciprocal rank and the recall at 1, 3, 5 and 20 of every query.

    The reciprocal rank is 1 / rank of the first relevant candidate. All metrics are 0 for a query
    without relevant candidates. All metrics are NaN if the score of a candidate is NaN.

    Args:
      scores: Scores of the candidates, shape (B, C).
      relevant: 1 for relevant candidates and 0 for the others, shape (B, C).
      lengths: Number of candidates of each query, shape (B,). The rest of a row is padding.

    Returns:
      Metrics of shape (B,) with the keys mrr, recall@1, recall@3, recall@5 and recall@20.
    """
    ranked = _rank(scores, relevant, lengths)
    recalls = {f"recall@{k}": _recall(ranked.clicked, k) for k in RECALL_AT}
    reciprocal_rank = jnp.where(ranked.clicked, 1 / _ranks(ranked.clicked), 0).max(axis=-1)
    metrics = {"mrr": reciprocal_rank, **recalls}
    return {name: jnp.where(ranked.is_nan, jnp.nan, value) for name, value in metrics.items()}


def softmax_loss(
    scores: Float[Array, "B C"], clicks: Float[Array, "B C"], lengths: Int[Array, " B"]
) -> Float[Array, " B"]:
    """Return the mean of -log softmax(scores) over the clicked candidates of each impression.

    The loss of an impression without clicks is 0.

    Args:
      scores: Scores of the candidates, shape (B, C).
      clicks: 1 for clicked candidates and 0 for the others, shape (B, C).
      lengths: Number of candidates of each impression, shape (B,). The rest of a row is padding,
        which is excluded from the softmax and receives a gradient of 0.
    """
    valid = _valid(scores, lengths)
    clicked = jnp.where(valid, clicks, 0)
    count = clicked.sum(axis=-1)
    scores = jnp.where(valid, scores, 0)
    # A row without candidates sums over its padding: the logsumexp of nothing would be infinite.
    normalizer = jax.nn.logsumexp(scores, axis=-1, where=valid | (lengths == 0)[:, None])
    mean_score = (clicked * scores).sum(axis=-1) / jnp.maximum(count, 1)
    return jnp.where(count > 0, normalizer - mean_score, 0)


class _Ranked(NamedTuple):
    """Candidates in order of descending score, followed by the padding.

    Attributes:
      scores: Scores of the candidates.
      clicked: True for clicked candidates.
      unclicked: True for candidates that were not clicked. Padding is neither clicked nor
        unclicked.
      is_nan: True for rows in which the score of a candidate is NaN.
    """

    scores: Float[Array, "B C"]
    clicked: Bool[Array, "B C"]
    unclicked: Bool[Array, "B C"]
    is_nan: Bool[Array, " B"]


def _rank(
    scores: Float[Array, "B C"], clicks: Float[Array, "B C"], lengths: Int[Array, " B"]
) -> _Ranked:
    """Sort the candidates of each row by descending score.

    Candidates with equal scores keep the order of the input.
    """
    valid = _valid(scores, lengths)
    is_nan = (valid & jnp.isnan(scores)).any(axis=-1)
    scores = jnp.where(valid, scores, -jnp.inf)
    order = jnp.argsort(scores, axis=-1, stable=True, descending=True)
    scores, clicked, unclicked = (
        jnp.take_along_axis(values, order, axis=-1)
        for values in (scores, valid & (clicks > 0), valid & (clicks <= 0))
    )
    return _Ranked(scores, clicked, unclicked, is_nan)


def _valid(scores: Float[Array, "B C"], lengths: Int[Array, " B"]) -> Bool[Array, "B C"]:
    """Return a mask that is True for candidates and False for padding."""
    return jnp.arange(scores.shape[1])[None, :] < lengths[:, None]


def _auc(ranked: _Ranked) -> Float[Array, " B"]:
    """Return the area under the ROC curve of each row: 1 minus the fraction of lost pairs.

    A pair is a clicked and an unclicked candidate. It is lost if the unclicked candidate has the
    higher score, and half lost if the scores are equal. The result is 0 for a row without pairs.
    """
    scores, clicked, unclicked, _ = ranked
    changes = scores[:, 1:] != scores[:, :-1]
    first_of_ties = jnp.pad(changes, ((0, 0), (1, 0)), constant_values=True)
    last_of_ties = jnp.pad(changes, ((0, 0), (0, 1)), constant_values=True)
    count = jnp.cumsum(unclicked, axis=-1)
    higher = jax.lax.cummax(jnp.where(first_of_ties, count - unclicked, 0), axis=1)
    higher_or_equal = jax.lax.cummin(
        jnp.where(last_of_ties, count, unclicked.shape[1]), axis=1, reverse=True
    )
    lost = _sum_where(clicked, (higher + higher_or_equal) / 2)
    pairs = clicked.sum(axis=-1) * unclicked.sum(axis=-1)
    return jnp.where(pairs > 0, 1 - lost / jnp.maximum(pairs, 1), 0)


def _mean_reciprocal_rank(clicked: Bool[Array, "B C"]) -> Float[Array, " B"]:
    """Return the mean of 1 / rank over the clicked candidates of each row.

    The result is 0 for a row without clicks.
    """
    return _sum_where(clicked, 1 / _ranks(clicked)) / jnp.maximum(clicked.sum(axis=-1), 1)


def _recall(clicked: Bool[Array, "B C"], k: int) -> Float[Array, " B"]:
    """Return, for each row, the fraction of the clicked candidates that have a rank of at most k.

    The result is 0 for a row without clicks.
    """
    found = _sum_where(clicked, jnp.where(_ranks(clicked) <= k, 1.0, 0.0))
    return found / jnp.maximum(clicked.sum(axis=-1), 1)


def _ndcg(clicked: Bool[Array, "B C"], k: int) -> Float[Array, " B"]:
    """Return the normalised discounted cumulative gain (nDCG@k) of each row.

    The candidates in `clicked` are sorted by descending score.
    """
    discounts = jnp.where(_ranks(clicked) <= k, 1 / jnp.log2(1 + _ranks(clicked)), 0)
    best_order = jnp.arange(clicked.shape[1])[None, :] < clicked.sum(axis=-1)[:, None]
    ideal = _sum_where(best_order, discounts)
    return jnp.where(ideal > 0, _sum_where(clicked, discounts) / jnp.maximum(ideal, 1), 0)


def _ranks(clicked: Bool[Array, "B C"]) -> Float[Array, "1 C"]:
    """Return the ranks 1, 2, ..., C of candidates that are sorted by descending score."""
    return 1.0 + jnp.arange(clicked.shape[1])[None, :]


def _sum_where(mask: Bool[Array, "B C"], values: Float[Array, "#B C"]) -> Float[Array, " B"]:
    """Return the sum of each row over the values where the mask is True."""
    return jnp.where(mask, values, 0).sum(axis=-1)
