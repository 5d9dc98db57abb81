"""Training step and evaluation: padding is ignored, parts equal the whole, the best is kept."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from distattn_jax import sharding
from distattn_jax.tasks import TextClassification, TextClassificationData
from distattn_jax.train import evaluate
from distattn_jax.train.members import list_members, stack_members
from distattn_jax.train.state import NEVER, BestParameters
from distattn_jax.train.step import update_best
from tests.train import tiny

CONFIG = tiny.make_config(seeds=2)


@pytest.fixture(scope="module")
def initial_state():
    """A function that returns the initial state of two members; a step may donate it."""
    training = tiny.make_state(tiny.make_task(CONFIG))
    return lambda: jax.tree.map(jnp.copy, training)


@pytest.fixture(scope="module")
def step():
    return tiny.make_step(tiny.make_task(CONFIG))


class WeightedByLength(TextClassification):
    def example_weights(self, batch):
        return batch["weight"] * batch["text_length"]


def test_a_batch_in_parts_with_the_weights_of_the_task_gives_the_step_of_the_whole_batch(
    initial_state, step
):
    optimizer = dataclasses.replace(tiny.OPTIMIZER, accumulate=2)
    config = dataclasses.replace(CONFIG, optimizer=optimizer)
    task = WeightedByLength(config, labels=tiny.LABELS, tokenizer=tiny.TOKENIZER)
    in_parts = tiny.make_step(task)
    batches = [tiny.make_batch([6, 3, 5, 1]), tiny.make_batch([2, 4, 6], seed=1)]  # 3 of 4 rows
    parts = tiny.train(in_parts, initial_state(), CONFIG, batches)
    lengths = ({"weight": np.float32(batch["text_length"])} for batch in batches)
    weighted = [batch | weight for batch, weight in zip(batches, lengths, strict=True)]
    whole = tiny.train(step, initial_state(), CONFIG, weighted)
    for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(parts), strict=True):
        if not jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    (_, unweighted), loss = tiny.train(step, initial_state(), CONFIG, batches), "train/loss"
    np.testing.assert_allclose(parts[1].sums[loss], whole[1].sums[loss], rtol=1e-6)
    assert (parts[1].sums[loss] != unweighted.sums[loss]).all()


def test_rows_of_weight_0_do_not_change_the_parameters(initial_state, step):
    batch = tiny.make_batch([6, 3, 5])
    other = {name: column.copy() for name, column in batch.items()}
    other["text"][3], other["text_length"][3], other["label"][3] = 7, 6, 2
    states = [tiny.train(step, initial_state(), CONFIG, [one])[0] for one in (batch, other)]
    for one, same in zip(*(jax.tree.leaves(state.params) for state in states), strict=True):
        np.testing.assert_array_equal(one, same)
    counted = other | {"weight": np.ones(4, np.float32)}
    state, _ = tiny.train(step, initial_state(), CONFIG, [counted])
    assert (state.params["classes"]["bias"] != states[0].params["classes"]["bias"]).any()


def test_a_step_counts_itself_and_donates_its_state(initial_state, step):
    training = initial_state()
    state, sums = tiny.train(step, training, CONFIG, [tiny.make_batch([6, 3, 5, 1])])
    np.testing.assert_array_equal(state.step, [1, 1])
    np.testing.assert_allclose(sums.sums["train/learning_rate"], [0.1, 0.1], rtol=1e-6)
    np.testing.assert_array_equal(sums.sums["train/loss"], sums.sums["loss/task"])
    donated = jax.tree.leaves((training.state.params, training.state.opt_state))
    assert all(leaf.is_deleted() for leaf in donated)


def test_the_first_step_that_is_not_finite_is_noted_only_for_its_member(initial_state, step):
    _, settings = stack_members(list_members(CONFIG))
    settings |= {"learning_rate": jnp.asarray([0.1, jnp.inf])}
    training = initial_state()
    state, sums = training.state, training.sums
    for seed in range(3):  # Step 0 makes the second member infinite, and step 1 detects it.
        state, sums = step(state, sums, settings, tiny.make_batch([6, 3, 5, 1], seed=seed))
    np.testing.assert_array_equal(sums.first_bad_step, [NEVER, 1])
    np.testing.assert_array_equal(sums.steps, [3, 3])


def test_each_member_keeps_its_best_parameters_and_of_equal_ones_the_later():
    def make_params(*values):
        return {"kernel": jnp.asarray(values)[:, None]}

    initial = make_params(0.0, 0.0, 0.0)
    best = BestParameters(jnp.zeros(3, jnp.int32), jnp.full(3, -jnp.inf), initial)
    scores = ([0.5, 0.5, 0.5], [0.4, 0.5, 0.6], [0.5, 0.1, jnp.nan])
    for step, score in enumerate(scores, start=1):
        params = make_params(*(10.0 * step + member for member in range(3)))
        best = update_best(best, jnp.full(3, step, jnp.int32), jnp.asarray(score), params)
    np.testing.assert_array_equal(best.step, [3, 2, 2])
    np.testing.assert_allclose(best.score, [0.5, 0.5, 0.6])
    np.testing.assert_array_equal(best.params["kernel"][:, 0], [30, 21, 22])


def test_metrics_depend_neither_on_the_batch_size_nor_on_the_number_of_models_at_once(
    initial_state,
):
    params, mesh = initial_state().state.params, sharding.make_mesh(1, 1)
    table = tiny.make_table([6, 3, 5, 1, 2, 2, 4, 6, 1, 5, 3])  # no multiple of a batch size
    metrics = []
    for size, models_at_once in ((3, 0), (7, 1)):
        data = TextClassificationData(batch_size=size, buckets=1)
        config = dataclasses.replace(CONFIG, data=data, models_at_once=models_at_once)
        metrics.append(evaluate(tiny.make_task(config), params, table, mesh))
    one, other = metrics
    assert one.keys() == other.keys() == {"loss", "accuracy", "macro_f"}
    for name in ("accuracy", "macro_f"):
        np.testing.assert_array_equal(other[name], one[name])
    np.testing.assert_allclose(other["loss"], one["loss"], rtol=1e-6)
    assert all((value * 11) % 1 == pytest.approx(0) for value in one["accuracy"])
