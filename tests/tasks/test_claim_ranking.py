"""Claim ranking: losses and metrics of claims whose numbers of candidates differ."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from distattn_jax.data import Ragged, Table
from distattn_jax.tasks import ClaimRankingConfig
from distattn_jax.tasks.claim_ranking import CandidateOutput
from distattn_jax.tasks.load import select_model
from distattn_jax.train.members import placeholder_setting
from tests.train import pretrained, tiny


@pytest.fixture
def make_task(pretrained_folder):
    def make(method):
        config = ClaimRankingConfig(methods=(method,), model=pretrained.MODEL)
        return pretrained.make_task(pretrained_folder, config)

    return make


def make_batch():
    """Return two claims, with three candidates and with one, and a row that only fills up."""
    draw = np.random.default_rng(0)
    return {
        "tokens": jnp.asarray(draw.integers(5, 17, (3, 3, 6)), jnp.int32),
        "tokens_words": jnp.asarray([[6, 4, 5], [3, 0, 0], [0, 0, 0]]),
        "tokens_length": jnp.asarray([3, 1, 0]),
        "types": jnp.zeros((3, 3, 6), jnp.int32),
        "types_words": jnp.zeros((3, 3), jnp.int32),
        "types_length": jnp.zeros(3, jnp.int32),
        "relevant": jnp.asarray([[0, 1, 0], [1, 0, 0], [0, 0, 0]]),
        "relevant_length": jnp.asarray([3, 1, 0]),
        "weight": jnp.asarray([1.0, 1.0, 0.0]),
    }


def test_the_loss_of_a_claim_is_the_mean_over_its_candidates(make_task):
    task, batch = make_task("none"), make_batch()
    scores = jnp.log(jnp.asarray([[1.0, 3.0, 1.0], [4.0, 9.0, 9.0], [9.0, 9.0, 9.0]]))
    # sigmoid(log x) = x / (1 + x). The relevant candidates have 3/4 and 4/5, the others 1/2 each.
    expected = [(np.log(4 / 3) + 2 * np.log(2)) / 3, np.log(5 / 4), 0]
    np.testing.assert_allclose(task.loss(CandidateOutput(scores), batch), expected, rtol=1e-6)
    counts = task.counts(CandidateOutput(scores), batch)
    metrics = task.metrics(jax.device_get(counts))
    assert metrics == dict.fromkeys(("mrr", *(f"recall@{k}" for k in (1, 3, 5, 20))), 1.0)
    worse = task.counts(CandidateOutput(-scores), batch)
    assert task.metrics(jax.device_get(worse))["mrr"] == pytest.approx((1 / 3 + 1) / 2)


def test_the_baseline_is_bm25(make_task):
    # The relevant candidate is second; second of two with equal scores; the only one.
    offsets = np.asarray([0, 3, 5, 6])
    scores = np.asarray([0.25, 0.75, 0.5, 1.5, 1.5, 0], np.float32)
    relevant = Ragged(np.asarray([0, 0, 1, 0, 1, 1], np.int32), offsets)
    train_table = Table({"relevant": relevant})
    test_table = Table({"relevant": relevant, "bm25": Ragged(scores, offsets)})
    task = make_task("none")
    recalls = {"recall@1": 1 / 3, "recall@3": 1, "recall@5": 1, "recall@20": 1}
    expected = {"mrr": (1 / 2 + 1 / 2 + 1) / 3, **recalls}
    assert task.baseline(train_table, test_table) == pytest.approx(expected)
    assert task.baseline(train_table, train_table) == {}


def test_every_candidate_is_read_and_guided_independently_of_the_others(make_task):
    task, batch = make_task("first"), make_batch()
    model = select_model(task, tiny.random_parameters(task), 0)
    setting = placeholder_setting(task.config)
    apply = nnx.jit(lambda model, batch: task.apply_for_training(model, batch, setting, None))
    outputs = apply(model, batch)
    assert outputs.scores.shape == (3, 3)
    order = jnp.asarray([1, 2, 0])
    by_candidate = {name: x[:, order] for name, x in batch.items() if x.ndim > 1}
    again = apply(model, batch | by_candidate)
    np.testing.assert_allclose(again.scores, outputs.scores[:, order], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(again.weights[0], outputs.weights[1], rtol=1e-5, atol=1e-6)
    ((_, weighted),) = task.weighted_losses({**setting, "gamma": jnp.float32(1)}).items()
    # The mean squared distance from (1, 0, 0, ...) over the first half of the heads and all rows.
    errors = []
    for place, length in enumerate((6, 4, 5)):
        maps = np.asarray(outputs.weights[place, :, :1, :length, :length])
        errors.append(np.square(maps - (np.arange(length) == 0)).sum(-1).mean())
    found = weighted.loss(outputs, batch)
    np.testing.assert_allclose(found[0], np.mean(errors), rtol=1e-5)
    assert found[2] == 0
