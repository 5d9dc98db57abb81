"""Distance-aware attention: mappings, adjustments and their gradients."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distattn_jax.attention import ADJUSTMENTS, DistanceAware, clip, exponent, learnable_sigmoid
from tests import oracles
from tests.attention.cases import CLOSE, Sizes, inputs, random_arrays, run_attention

compiled_as_for_users = pytest.mark.usefixtures("optimised")


@given(st.integers(0, 2**31))
def test_zero_weight_gives_rectified_dot_product_attention(seed):
    (v,) = random_arrays(seed, (3,), dtype="float32")
    query, key, value = inputs(Sizes(), "float32", seed)
    scores = jnp.einsum("btnh,bsnh->bnts", query, key) / jnp.sqrt(jnp.float32(4))
    expected = jnp.einsum("bnts,bsne->btne", jax.nn.softmax(jax.nn.relu(scores)), value)
    actual = run_attention(DistanceAware(jnp.zeros(3), v), query, key, value).values
    chex.assert_trees_all_close(actual, expected, **CLOSE)


@pytest.mark.parametrize("adjust", ["late_multiply", "late_add"])
def test_late_adjustments_give_masked_keys_no_weight(adjust):
    sizes = Sizes()
    variant = DistanceAware(jnp.ones(3), jnp.ones(3), adjust=ADJUSTMENTS[adjust])
    lengths = jnp.asarray([4, 0])
    attended = run_attention(variant, *inputs(sizes, "float32"), key_lengths=lengths)
    assert (attended.weights[0, :, :, 4:] == 0).all()
    assert (attended.weights[1] == 0).all()
    assert not np.allclose(attended.weights[0].sum(-1), 1, rtol=1e-2)


@compiled_as_for_users
@pytest.mark.parametrize("v", [-100.0, -1.0, 0.0, 3.0, 59.0, 100.0])
def test_learnable_sigmoid_equals_the_printed_quotient(v):
    x = np.concatenate([np.linspace(-80, 43, 200), [0.0]])
    expected = [oracles.learnable_sigmoid(value, v) for value in x]
    actual = learnable_sigmoid(jnp.asarray(x, jnp.float32), jnp.float32(v))
    smallest = np.finfo(np.float32).tiny * np.exp(60)  # (1 + e^60) times the smallest sigmoid
    np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=1.1 * smallest)


@compiled_as_for_users
@pytest.mark.parametrize("v", [-2.0, 0.0, 2.0])
def test_gradients_of_learnable_sigmoid_equal_their_closed_forms(v):
    # df/dx = f (1 - s), df/dv = f (sigmoid(v) - 1 + s), s = sigmoid(x - v)
    x = jnp.linspace(-100, 100, 41)
    v = jnp.float32(v)
    s, f = jax.nn.sigmoid(x - v), learnable_sigmoid(x, v)
    by_x = jax.vmap(jax.grad(learnable_sigmoid), (0, None))(x, v)
    by_v = jax.vmap(jax.grad(learnable_sigmoid, 1), (0, None))(x, v)
    np.testing.assert_allclose(by_x, f * (1 - s), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(by_v, f * (jax.nn.sigmoid(v) - 1 + s), rtol=1e-4, atol=1e-6)


@compiled_as_for_users
def test_the_exponent_is_clamped_before_it_overflows():
    assert jnp.isfinite(exponent(jnp.float32(1e6), ()))
    np.testing.assert_allclose(exponent(jnp.float32(3.0), ()), np.exp(3.0), rtol=1e-6)


@compiled_as_for_users
def test_the_threshold_of_clip_has_no_gradient():
    assert jax.grad(clip, argnums=1)(jnp.float32(5.0), jnp.float32(2.0)) == 0


def test_a_score_bias_is_added_before_the_multiplication():
    (v, bias) = random_arrays(3, (3,), (3,), dtype="float32")
    query, key, value = inputs(Sizes(), "float32")
    weight = jnp.asarray([-0.5, 0.2, -1.0])
    variant = DistanceAware(weight, v, score_bias=bias)
    scores = jnp.einsum("btnh,bsnh->bnts", query, key) / jnp.sqrt(jnp.float32(4))
    rows, columns = np.indices(scores.shape[2:])
    f = jax.vmap(lambda w, v: learnable_sigmoid(w * np.abs(rows - columns), v))(weight, v)
    expected = jax.nn.softmax((jax.nn.relu(scores) + bias[None, :, None, None]) * f[None])
    actual = run_attention(variant, query, key, value).weights
    chex.assert_trees_all_close(actual, expected, **CLOSE)


@pytest.mark.parametrize("bias", [None, 8.0])
def test_a_score_bias_keeps_the_attention_of_a_local_head_near_in_long_texts(bias):
    length, distance = 512, 16
    bias = None if bias is None else jnp.full(1, bias)
    variant = DistanceAware(jnp.full(1, -1.0), jnp.zeros(1), score_bias=bias)
    (x,) = random_arrays(0, (1, length, 1, 4), dtype="float32")
    is_near = (jnp.arange(length) < distance).astype(jnp.float32)[None, :, None, None]
    share = run_attention(variant, x, x, is_near).values[0, 0, 0, 0]
    assert (share > 0.5) == (bias is not None)


def test_a_score_bias_needs_early_multiply():
    with pytest.raises(ValueError, match="score_bias must be None unless adjust is early_multiply"):
        DistanceAware(jnp.ones(1), jnp.ones(1), adjust="early_add", score_bias=jnp.ones(1))
