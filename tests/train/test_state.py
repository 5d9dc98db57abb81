"""The first state of every member: drawn from its seed, or given."""

import dataclasses

import jax
import numpy as np
import pytest

from distattn_jax.train.state import NEVER
from tests.train import tiny

VECTORS = np.arange(12 * 8, dtype=np.float32).reshape(12, 8)
CONFIG = tiny.config_of(
    model=dataclasses.replace(tiny.MODEL, initial_weight=(0.1, 1.0), initial_shape=(0.25,)), seeds=2
)


@pytest.fixture(scope="module")
def birth():
    return tiny.birth_of(CONFIG, tiny.task_of(vectors=VECTORS))


@pytest.fixture(scope="module")
def born(birth):
    return birth()


def test_given_vectors_are_the_embedding_of_every_member(born):
    embedding = born.state.params["text"]["embedding"]["embedding"]
    np.testing.assert_array_equal(embedding, np.broadcast_to(VECTORS, (4, 12, 8)))


def test_seeds_draw_different_parameters_and_settings_the_same(born):
    kernels = np.asarray(born.state.params["text"]["project"]["kernel"]).reshape(2, 2, -1)
    assert (kernels[:, 0] != kernels[:, 1]).all()
    np.testing.assert_array_equal(kernels[0], kernels[1])
    keys = np.asarray(jax.random.key_data(born.state.key)).reshape(2, 2, -1)
    assert (keys[:, 0] != keys[:, 1]).any()


def test_the_parameters_of_distance_start_as_the_setting_says(born):
    variant = born.state.params["text"]["sequence"]["encoder"]["layers"][0]["attention"]["variant"]
    np.testing.assert_array_equal(variant["shape"], np.full((4, 2), 0.25))
    weight = np.asarray(variant["weight"])
    np.testing.assert_allclose(weight[2:], 10 * weight[:2], rtol=1e-6)
    np.testing.assert_array_equal(np.sign(weight), [[-1, 1]] * 4)


def test_nothing_was_done_yet(born):
    np.testing.assert_array_equal(born.state.step, [0] * 4)
    np.testing.assert_array_equal(born.best.score, [-np.inf] * 4)
    np.testing.assert_array_equal(born.tally.bad, [NEVER] * 4)
    assert not any(column.any() for column in born.tally.sums.values())


def test_the_state_is_what_was_promised(birth, born):
    assert jax.tree.structure(born) == jax.tree.structure(birth.like)
    for made, promised in zip(jax.tree.leaves(born), jax.tree.leaves(birth.like), strict=True):
        assert (made.shape, made.dtype) == (promised.shape, promised.dtype)
        assert made.sharding == promised.sharding


def test_vectors_of_a_wrong_shape_are_named():
    task = tiny.task_of(vectors=VECTORS[:, :6])
    with pytest.raises(
        ValueError, match=r"embedding/embedding is \(12, 6\); the model has \(12, 8\)"
    ):
        tiny.birth_of(CONFIG, task)
