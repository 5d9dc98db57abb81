"""Initial state of every member: random by its seed, except for parameters that are given."""

import dataclasses

import jax
import numpy as np
import pytest

from distattn_jax import sharding
from distattn_jax.train.state import NEVER, abstract_state
from tests.train import tiny

EMBEDDING = ("text", "embedding", "embedding")
VECTORS = np.arange(12 * 8, dtype=np.float32).reshape(12, 8)
CONFIG = tiny.make_config(
    model=dataclasses.replace(tiny.MODEL, initial_weight=(0.1, 1.0), initial_shape=(0.25,)), seeds=2
)


@pytest.fixture(scope="module")
def training():
    return tiny.make_state(tiny.make_task(CONFIG), {EMBEDDING: VECTORS})


def test_parameters_are_given_or_depend_on_the_seed_and_not_on_the_setting(training):
    embedding = training.state.params["text"]["embedding"]["embedding"]
    np.testing.assert_array_equal(embedding, np.broadcast_to(VECTORS, (4, 12, 8)))
    kernels = np.asarray(training.state.params["text"]["project"]["kernel"]).reshape(2, 2, -1)
    assert (kernels[:, 0] != kernels[:, 1]).all()
    np.testing.assert_array_equal(kernels[0], kernels[1])
    keys = np.asarray(jax.random.key_data(training.state.key)).reshape(2, 2, -1)
    assert (keys[:, 0] != keys[:, 1]).any()


def test_w_and_v_start_with_the_values_of_the_setting(training):
    encoder = training.state.params["text"]["sequence"]["encoder"]
    variant = encoder["layers"][0]["attention"]["variant"]
    np.testing.assert_array_equal(variant["shape"], np.full((4, 2), 0.25))
    weight = np.asarray(variant["weight"])
    np.testing.assert_allclose(weight[2:], 10 * weight[:2], rtol=1e-6)
    np.testing.assert_array_equal(np.sign(weight), [[-1, 1]] * 4)


def test_no_step_was_done_yet(training):
    np.testing.assert_array_equal(training.state.step, [0] * 4)
    np.testing.assert_array_equal(training.best.score, [-np.inf] * 4)
    np.testing.assert_array_equal(training.sums.first_bad_step, [NEVER] * 4)
    assert not any(column.any() for column in training.sums.sums.values())


@pytest.mark.parametrize("given", [{EMBEDDING: VECTORS}, None], ids=["given", "loading"])
def test_the_abstract_state_has_the_shapes_dtypes_and_shardings_of_the_state(training, given):
    abstract = abstract_state(tiny.make_task(CONFIG), sharding.make_mesh(1, 1), given)
    assert jax.tree.structure(training) == jax.tree.structure(abstract)
    for array, shape in zip(jax.tree.leaves(training), jax.tree.leaves(abstract), strict=True):
        assert (array.shape, array.dtype) == (shape.shape, shape.dtype)
        assert array.sharding == shape.sharding


@pytest.mark.parametrize(
    ("path", "array", "expected"),
    [
        (EMBEDDING, VECTORS[:, :6], r"embedding/embedding is \(12, 6\); the model has \(12, 8\)"),
        (("text", "words"), VECTORS, r"text/words is \(12, 8\); the model has no such parameter"),
    ],
)
def test_given_parameters_must_fit_the_model(path, array, expected):
    with pytest.raises(ValueError, match=expected):
        tiny.make_state(tiny.make_task(CONFIG), {path: array})
