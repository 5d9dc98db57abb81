"""Models trained side by side in one program equal models trained one by one."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from distattn_jax.train import members
from distattn_jax.train.options import replace_options
from tests.train import tiny

RATES, DROPOUTS, SEEDS = (0.1, 0.02), (0.0, 0.5), (4, 5, 6)


def make_grid(rates, dropouts, seed, seeds):
    changes = {"optimizer.learning_rate": rates, "model.dropout_rate": dropouts}
    return replace_options(tiny.make_config(seed=seed, seeds=seeds), changes)


GRID = make_grid(RATES, DROPOUTS, 4, 3)


def test_the_seed_changes_faster_than_the_setting():
    listed = members.list_members(GRID)
    points = [(m.setting["learning_rate"], m.setting["dropout_rate"], m.seed) for m in listed]
    assert points == [(rate, drop, seed) for rate in RATES for drop in DROPOUTS for seed in SEEDS]


def test_the_grid_is_the_product_of_all_options_with_several_values():
    more = {"model.initial_weight": (0.1, 0.2), "model.initial_shape": (0.0, 1.0)}
    grid = replace_options(GRID, more | {"model.distance_rate": (1.0, 2.0, 3.0)})
    listed = members.list_members(grid)
    assert len(listed) == 2 * 2 * 2 * 2 * 3 * 3
    assert len({(m.seed, *m.setting.values()) for m in listed}) == len(listed)
    assert members.varied_axes(listed) == (
        *("learning_rate", "dropout_rate", "initial_weight", "initial_shape", "distance_rate"),
    )
    assert members.varied_axes(members.list_members(GRID)) == ("learning_rate", "dropout_rate")
    assert members.varied_axes(members.list_members(tiny.make_config(seeds=3))) == ()


def test_a_setting_replaces_its_axes_of_the_grid_and_no_other():
    found = members.apply_setting(GRID, {"learning_rate": 0.5, "distance_rate": 2.0})
    assert found.optimizer == dataclasses.replace(GRID.optimizer, learning_rate=(0.5,))
    assert found.model == dataclasses.replace(GRID.model, distance_rate=(2.0,))
    assert dataclasses.replace(found, optimizer=GRID.optimizer, model=GRID.model) == GRID


def test_a_seed_has_the_same_key_in_every_setting():
    keys, settings = members.stack_members(members.list_members(GRID))
    data = np.asarray(jax.random.key_data(keys)).reshape(4, 3, -1)
    assert len({tuple(key) for key in data[0].tolist()}) == 3
    np.testing.assert_array_equal(data, np.broadcast_to(data[:1], data.shape))
    np.testing.assert_allclose(settings["learning_rate"], np.repeat(RATES, 6))
    np.testing.assert_allclose(settings["dropout_rate"], np.tile(np.repeat(DROPOUTS, 3), 2))


@pytest.fixture(scope="module")
def grid():
    """The step of all members side by side, and a function that returns their initial state."""
    task = tiny.make_task(GRID)
    training = tiny.make_state(task)
    return tiny.make_step(task), lambda: jax.tree.map(jnp.copy, training)


@pytest.fixture(scope="module")
def together(grid):
    """The parameters of all members after three steps."""
    step, initial_state = grid
    return train_three_steps(step, initial_state(), GRID)


def train_three_steps(step, training, config):
    lengths = ([6, 3, 5, 1], [4, 4, 2], [1, 6, 6, 2])
    batches = [tiny.make_batch(one, seed=seed) for seed, one in enumerate(lengths)]
    state, _ = tiny.train(step, training, config, batches)
    return jax.tree.map(np.asarray, state.params)


def test_a_member_of_a_grid_is_trained_like_a_single_model(together):
    seed = SEEDS[-1]
    # The programs without and with dropout differ, and those of the learning rates do not.
    tasks = [tiny.make_task(make_grid(RATES[:1], (rate,), 0, 1)) for rate in DROPOUTS]
    steps = dict(zip(DROPOUTS, map(tiny.make_step, tasks), strict=True))
    task = tiny.make_task(make_grid(RATES[:1], DROPOUTS[:1], seed, 1))
    training = tiny.make_state(task)
    for setting, (rate, dropout) in enumerate(itertools.product(RATES, DROPOUTS)):
        config, copy = make_grid((rate,), (dropout,), seed, 1), jax.tree.map(jnp.copy, training)
        single = train_three_steps(steps[dropout], copy, config)
        member = len(SEEDS) * setting + SEEDS.index(seed)
        for one, every in zip(jax.tree.leaves(single), jax.tree.leaves(together), strict=True):
            np.testing.assert_allclose(every[member], one[0], rtol=1e-6, atol=1e-6)


def test_groups_of_members_are_trained_like_all_members_at_once(together, grid):
    by_threes = tiny.make_step(tiny.make_task(GRID), group=3)
    grouped = train_three_steps(by_threes, grid[1](), GRID)
    for one, every in zip(jax.tree.leaves(grouped), jax.tree.leaves(together), strict=True):
        np.testing.assert_allclose(one, every, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("count", "limit", "size"),
    [(48, 12, 12), (48, 13, 12), (7, 4, 1), (6, 6, 0), (6, 9, 0), (6, 0, 0)],
)
def test_groups_are_equal_and_at_most_as_large_as_the_limit(count, limit, size):
    assert members.group_size(count, limit) == size


def test_members_with_different_seeds_or_settings_differ(together):
    kernels = together["text"]["project"]["kernel"].reshape(2, 2, 3, -1)
    for axis in range(3):
        assert (np.abs(np.diff(kernels, axis=axis)).max(axis=-1) > 1e-3).all()


def test_the_dropout_mask_differs_between_seeds_and_steps(grid):
    step, initial_state = grid
    _, settings = members.stack_members(members.list_members(GRID))
    settings |= {"learning_rate": jnp.zeros_like(settings["learning_rate"])}
    training = initial_state()
    state, sums = training.state, training.sums
    same = jax.tree.map(lambda leaf: jnp.stack([leaf[0]] * 12), state.params)
    state, losses = dataclasses.replace(state, params=same), [np.zeros(12)]
    for _ in range(2):
        state, sums = step(state, sums, settings, tiny.make_batch([6, 3, 5, 1]))
        losses.append(np.asarray(sums.sums["train/loss"]))
    first, second = np.diff(losses, axis=0).reshape(2, 2, 2, 3)  # rates, dropouts, seeds
    np.testing.assert_allclose(first[:, 0], first[0, 0, 0], rtol=1e-6)
    np.testing.assert_allclose(second[:, 0], first[:, 0], rtol=1e-5)
    assert len(np.unique(np.round([first[0, 1], second[0, 1]], 4))) == 6
