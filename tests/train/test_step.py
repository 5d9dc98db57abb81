"""Steps of training and of evaluation: what they count, and what they must not count."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath

from distattn_jax import sharding
from distattn_jax.models import ClassifierOutput
from distattn_jax.train import DataConfig, MeshConfig, Trainer
from distattn_jax.train.classification import macro_f
from distattn_jax.train.members import members_of, stacked
from distattn_jax.train.run import Run
from distattn_jax.train.state import NEVER, Best
from distattn_jax.train.step import update_best
from tests.train import tiny

CONFIG = tiny.config_of(seeds=2)
LENGTHS = [6, 3, 5, 1, 2, 2, 4, 6, 1, 5, 3]  # no multiple of any batch size below


@pytest.fixture(scope="module")
def task():
    return tiny.task_of(tables={"train": tiny.table_of([3]), "test": tiny.table_of(LENGTHS)})


@pytest.fixture(scope="module")
def birth(task):
    """Of two members: gives their first state, a new one at every call."""
    first = tiny.birth_of(CONFIG, task)()
    return lambda: jax.tree.map(jnp.copy, first)


@pytest.fixture(scope="module")
def step(task):
    return tiny.step_of(CONFIG, task)


def test_parts_of_a_batch_come_to_what_the_whole_comes_to(task, birth, step):
    in_parts = tiny.step_of(CONFIG, task, accumulate=2)
    batches = [tiny.batch_of([6, 3, 5, 1]), tiny.batch_of([2, 4, 6], seed=1)]  # 3 of 4 rows
    whole = tiny.trained(step, birth(), CONFIG, batches)
    parts = tiny.trained(in_parts, birth(), CONFIG, batches)
    for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(parts), strict=True):
        if not jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_rows_that_fill_up_a_batch_teach_nothing(birth, step):
    batch = tiny.batch_of([6, 3, 5])
    other = batch | {
        "text": batch["text"].at[3].set(7),
        "text_length": batch["text_length"].at[3].set(6),
        "label": batch["label"].at[3].set(2),
    }
    states = [tiny.trained(step, birth(), CONFIG, [given])[0] for given in (batch, other)]
    for one, same in zip(*(jax.tree.leaves(state.params) for state in states), strict=True):
        np.testing.assert_array_equal(one, same)
    counted = other | {"weight": jnp.ones(4)}
    state, _ = tiny.trained(step, birth(), CONFIG, [counted])
    assert (state.params["classes"]["bias"] != states[0].params["classes"]["bias"]).any()


def test_a_step_counts_itself_and_uses_up_what_it_was_given(birth, step):
    training = birth()
    state, tally = tiny.trained(step, training, CONFIG, [tiny.batch_of([6, 3, 5, 1])])
    np.testing.assert_array_equal(state.step, [1, 1])
    np.testing.assert_allclose(tally.sums["train/learning_rate"], [0.1, 0.1], rtol=1e-6)
    np.testing.assert_array_equal(tally.sums["train/loss"], tally.sums["loss/task"])
    given = jax.tree.leaves((training.state.params, training.state.opt_state, training.tally))
    assert all(leaf.is_deleted() for leaf in given)


def test_the_first_step_that_is_not_finite_is_noted_of_its_member_only(birth, step):
    _, settings = stacked(members_of(CONFIG))
    settings = settings._replace(learning_rate=jnp.asarray([0.1, jnp.inf]))
    training = birth()
    state, tally = training.state, training.tally
    for seed in range(3):  # the second member is lost by step 0, and seen to be so in step 1
        state, tally = step(state, tally, settings, tiny.batch_of([6, 3, 5, 1], seed=seed))
    np.testing.assert_array_equal(tally.bad, [NEVER, 1])
    np.testing.assert_array_equal(tally.steps, [3, 3])


def test_a_split_has_the_same_metrics_whatever_is_computed_at_a_time(task, birth):
    params = birth().state.params
    metrics = []
    for size, at_once in ((3, 0), (4, 0), (7, 1)):
        config = dataclasses.replace(
            CONFIG,
            data=DataConfig(batch_size=size, buckets=1),
            mesh=MeshConfig(at_once=at_once),
        )
        trainer = Trainer(task, config, Run(epath.Path("unused")), sharding.make_mesh(1, 1))
        metrics.append(trainer.evaluate(params, "test"))
    for other in metrics[1:]:
        assert other.keys() == {"loss", "accuracy", "macro_f"}
        for name in ("accuracy", "macro_f"):
            np.testing.assert_array_equal(other[name], metrics[0][name])
        np.testing.assert_allclose(other["loss"], metrics[0]["loss"], rtol=1e-6)
    assert all((value * 11) % 1 == pytest.approx(0) for value in metrics[0]["accuracy"])


def test_counts_and_metrics_by_hand(task):
    logits = jnp.asarray([[2.0, 1, 0], [0, 2, 1], [0, 2, 1], [2, 0, 1], [0, 0, 9]])
    labels, weight = jnp.asarray([0, 1, 0, 0, 2]), jnp.asarray([1.0, 1, 1, 1, 0])
    counts = task.counts(ClassifierOutput(logits), {"label": labels, "weight": weight})
    np.testing.assert_array_equal(counts["confusion"], [[2, 1, 0], [0, 1, 0], [0, 0, 0]])
    # F of the classes: 2·2 / (3 + 2), 2·1 / (1 + 2), and 0 for the one never seen nor guessed
    expected = {"accuracy": 3 / 4, "macro_f": (4 / 5 + 2 / 3 + 0) / 3}
    assert task.metrics(jax.device_get(counts)) == pytest.approx(expected)
    assert macro_f(np.eye(3)) == 1


def test_the_baseline_is_the_label_most_frequent_in_training():
    tables = {"train": [1, 1, 2], "test": [0, 1, 2, 2]}
    task = tiny.task_of(
        tables={
            split: dataclasses.replace(
                table := tiny.table_of([1] * len(labels)),
                columns={**table.columns, "label": np.asarray(labels)},
            )
            for split, labels in tables.items()
        }
    )
    assert task.baseline("test") == {"accuracy": 1 / 4}


def test_the_best_is_kept_of_each_member_and_of_equals_the_later():
    def params(*values):
        return {"kernel": jnp.asarray(values)[:, None]}

    best = Best(jnp.zeros(3, jnp.int32), jnp.full(3, -jnp.inf), params(0.0, 0.0, 0.0))
    scores = ([0.5, 0.5, 0.5], [0.4, 0.5, 0.6], [0.5, 0.1, jnp.nan])
    for step, score in enumerate(scores, start=1):
        now = params(*(10.0 * step + member for member in range(3)))
        best = update_best(best, jnp.full(3, step, jnp.int32), jnp.asarray(score), now)
    np.testing.assert_array_equal(best.step, [3, 2, 2])
    np.testing.assert_allclose(best.score, [0.5, 0.5, 0.6])
    np.testing.assert_array_equal(best.params["kernel"][:, 0], [30, 21, 22])
