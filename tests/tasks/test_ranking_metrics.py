"""Ranking metrics and loss against hand-computed values, plain loops and scikit-learn."""

import functools
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from distattn_jax.tasks.ranking_metrics import impression_metrics, retrieval_metrics, softmax_loss

NAN, INF = float("nan"), float("inf")


def array(values):
    return np.asarray(values, np.float32)


def compute(function, scores, clicks, lengths=None):
    """Return the metrics of each row. Rows are padded, so that a program is compiled once."""
    rows, candidates = np.shape(scores)
    lengths = [candidates] * rows if lengths is None else lengths
    height, width = (0, 0) if candidates == 1 else (40 - rows, 25 - candidates)
    scores, clicks = (np.pad(array(x), ((0, height), (0, width))) for x in (scores, clicks))
    metrics = function(scores, clicks, np.pad(lengths, (0, height)))
    return {name: np.asarray(values)[:rows] for name, values in metrics.items()}


compute_metrics = functools.partial(compute, jax.jit(impression_metrics))
compute_retrieval_metrics = functools.partial(compute, jax.jit(retrieval_metrics))


def metrics_by_loops(scores, clicks):
    """Compute the metrics of one impression from their definitions."""
    labelled = list(zip(scores, clicks, strict=True))
    pairs = [(s, t) for s, clicked in labelled if clicked for t, other in labelled if not other]
    won = sum(1.0 if s > t else 0.5 if s == t else 0.0 for s, t in pairs)
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    ranked = [clicks[i] for i in order]

    def gain(labels, k):
        return sum((2**label - 1) / math.log2(place + 2) for place, label in enumerate(labels[:k]))

    def ndcg(k):
        return gain(ranked, k) / gain(sorted(clicks, reverse=True), k) if any(clicks) else 0

    reciprocal = sum(label / (place + 1) for place, label in enumerate(ranked))
    return {
        "auc": won / len(pairs) if pairs else 0,
        "mrr": reciprocal / sum(clicks) if any(clicks) else 0,
        "ndcg@5": ndcg(5),
        "ndcg@10": ndcg(10),
    }


def test_metrics_of_four_candidates():
    # The ranks are 2, 4, 1, 3. The clicks have ranks 1 and 3 and win 2 and 1 of their 2 pairs.
    metrics = compute_metrics([[0.5, -2.0, 0.9, 0.1]], [[0, 0, 1, 1]])
    ndcg = (1 + 1 / 2) / (1 + 1 / math.log2(3))
    expected = {"auc": 3 / 4, "mrr": (1 + 1 / 3) / 2, "ndcg@5": ndcg, "ndcg@10": ndcg}
    expected = {name: array([value]) for name, value in expected.items()}
    chex.assert_trees_all_close(metrics, expected, rtol=1e-6)


def test_metrics_equal_those_of_scikit_learn():
    from sklearn.metrics import ndcg_score, roc_auc_score  # A slow import, for one test.

    draw = np.random.default_rng(3)
    # Ties would differ: scikit-learn averages over their orders.
    scores = draw.normal(size=(20, 15)).astype(np.float32)
    clicks = (draw.random((20, 15)) < 0.2).astype(np.float32)
    clicks[:, :2] = (0, 1)  # scikit-learn's AUC needs both classes
    metrics = compute_metrics(scores, clicks)
    for i, (row, labels) in enumerate(zip(scores, clicks, strict=True)):
        assert metrics["auc"][i] == pytest.approx(roc_auc_score(labels, row), abs=1e-6)
        for k in (5, 10):
            expected = ndcg_score([labels], [row], k=k)
            assert metrics[f"ndcg@{k}"][i] == pytest.approx(expected, abs=1e-6)


def test_a_click_below_rank_k_adds_nothing_to_ndcg():
    ranks = np.arange(1, 13)
    metrics = compute_metrics([-ranks] * 12, np.eye(12))  # row i has its click at rank i
    gains = 1 / np.log2(ranks + 1)
    np.testing.assert_allclose(metrics["ndcg@5"], gains * (ranks <= 5), rtol=1e-6)
    np.testing.assert_allclose(metrics["ndcg@10"], gains * (ranks <= 10), rtol=1e-6)
    np.testing.assert_allclose(metrics["mrr"], 1 / ranks, rtol=1e-6)


def test_equal_scores_keep_their_order_and_count_half_in_auc():
    metrics = compute_metrics([[1.0, 1.0, 1.0]] * 3, np.eye(3))
    np.testing.assert_allclose(metrics["mrr"], [1, 1 / 2, 1 / 3], rtol=1e-6)
    np.testing.assert_allclose(metrics["ndcg@5"], [1, 1 / math.log2(3), 1 / 2], rtol=1e-6)
    np.testing.assert_array_equal(metrics["auc"], [0.5, 0.5, 0.5])


@pytest.mark.parametrize("longest", [1, 23])
def test_metrics_equal_those_of_plain_loops(longest):
    draw = np.random.default_rng(longest)
    shape = (40, longest)
    scores = array(draw.normal(size=shape))
    scores[:20] = draw.integers(-2, 3, (20, longest))  # with ties
    clicks = draw.random(shape) < draw.random((40, 1))
    lengths = draw.integers(0, longest + 1, 40)
    metrics = compute_metrics(scores, clicks, lengths)
    for i, length in enumerate(lengths):
        expected = metrics_by_loops(
            scores[i, :length].tolist(), clicks[i, :length].astype(int).tolist()
        )
        actual = {name: values[i] for name, values in metrics.items()}
        assert actual == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_undefined_metrics_are_0_and_nan_scores_give_nan():
    scores = [[1, 2], [1, 2], [NAN, 2], [1, NAN]]
    metrics = compute_metrics(scores, [[0, 0], [1, 1], [1, 0], [1, 0]], [2, 2, 2, 1])
    np.testing.assert_array_equal(metrics["auc"], [0, 0, NAN, 0])
    np.testing.assert_allclose(metrics["mrr"], [0, 0.75, NAN, 1])
    np.testing.assert_allclose(metrics["ndcg@10"], [0, 1, NAN, 1])


def test_recall_and_reciprocal_rank_of_25_candidates():
    # Ranks of the relevant candidates by row: 1 and 4; 21; 3 among equal scores; none is relevant.
    scores = np.tile(np.arange(25.0, 0, -1), (4, 1))
    scores[2] = 1
    relevant = np.zeros((4, 25))
    relevant[0, [0, 3]] = relevant[1, 20] = relevant[2, 2] = 1
    metrics = compute_retrieval_metrics(scores, relevant)
    expected = {
        "mrr": array([1, 1 / 21, 1 / 3, 0]),
        "recall@1": array([1 / 2, 0, 0, 0]),
        "recall@3": array([1 / 2, 0, 1, 0]),
        "recall@5": array([1, 0, 1, 0]),
        "recall@20": array([1, 0, 1, 0]),
    }
    chex.assert_trees_all_close(metrics, expected, rtol=1e-6)


def test_recall_ignores_padding_and_nan_scores_give_nan():
    metrics = compute_retrieval_metrics(
        [[1, 2, INF], [NAN, 2, 3], [1, 2, NAN]], [[0, 1, 1], [1, 0, 0], [1, 0, 0]], [2, 3, 2]
    )
    np.testing.assert_array_equal(metrics["recall@1"], [1, NAN, 0])
    np.testing.assert_array_equal(metrics["recall@3"], [1, NAN, 1])
    np.testing.assert_array_equal(metrics["mrr"], [1, NAN, 0.5])


def test_loss_of_known_probabilities_and_of_large_scores():
    # The softmax of log (1, 2, 5) is (1/8, 2/8, 5/8).
    scores = np.log([[1.0, 2.0, 5.0]] * 3 + [[1.0, 1.0, 1.0]])
    scores[3, :2] = 1e4, -1e4
    clicks = array([[0, 0, 1], [1, 1, 0], [0, 0, 0], [0, 1, 0]])
    loss = jax.jit(softmax_loss)(array(scores), clicks, jnp.asarray([3, 3, 3, 2]))
    expected = [math.log(8 / 5), (math.log(8) + math.log(4)) / 2, 0, 2e4]
    np.testing.assert_allclose(loss, expected, rtol=1e-6)


@jax.jit
def gradient_losses_and_metrics(scores, clicks, lengths):
    def total_loss(scores):
        losses = softmax_loss(scores, clicks, lengths)
        return losses.sum(), losses

    metrics = impression_metrics(scores, clicks, lengths)
    return *jax.grad(total_loss, has_aux=True)(scores), metrics


@pytest.mark.parametrize("padding", [0.0, 1e30, INF, -INF, NAN])
def test_padding_changes_neither_loss_nor_metrics_and_gets_a_gradient_of_0(padding):
    scores = array([[1.0, 3.0, padding, padding], [padding] * 4, [2.0, 2.0, 2.0, 2.0]])
    clicks = array([[0, 1, 1, 1], [1, 1, 1, 1], [0, 0, 0, 0]])
    gradient, losses, metrics = gradient_losses_and_metrics(scores, clicks, np.array([2, 0, 4]))
    np.testing.assert_allclose(losses, [math.log1p(math.exp(-2)), 0, 0], rtol=1e-6)
    probability = 1 / (1 + math.exp(2))  # of the candidate without a click
    expected = np.zeros((3, 4))
    expected[0, :2] = probability, -probability
    np.testing.assert_allclose(gradient, expected, rtol=1e-6)
    for values in metrics.values():
        np.testing.assert_array_equal(values, [1, 0, 0])


def test_the_gradient_of_the_loss_equals_finite_differences():
    draw = np.random.default_rng(0)
    scores, clicks = draw.normal(size=(3, 5)), draw.random((3, 5)) < 0.5
    clicks[:, 0] = True
    lengths = jnp.asarray([1, 3, 5])
    loss = jax.jit(lambda scores: softmax_loss(scores, jnp.asarray(clicks, jnp.float32), lengths))
    check_grads(loss, (array(scores),), order=1, modes=["rev"], rtol=1e-2)
