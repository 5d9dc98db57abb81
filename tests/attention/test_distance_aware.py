"""Distance-aware attention: mappings, adjustments and their gradients."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distattn_jax.attention import DistanceAware, clip, exponent, learnable_sigmoid
from tests import oracles
from tests.attention.cases import CLOSE, Sizes, inputs, random_arrays, run_attention

compiled_as_for_users = pytest.mark.usefixtures("optimised")


def scaled_products(query, key):
    return np.einsum("btnh,bsnh->bnts", query, key) / np.sqrt(query.shape[-1])


def softmax(scores):
    exponentials = np.exp(scores - scores.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


@given(st.integers(0, 2**31))
def test_zero_weight_gives_rectified_dot_product_attention(seed):
    (v,) = random_arrays(seed, (3,), dtype="float32")
    query, key, value = jax.device_get(inputs(Sizes(), "float32", seed))
    weights = softmax(np.maximum(scaled_products(query, key), 0))
    expected = np.einsum("bnts,bsne->btne", weights, value)
    actual = run_attention(DistanceAware(jnp.zeros(3), v), query, key, value).values
    chex.assert_trees_all_close(actual, expected, **CLOSE)


@compiled_as_for_users
def test_learnable_sigmoid_equals_the_printed_quotient():
    v = np.asarray([-100.0, -1.0, 0.0, 3.0, 59.0, 100.0])[:, None]
    x = np.concatenate([np.linspace(-80, 43, 200), [0.0]])[None]
    expected = oracles.learnable_sigmoid(x, v)
    actual = learnable_sigmoid(*jnp.broadcast_arrays(jnp.float32(x), jnp.float32(v)))
    smallest = np.finfo(np.float32).tiny * np.exp(60)  # (1 + e^60) times the smallest sigmoid
    np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=1.1 * smallest)


@compiled_as_for_users
def test_gradients_of_learnable_sigmoid_equal_their_closed_forms():
    # df/dx = f (1 - s), df/dv = f (sigmoid(v) - 1 + s), s = sigmoid(x - v)
    v, x = np.meshgrid(np.float32([-2, 0, 2]), np.linspace(-100, 100, 41, dtype=np.float32))
    by_x, by_v = jax.jit(jax.vmap(jax.grad(learnable_sigmoid, (0, 1))))(x.ravel(), v.ravel())
    x, v = x.ravel().astype(float), v.ravel().astype(float)
    s, f = oracles.sigmoid(x - v), oracles.learnable_sigmoid(x, v)
    np.testing.assert_allclose(by_x, f * (1 - s), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(by_v, f * (oracles.sigmoid(v) - 1 + s), rtol=1e-4, atol=1e-6)


@compiled_as_for_users
def test_the_exponent_is_clamped_before_it_overflows():
    assert jnp.isfinite(exponent(jnp.float32(1e6), ()))
    np.testing.assert_allclose(exponent(jnp.float32(3.0), ()), np.exp(3.0), rtol=1e-6)


@compiled_as_for_users
def test_the_threshold_of_clip_has_no_gradient():
    assert jax.grad(clip, argnums=1)(jnp.float32(5.0), jnp.float32(2.0)) == 0


def test_a_score_bias_is_added_before_the_multiplication():
    v, bias = random_arrays(3, (3,), (3,), dtype="float32")
    query, key, value = jax.device_get(inputs(Sizes(), "float32"))
    weight = jnp.asarray([-0.5, 0.2, -1.0])
    scores = scaled_products(query, key)
    rows, columns = np.indices(scores.shape[2:])
    x = np.asarray(weight)[:, None, None] * np.abs(rows - columns)
    f = oracles.learnable_sigmoid(x, np.asarray(v)[:, None, None])
    expected = softmax((np.maximum(scores, 0) + np.asarray(bias)[:, None, None]) * f)
    variant = DistanceAware(weight, v, score_bias=bias)
    actual = run_attention(variant, query, key, value).weights
    chex.assert_trees_all_close(actual, expected.astype(np.float32), **CLOSE)


@pytest.mark.parametrize("bias", [None, 8.0])
def test_a_score_bias_keeps_the_attention_of_a_local_head_near_in_long_texts(bias):
    length, distance = 512, 16
    bias = None if bias is None else jnp.full(1, bias)
    variant = DistanceAware(jnp.full(1, -1.0), jnp.zeros(1), score_bias=bias)
    (x,) = random_arrays(0, (1, length, 1, 4), dtype="float32")
    is_near = (jnp.arange(length) < distance).astype(jnp.float32)[None, :, None, None]
    share = run_attention(variant, x, x, is_near).values[0, 0, 0, 0]
    assert (share > 0.5) == (bias is not None)
