"""Metrics of impressions by hand, by plain loops and by scikit-learn; padding takes no part."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from sklearn.metrics import ndcg_score, roc_auc_score

from distattn_jax.train.ranking import impression_metrics, retrieval_metrics, softmax_loss

NAN, INF = float("nan"), float("inf")


def array(values):
    return jnp.asarray(values, jnp.float32)


def metrics_of(scores, clicks, lengths=None):
    lengths = [len(row) for row in scores] if lengths is None else lengths
    return jax.jit(impression_metrics)(array(scores), array(clicks), jnp.asarray(lengths))


def by_loops(scores, clicks):
    """Of one impression, each definition spelled out."""
    labelled = list(zip(scores, clicks, strict=True))
    pairs = [(s, t) for s, clicked in labelled if clicked for t, other in labelled if not other]
    won = sum(1.0 if s > t else 0.5 if s == t else 0.0 for s, t in pairs)
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    ranked = [clicks[i] for i in order]

    def gain(labels, top):
        return sum(
            (2**label - 1) / math.log2(place + 2) for place, label in enumerate(labels[:top])
        )

    def ndcg(top):
        return gain(ranked, top) / gain(sorted(clicks, reverse=True), top) if any(clicks) else 0

    reciprocal = sum(label / (place + 1) for place, label in enumerate(ranked))
    return {
        "auc": won / len(pairs) if pairs else 0,
        "mrr": reciprocal / sum(clicks) if any(clicks) else 0,
        "ndcg@5": ndcg(5),
        "ndcg@10": ndcg(10),
    }


def test_metrics_by_hand():
    # Ranks: 2, 4, 1, 3; the clicks are at 1 and 3, and win 2 and 1 of two pairs each.
    found = metrics_of([[0.5, -2.0, 0.9, 0.1]], [[0, 0, 1, 1]])
    assert found.keys() == {"auc", "mrr", "ndcg@5", "ndcg@10"}
    ndcg = (1 + 1 / 2) / (1 + 1 / math.log2(3))
    expected = {"auc": 3 / 4, "mrr": (1 + 1 / 3) / 2, "ndcg@5": ndcg, "ndcg@10": ndcg}
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], [value], rtol=1e-6, err_msg=name)


def test_scikit_learn_finds_the_same():
    draw = np.random.default_rng(3)
    scores = draw.normal(size=(20, 15)).astype(
        np.float32
    )  # no two alike: ties are ranked elsewhere
    clicks = (draw.random((20, 15)) < 0.2).astype(np.float32)
    clicks[:, :2] = (0, 1)  # AUC needs both
    found = metrics_of(scores, clicks)
    for i, (row, labels) in enumerate(zip(scores, clicks, strict=True)):
        assert found["auc"][i] == pytest.approx(roc_auc_score(labels, row), abs=1e-6)
        for top in (5, 10):
            expected = ndcg_score([labels], [row], k=top)
            assert found[f"ndcg@{top}"][i] == pytest.approx(expected, abs=1e-6)


def test_a_click_below_the_top_gains_nothing():
    scores = [list(range(12, 0, -1))]
    for rank in (1, 5, 6, 10, 11):
        gain = 1 / math.log2(rank + 1)
        found = metrics_of(scores, [np.eye(12)[rank - 1]])
        np.testing.assert_allclose(found["ndcg@5"], [gain * (rank <= 5)], rtol=1e-6)
        np.testing.assert_allclose(found["ndcg@10"], [gain * (rank <= 10)], rtol=1e-6)
        np.testing.assert_allclose(found["mrr"], [1 / rank], rtol=1e-6)


def test_of_equal_scores_the_first_given_ranks_first_and_a_pair_counts_half():
    found = metrics_of([[1.0, 1.0, 1.0]] * 3, np.eye(3))
    np.testing.assert_allclose(found["mrr"], [1, 1 / 2, 1 / 3], rtol=1e-6)
    np.testing.assert_allclose(found["ndcg@5"], [1, 1 / math.log2(3), 1 / 2], rtol=1e-6)
    np.testing.assert_array_equal(found["auc"], [0.5, 0.5, 0.5])


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("most", [1, 2, 5, 23])
def test_metrics_are_those_of_plain_loops(most, ties):
    draw = np.random.default_rng(most)
    shape = (40, most)
    scores = draw.integers(-2, 3, shape) if ties else draw.normal(size=shape)
    clicks = draw.random(shape) < draw.random((40, 1))
    lengths = draw.integers(0, most + 1, 40)
    found = metrics_of(scores, clicks, lengths)
    scores = np.asarray(array(scores), np.float64)
    for i, length in enumerate(lengths):
        expected = by_loops(scores[i, :length].tolist(), clicks[i, :length].astype(int).tolist())
        actual = {name: float(values[i]) for name, values in found.items()}
        assert actual == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_what_means_nothing_is_0_and_a_score_that_is_no_number_is_seen():
    scores = [[1, 2], [1, 2], [NAN, 2], [1, NAN]]
    found = metrics_of(scores, [[0, 0], [1, 1], [1, 0], [1, 0]], [2, 2, 2, 1])
    np.testing.assert_array_equal(found["auc"], [0, 0, NAN, 0])
    np.testing.assert_allclose(found["mrr"], [0, 0.75, NAN, 1])
    np.testing.assert_allclose(found["ndcg@10"], [0, 1, NAN, 1])


def retrieved(scores, relevant, lengths=None):
    lengths = [len(row) for row in scores] if lengths is None else lengths
    return jax.jit(retrieval_metrics)(array(scores), array(relevant), jnp.asarray(lengths))


def test_recall_by_hand():
    # The right ones are at ranks 1 and 4 of 25, at 21, at 3 of equals, and nowhere.
    scores = np.tile(np.arange(25.0, 0, -1), (4, 1))
    scores[2] = 1
    relevant = np.zeros((4, 25))
    relevant[0, [0, 3]] = relevant[1, 20] = relevant[2, 2] = 1
    found = retrieved(scores, relevant)
    expected = {
        "mrr": [1, 1 / 21, 1 / 3, 0],
        "recall@1": [1 / 2, 0, 0, 0],
        "recall@3": [1 / 2, 0, 1, 0],
        "recall@5": [1, 0, 1, 0],
        "recall@20": [1, 0, 1, 0],
    }
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-6, err_msg=name)


def test_recall_takes_no_part_of_padding_and_sees_scores_that_are_no_numbers():
    found = retrieved(
        [[1, 2, INF], [NAN, 2, 3], [1, 2, NAN]], [[0, 1, 1], [1, 0, 0], [1, 0, 0]], [2, 3, 2]
    )
    np.testing.assert_array_equal(found["recall@1"], [1, NAN, 0])
    np.testing.assert_array_equal(found["recall@3"], [1, NAN, 1])
    np.testing.assert_array_equal(found["mrr"], [1, NAN, 0.5])


def test_loss_by_hand():
    # softmax of log (1, 2, 5) is (1/8, 2/8, 5/8)
    scores = np.log([[1.0, 2.0, 5.0]] * 3)
    loss = jax.jit(softmax_loss)(
        array(scores), array([[0, 0, 1], [1, 1, 0], [0, 0, 0]]), jnp.asarray([3, 3, 3])
    )
    expected = [math.log(8 / 5), (math.log(8) + math.log(4)) / 2, 0]
    np.testing.assert_allclose(loss, expected, rtol=1e-6)


@pytest.mark.parametrize("padding", [0.0, 1e30, INF, -INF, NAN])
def test_padding_takes_no_part_and_gets_no_gradient(padding):
    scores = array([[1.0, 3.0, padding, padding], [padding] * 4, [2.0, 2.0, 2.0, 2.0]])
    clicks = array([[0, 1, 1, 1], [1, 1, 1, 1], [0, 0, 0, 0]])
    lengths = jnp.asarray([2, 0, 4])

    def summed(scores):
        losses = softmax_loss(scores, clicks, lengths)
        return losses.sum(), losses

    gradient, losses = jax.jit(jax.grad(summed, has_aux=True))(scores)
    np.testing.assert_allclose(losses, [math.log1p(math.exp(-2)), 0, 0], rtol=1e-6)
    wrong = 1 / (1 + math.exp(2))
    expected = np.zeros((3, 4))
    expected[0, :2] = wrong, -wrong
    np.testing.assert_allclose(gradient, expected, rtol=1e-6)
    found = impression_metrics(scores, clicks, lengths)
    for name in found:
        np.testing.assert_array_equal(found[name], [1, 0, 0], err_msg=name)


def test_gradients_of_the_loss():
    draw = np.random.default_rng(0)
    scores, clicks = draw.normal(size=(3, 5)), draw.random((3, 5)) < 0.5
    clicks[:, 0] = True
    lengths = jnp.asarray([1, 3, 5])
    loss = jax.jit(lambda scores: softmax_loss(scores, array(clicks), lengths))
    check_grads(loss, (array(scores),), order=1, modes=["rev"], rtol=1e-2)


def test_scores_large_and_far_apart_stay_finite():
    loss = softmax_loss(array([[1e4, -1e4]]), array([[0, 1]]), jnp.asarray([2]))
    np.testing.assert_allclose(loss, [2e4])
