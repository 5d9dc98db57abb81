"""Attention of language models to far tokens."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from distattn_jax.tasks import load, measure_far_attention, prepare
from distattn_jax.train import RunError
from tests.tasks.letters import make_config


def test_far_attention_equals_a_loop_over_queries(letters_run, letters_folder):
    found = measure_far_attention(letters_run, (16, 24), distance=5, split="train", examples=1)
    model = load(letters_run).model
    attend = nnx.jit(lambda model, *inputs: model(*inputs, weights=True).weights)
    tokens = prepare(make_config(letters_folder)).tables["train"].columns["inputs"].values
    for length, result in found.items():
        inputs = jnp.asarray(tokens[None, :length])
        weights = np.asarray(attend(model, inputs, jnp.array([length])))[0, 0]
        shares, uniform = [], []
        for i in range(length // 2, length):
            shares.append(weights[:, i, : i - 5].sum(axis=-1) / weights[:, i].sum(axis=-1))
            uniform.append((i - 5) / (i + 1))
        np.testing.assert_allclose(result.heads[0, 0], np.mean(shares, axis=0), rtol=1e-4)
        np.testing.assert_allclose(result.uniform, np.mean(uniform))


def test_no_key_of_a_text_as_long_as_in_training_is_far(letters_run):
    (found,) = measure_far_attention(letters_run, (24,)).values()
    assert not found.heads.any()
    assert found.uniform == 0


def test_a_text_that_is_too_short_for_far_attention_is_an_error(letters_run):
    with pytest.raises(RunError, match=r"at most the number of tokens of test; got 640"):
        measure_far_attention(letters_run, (640,))
