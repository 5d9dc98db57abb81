"""Training step: padding is ignored, parts equal the whole, the best parameters are kept."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from distattn_jax.tasks import TextClassification
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
def steps():
    return tiny.make_steps(tiny.make_task(CONFIG))


@pytest.fixture(scope="module")
def step(steps):
    return tiny.take_one_step(steps)


def test_a_batch_computed_in_parts_gives_the_step_of_the_whole_batch(initial_state, step):
    optimizer = dataclasses.replace(tiny.OPTIMIZER, accumulate=2)
    in_parts = tiny.make_step(tiny.make_task(dataclasses.replace(CONFIG, optimizer=optimizer)))
    batches = [tiny.make_batch([6, 3, 5, 1]), tiny.make_batch([2, 4, 6], seed=1)]  # 3 of 4 rows
    whole = tiny.train(step, initial_state(), CONFIG, batches)
    parts = tiny.train(in_parts, initial_state(), CONFIG, batches)
    for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(parts), strict=True):
        if not jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_rows_of_weight_0_do_not_change_the_parameters(initial_state, step):
    batch = tiny.make_batch([6, 3, 5])
    other = batch | {
        "text": batch["text"].at[3].set(7),
        "text_length": batch["text_length"].at[3].set(6),
        "label": batch["label"].at[3].set(2),
    }
    states = [tiny.train(step, initial_state(), CONFIG, [one])[0] for one in (batch, other)]
    for one, same in zip(*(jax.tree.leaves(state.params) for state in states), strict=True):
        np.testing.assert_array_equal(one, same)
    counted = other | {"weight": jnp.ones(4)}
    state, _ = tiny.train(step, initial_state(), CONFIG, [counted])
    assert (state.params["classes"]["bias"] != states[0].params["classes"]["bias"]).any()


def test_the_mean_loss_uses_the_weights_of_the_task(initial_state, step):
    class WeightedByLength(TextClassification):
        def example_weights(self, batch):
            return batch["weight"] * batch["text_length"]

    weighted = tiny.make_step(
        WeightedByLength(CONFIG, labels=tiny.LABELS, tokenizer=tiny.TOKENIZER)
    )
    batch = tiny.make_batch([6, 3, 5])

    def loss(step, weight):
        _, sums = tiny.train(step, initial_state(), CONFIG, [batch | {"weight": weight}])
        return sums.sums["train/loss"]

    lengths = batch["text_length"].astype(jnp.float32)
    np.testing.assert_allclose(loss(weighted, batch["weight"]), loss(step, lengths), rtol=1e-6)
    assert (loss(weighted, batch["weight"]) != loss(step, batch["weight"])).all()


def test_a_step_counts_itself_and_donates_its_state(initial_state, step):
    training = initial_state()
    state, sums = tiny.train(step, training, CONFIG, [tiny.make_batch([6, 3, 5, 1])])
    np.testing.assert_array_equal(state.step, [1, 1])
    np.testing.assert_allclose(sums.sums["train/learning_rate"], [0.1, 0.1], rtol=1e-6)
    np.testing.assert_array_equal(sums.sums["train/loss"], sums.sums["loss/task"])
    donated = jax.tree.leaves((training.state.params, training.state.opt_state))
    assert all(leaf.is_deleted() for leaf in donated)


def test_the_number_of_steps_in_a_call_changes_no_bit(initial_state, steps):
    _, settings = stack_members(list_members(CONFIG))
    batches = [tiny.make_batch([6, 3, 5], seed=seed) for seed in range(tiny.STACKED)]
    stack = {name: jnp.stack([batch[name] for batch in batches]) for name in batches[0]}

    def train(program, *bounds):
        training = initial_state()
        state, sums = training.state, training.sums
        for begin, end in itertools.pairwise(bounds):
            state, sums = program(state, sums, settings, stack, begin, end)
        return jax.tree.leaves(jax.tree.map(as_bytes, (state, sums)))

    expected = train(steps, *range(7))
    assert train(steps, 0, 6) == expected
    assert train(steps, 0, 1, 5, 5, 6) == expected
    assert train(steps, 0, 5) != expected


def as_bytes(leaf):
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf).tobytes()


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
