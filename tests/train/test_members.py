"""Many models in one program are the models one would have trained one by one."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from distattn_jax.train.members import group_size, members_of, stacked, varied
from tests.train import tiny

RATES, DROPOUTS, SEEDS = (0.1, 0.02), (0.0, 0.5), (4, 5, 6)


def grid_of(rates, dropouts, seed, seeds):
    return tiny.config_of(
        model=dataclasses.replace(tiny.MODEL, dropout_rate=dropouts),
        optimizer=dataclasses.replace(tiny.OPTIMIZER, learning_rate=rates),
        seed=seed,
        seeds=seeds,
    )


GRID = grid_of(RATES, DROPOUTS, 4, 3)


def test_settings_change_slowly_and_seeds_fast():
    members = members_of(GRID)
    points = [(m.setting["learning_rate"], m.setting["dropout_rate"], m.seed) for m in members]
    assert points == [(rate, drop, seed) for rate in RATES for drop in DROPOUTS for seed in SEEDS]


def test_the_grid_is_the_product_of_all_that_has_several_values():
    optimizer = dataclasses.replace(GRID.optimizer, distance_rate=(1.0, 2.0, 3.0))
    model = dataclasses.replace(GRID.model, initial_weight=(0.1, 0.2), initial_shape=(0.0, 1.0))
    config = dataclasses.replace(GRID, optimizer=optimizer, model=model)
    members = members_of(config)
    assert len(members) == 2 * 2 * 3 * 2 * 2 * 3
    assert len({(m.seed, *m.setting.values()) for m in members}) == len(members)
    assert varied(members) == (
        *("learning_rate", "distance_rate", "dropout_rate", "initial_weight", "initial_shape"),
    )


def test_what_is_the_same_for_all_is_not_varied():
    assert varied(members_of(GRID)) == ("learning_rate", "dropout_rate")
    assert varied(members_of(tiny.config_of(seeds=3))) == ()


def test_a_seed_has_one_key_whatever_its_setting():
    keys, settings = stacked(members_of(GRID))
    data = np.asarray(jax.random.key_data(keys)).reshape(4, 3, -1)
    assert len({tuple(key) for key in data[0].tolist()}) == 3
    np.testing.assert_array_equal(data, np.broadcast_to(data[:1], data.shape))
    np.testing.assert_allclose(settings.learning_rate, np.repeat(RATES, 6))
    np.testing.assert_allclose(settings.dropout_rate, np.tile(np.repeat(DROPOUTS, 3), 2))


@pytest.fixture(scope="module")
def grid():
    """The step of all members side by side, and their first states: new ones at every call."""
    born = tiny.birth_of(GRID, tiny.task_of())()
    return tiny.step_of(GRID, tiny.task_of()), lambda: jax.tree.map(jnp.copy, born)


@pytest.fixture(scope="module")
def together(grid):
    """The parameters of all members after three steps."""
    step, birth = grid
    return after_three_steps(step, birth(), GRID)


@pytest.fixture(scope="module")
def steps():
    """The step of one member without dropout, and with some."""
    task = tiny.task_of()
    return [tiny.step_of(grid_of(RATES[:1], (rate,), 0, 1), task) for rate in DROPOUTS]


def after_three_steps(step, training, config):
    lengths = ([6, 3, 5, 1], [4, 4, 2], [1, 6, 6, 2])
    batches = [tiny.batch_of(one, seed=seed) for seed, one in enumerate(lengths)]
    state, _ = tiny.trained(step, training, config, batches)
    return jax.tree.map(np.asarray, state.params)


@pytest.mark.parametrize("seed", [SEEDS[0], SEEDS[-1]])
def test_a_member_of_a_grid_is_trained_as_if_alone(together, steps, seed):
    born = tiny.birth_of(grid_of(RATES[:1], DROPOUTS[:1], seed, 1), tiny.task_of())()
    for setting, (rate, dropout) in enumerate(itertools.product(RATES, DROPOUTS)):
        config, first = grid_of((rate,), (dropout,), seed, 1), jax.tree.map(jnp.copy, born)
        alone = after_three_steps(steps[DROPOUTS.index(dropout)], first, config)
        member = len(SEEDS) * setting + SEEDS.index(seed)
        for one, every in zip(jax.tree.leaves(alone), jax.tree.leaves(together), strict=True):
            np.testing.assert_allclose(every[member], one[0], rtol=1e-6, atol=1e-6)


def test_groups_of_members_come_to_what_all_come_to(together, grid):
    by_threes = tiny.step_of(GRID, tiny.task_of(), at_once=3)
    grouped = after_three_steps(by_threes, grid[1](), GRID)
    for one, every in zip(jax.tree.leaves(grouped), jax.tree.leaves(together), strict=True):
        np.testing.assert_allclose(one, every, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("count", "most", "size"),
    [(48, 12, 12), (48, 13, 12), (7, 4, 1), (6, 6, 0), (6, 9, 0), (6, 0, 0)],
)
def test_groups_are_equal_and_never_larger_than_asked_for(count, most, size):
    assert group_size(count, most) == size


def test_members_do_differ(together):
    kernels = together["text"]["project"]["kernel"].reshape(2, 2, 3, -1)
    for axis in range(3):
        assert (np.abs(np.diff(kernels, axis=axis)).max(axis=-1) > 1e-3).all()


def test_every_seed_and_step_drops_something_else(grid):
    step, birth = grid
    _, settings = stacked(members_of(GRID))
    settings = settings._replace(learning_rate=jnp.zeros_like(settings.learning_rate))
    born = birth()
    state, tally = born.state, born.tally
    same = jax.tree.map(lambda leaf: jnp.stack([leaf[0]] * 12), state.params)
    state, losses = dataclasses.replace(state, params=same), [np.zeros(12)]
    for _ in range(2):
        state, tally = step(state, tally, settings, tiny.batch_of([6, 3, 5, 1]))
        losses.append(np.asarray(tally.sums["train/loss"]))
    first, second = np.diff(losses, axis=0).reshape(2, 2, 2, 3)  # rates, dropouts, seeds
    np.testing.assert_allclose(first[:, 0], first[0, 0, 0], rtol=1e-6)
    np.testing.assert_allclose(second[:, 0], first[:, 0], rtol=1e-5)
    assert len(np.unique(np.round([first[0, 1], second[0, 1]], 4))) == 6
