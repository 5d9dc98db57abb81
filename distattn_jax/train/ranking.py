"""How well scores rank what was clicked: a loss, and the metrics of MIND (Wu et al. 2020).

With the candidates of an impression in the order of their scores, highest first, and of equal ones
the first given first, the rank of candidate i is rᵢ = 1, 2, ..., and cᵢ = 1 where it was clicked:

    AUC    = share of pairs (clicked, not clicked) in which the clicked one scores higher;
             a pair of equal scores counts half
    MRR    = Σᵢ cᵢ / rᵢ / Σᵢ cᵢ, the mean over clicks
    nDCG@k = Σ{rᵢ ≤ k} (2^cᵢ - 1) / log₂(1 + rᵢ), relative to the best order
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


def impression_metrics(
    scores: Float[Array, "B C"], clicks: Float[Array, "B C"], lengths: Int[Array, " B"]
) -> dict[str, Float[Array, " B"]]:
    """AUC, MRR, nDCG@5 and nDCG@10 of every impression: auc, mrr, ndcg@5 and ndcg@10.

    They are 0 where they mean nothing: without a click, and AUC also without anything else. Where a
    score is not a number, neither are they.

    Args:
      scores: of the candidates.
      clicks: 1 for those that were clicked, 0 for others.
      lengths: how many candidates are real.
    """
    real = _real(scores, lengths)
    clicked, other = real & (clicks > 0), real & (clicks <= 0)
    higher = real[:, None, :] & (scores[:, None, :] > scores[:, :, None])  # (B, C, C): j over i
    equal = real[:, None, :] & (scores[:, None, :] == scores[:, :, None])
    before = jnp.tri(scores.shape[1], k=-1, dtype=bool)[None]  # j < i
    rank = 1 + (higher | (equal & before)).sum(axis=-1)  # (B, C)
    lost = (higher + 0.5 * equal) * other[:, None, :]  # what a click loses to others
    count, others = clicked.sum(axis=-1), other.sum(axis=-1)
    pairs = count * others
    losses = jnp.where(clicked, lost.sum(axis=-1), 0).sum(axis=-1)
    metrics = {
        "auc": jnp.where(pairs > 0, 1 - losses / jnp.maximum(pairs, 1), 0),
        "mrr": jnp.where(clicked, 1 / rank, 0).sum(axis=-1) / jnp.maximum(count, 1),
        "ndcg@5": _ndcg(rank, clicked, 5),
        "ndcg@10": _ndcg(rank, clicked, 10),
    }
    unknown = (real & jnp.isnan(scores)).any(axis=-1)
    return {name: jnp.where(unknown, jnp.nan, value) for name, value in metrics.items()}


def softmax_loss(
    scores: Float[Array, "B C"], clicks: Float[Array, "B C"], lengths: Int[Array, " B"]
) -> Float[Array, " B"]:
    """-log softmax(scores) of what was clicked, the mean over clicks; 0 where there is none.

    Args:
      scores: of the candidates.
      clicks: 1 for those that were clicked, 0 for others.
      lengths: how many candidates are real; the others have no part in it, nor a gradient.
    """
    real = _real(scores, lengths)
    clicked = jnp.where(real, clicks, 0)
    count = clicked.sum(axis=-1)
    scores = jnp.where(real, scores, 0)
    # A row without candidates takes all of them, so that nothing is infinite.
    total = jax.nn.logsumexp(scores, axis=-1, where=real | (lengths == 0)[:, None])
    of_clicks = (clicked * scores).sum(axis=-1) / jnp.maximum(count, 1)
    return jnp.where(count > 0, total - of_clicks, 0)


def _real(scores: Float[Array, "B C"], lengths: Int[Array, " B"]) -> Bool[Array, "B C"]:
    return jnp.arange(scores.shape[1])[None, :] < lengths[:, None]


def _ndcg(rank: Int[Array, "B C"], clicked: Bool[Array, "B C"], top: int) -> Float[Array, " B"]:
    gained = jnp.where(clicked & (rank <= top), 1 / jnp.log2(1.0 + rank), 0).sum(axis=-1)
    best = jnp.cumsum(1 / jnp.log2(2.0 + jnp.arange(top)))
    count = clicked.sum(axis=-1)
    return jnp.where(count > 0, gained / best[jnp.clip(count, 1, top) - 1], 0)
