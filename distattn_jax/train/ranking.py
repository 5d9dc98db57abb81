"""How well scores rank what was clicked: a loss, the metrics of MIND (Wu et al. 2020), and recall.

With the candidates of an impression in the order of their scores, highest first, and of equal ones
the first given first, the rank of candidate i is rᵢ = 1, 2, ..., and cᵢ = 1 where it was clicked:

    AUC    = share of pairs (clicked, not clicked) in which the clicked one scores higher;
             a pair of equal scores counts half
    MRR    = Σᵢ cᵢ / rᵢ / Σᵢ cᵢ, the mean over clicks, as MIND has it;
             elsewhere, and in `retrieval_metrics`, 1 / rᵢ of the first that was clicked
    nDCG@k = Σ{rᵢ ≤ k} (2^cᵢ - 1) / log₂(1 + rᵢ), relative to the best order
    R@k    = Σ{rᵢ ≤ k} cᵢ / Σᵢ cᵢ, the share of clicks that are among the first k
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

RECALL_AT = (1, 3, 5, 20)


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
    scores, clicked, other, unknown = _ordered(scores, clicks, lengths)
    metrics = {
        "auc": _auc(scores, clicked, other),
        "mrr": _mrr(clicked),
        "ndcg@5": _ndcg(clicked, 5),
        "ndcg@10": _ndcg(clicked, 10),
    }
    return {name: jnp.where(unknown, jnp.nan, value) for name, value in metrics.items()}


def retrieval_metrics(
    scores: Float[Array, "B C"], relevant: Float[Array, "B C"], lengths: Int[Array, " B"]
) -> dict[str, Float[Array, " B"]]:
    """MRR and R@1, 3, 5 and 20 of every query: mrr, recall@1, recall@3, recall@5 and recall@20.

    They are 0 where nothing is relevant. Where a score is not a number, neither are they.

    Args:
      scores: of the candidates.
      relevant: 1 for those that are right, which the equations call clicked; 0 for others.
      lengths: how many candidates are real.
    """
    _, right, _, unknown = _ordered(scores, relevant, lengths)
    recalls = {f"recall@{top}": _recall(right, top) for top in RECALL_AT}
    first = jnp.where(right, 1 / _ranks(right), 0).max(axis=-1)
    metrics = {"mrr": first, **recalls}
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


def _ordered(
    scores: Float[Array, "B C"], clicks: Float[Array, "B C"], lengths: Int[Array, " B"]
) -> tuple[Float[Array, "B C"], Bool[Array, "B C"], Bool[Array, "B C"], Bool[Array, " B"]]:
    """Scores, what was clicked and what was not, by rank; and where a score is not a number."""
    real = _real(scores, lengths)
    unknown = (real & jnp.isnan(scores)).any(axis=-1)
    scores = jnp.where(real, scores, -jnp.inf)
    order = jnp.argsort(scores, axis=-1, stable=True, descending=True)
    scores, clicked, other = (
        jnp.take_along_axis(values, order, axis=-1)
        for values in (scores, real & (clicks > 0), real & (clicks <= 0))
    )
    return scores, clicked, other, unknown


def _real(scores: Float[Array, "B C"], lengths: Int[Array, " B"]) -> Bool[Array, "B C"]:
    return jnp.arange(scores.shape[1])[None, :] < lengths[:, None]


# From here on, candidates are in the order of their scores.


def _auc(
    scores: Float[Array, "B C"], clicked: Bool[Array, "B C"], other: Bool[Array, "B C"]
) -> Float[Array, " B"]:
    """A click loses to the others that score higher, and half of those that score the same."""
    changes = scores[:, 1:] != scores[:, :-1]
    first = jnp.pad(changes, ((0, 0), (1, 0)), constant_values=True)  # of equal scores
    last = jnp.pad(changes, ((0, 0), (0, 1)), constant_values=True)
    so_far = jnp.cumsum(other, axis=-1)
    higher = jax.lax.cummax(jnp.where(first, so_far - other, 0), axis=1)
    not_lower = jax.lax.cummin(jnp.where(last, so_far, other.shape[1]), axis=1, reverse=True)
    lost = _gained(clicked, (higher + not_lower) / 2)
    pairs = clicked.sum(axis=-1) * other.sum(axis=-1)
    return jnp.where(pairs > 0, 1 - lost / jnp.maximum(pairs, 1), 0)


def _mrr(clicked: Bool[Array, "B C"]) -> Float[Array, " B"]:
    return _gained(clicked, 1 / _ranks(clicked)) / jnp.maximum(clicked.sum(axis=-1), 1)


def _recall(clicked: Bool[Array, "B C"], top: int) -> Float[Array, " B"]:
    found = _gained(clicked, jnp.where(_ranks(clicked) <= top, 1.0, 0.0))
    return found / jnp.maximum(clicked.sum(axis=-1), 1)


def _ndcg(clicked: Bool[Array, "B C"], top: int) -> Float[Array, " B"]:
    discounts = jnp.where(_ranks(clicked) <= top, 1 / jnp.log2(1 + _ranks(clicked)), 0)
    best = jnp.arange(clicked.shape[1])[None, :] < clicked.sum(axis=-1)[:, None]
    ideal = _gained(best, discounts)
    return jnp.where(ideal > 0, _gained(clicked, discounts) / jnp.maximum(ideal, 1), 0)


def _ranks(clicked: Bool[Array, "B C"]) -> Float[Array, "1 C"]:
    return 1.0 + jnp.arange(clicked.shape[1])[None, :]


def _gained(clicked: Bool[Array, "B C"], values: Float[Array, "#B C"]) -> Float[Array, " B"]:
    """The sum over clicks."""
    return jnp.where(clicked, values, 0).sum(axis=-1)
