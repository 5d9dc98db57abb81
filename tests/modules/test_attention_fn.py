"""Attention variants as `attention_fn` of NNX and Linen."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

from distattn_jax import modules
from distattn_jax.attention import DistanceAware, DotProduct, attention
from distattn_jax.modules import as_attention_fn

N, D = 4, 24
X = jnp.asarray(np.random.default_rng(0).normal(size=(2, 5, D)), jnp.float32)
CLOSE = {"rtol": 1e-5, "atol": 1e-6}
VARIANT = DistanceAware(jnp.asarray([-1.0, 1.0, -0.1, 0.1]), jnp.ones(4))


def nnx_layer(attention_fn=nnx.dot_product_attention, **arguments):
    return nnx.MultiHeadAttention(
        N, D, attention_fn=attention_fn, decode=False, rngs=nnx.Rngs(0), **arguments
    )


def linen_layer(attention_fn=linen.dot_product_attention, **arguments):
    return linen.MultiHeadDotProductAttention(N, attention_fn=attention_fn, **arguments)


@pytest.mark.parametrize("mask", [None, nnx.make_causal_mask(jnp.ones((2, 5)))])
def test_dot_product_equals_the_default_attention_of_flax(mask):
    attention_fn = as_attention_fn(DotProduct())
    chex.assert_trees_all_close(
        nnx_layer(attention_fn)(X, mask=mask), nnx_layer()(X, mask=mask), **CLOSE
    )
    variables = linen_layer().init(jax.random.key(0), X)
    expected = linen_layer().apply(variables, X, mask=mask)
    chex.assert_trees_all_close(
        linen_layer(attention_fn).apply(variables, X, mask=mask), expected, **CLOSE
    )


def test_a_variant_replaces_the_dot_product_in_nnx_and_linen():
    attention_fn = as_attention_fn(VARIANT)
    layer = nnx_layer(attention_fn)
    query, key, value = (getattr(layer, name)(X) for name in ("query", "key", "value"))
    expected = layer.out(attention(query, key, value, VARIANT).values)
    chex.assert_trees_all_close(layer(X), expected, **CLOSE)
    params = {
        name: {"kernel": part.kernel[...], "bias": part.bias[...]}
        for name in ("query", "key", "value", "out")
        for part in (getattr(layer, name),)
    }
    chex.assert_trees_all_close(
        linen_layer(attention_fn).apply({"params": params}, X), expected, **CLOSE
    )


def test_the_parameters_of_a_module_are_trained_with_the_model():
    layer = nnx_layer(as_attention_fn(modules.DistanceAware(N, rngs=nnx.Rngs(0))))
    gradient = nnx.grad(lambda layer: jnp.square(layer(X)).sum())(layer)
    learned = gradient["attention_fn"]["variant"]
    assert (learned["weight"][...] != 0).all()
    assert (learned["shape"][...] != 0).all()


def test_a_linen_model_can_own_the_parameters_of_a_variant():
    class Block(linen.Module):
        @linen.compact
        def __call__(self, x):
            weight = self.param("w", modules.alternating_signs(), (N,))
            shape = self.param("v", linen.initializers.zeros, (N,))
            attention_fn = as_attention_fn(DistanceAware(weight, shape))
            return linen.MultiHeadDotProductAttention(N, attention_fn=attention_fn)(x)

    variables = Block().init(jax.random.key(0), X)
    gradient = jax.grad(lambda v: jnp.square(Block().apply(v, X)).sum())(variables)
    assert (gradient["params"]["w"] != 0).all()


def test_dropout_and_sown_weights_reach_the_attention():
    attention_fn = as_attention_fn(VARIANT)
    layer = nnx_layer(attention_fn, dropout_rate=0.5, deterministic=False)
    assert not np.allclose(layer(X), nnx_layer(attention_fn)(X))
    _, captured = nnx.capture(nnx_layer(attention_fn), nnx.Intermediate)(X, sow_weights=True)
    (weights,) = jax.tree.leaves(captured)
    chex.assert_shape(weights, (2, N, 5, 5))
    _, state = linen_layer(attention_fn).apply(
        linen_layer().init(jax.random.key(0), X), X, sow_weights=True, mutable=["intermediates"]
    )
    chex.assert_shape(jax.tree.leaves(state), (2, N, 5, 5))


def test_bias_and_precision_are_rejected():
    query = jnp.ones((2, 5, N, 6))
    with pytest.raises(ValueError, match="bias must be None"):
        as_attention_fn(VARIANT)(query, query, query, bias=jnp.ones((2, N, 5, 5)))
    with pytest.raises(ValueError, match="precision must be None"):
        as_attention_fn(VARIANT)(query, query, query, precision="highest")


def test_input_positions_set_the_query_offset():
    query, key = jnp.ones((2, 2, N, 6)), jnp.asarray(np.random.default_rng(0).random((2, 5, N, 6)))
    positions = jnp.asarray([[3, 4], [1, 2]])
    actual = as_attention_fn(VARIANT)(query, key, key, input_positions=positions)
    expected = attention(query, key, key, VARIANT, query_offset=positions[:, 0]).values
    chex.assert_trees_all_close(actual, expected, **CLOSE)
