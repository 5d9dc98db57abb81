"""Attention variants as `attention_fn` of NNX and Linen."""

import functools
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

from distattn_jax import modules
from distattn_jax.attention import DistanceAware, DotProduct, attention
from distattn_jax.modules import as_attention_fn
from tests.modules.cases import MAKERS, D, N, call
from tests.unchecked import as_users_have_it

X = jnp.asarray(np.random.default_rng(0).normal(size=(2, 5, D)), jnp.float32)
CLOSE = {"rtol": 1e-5, "atol": 1e-6}
LAST_KEY_HIDDEN = jnp.ones((2, 1, 5, 5)).at[..., 4].set(0)
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
        call(nnx_layer(attention_fn), X, mask=mask), call(nnx_layer(), X, mask=mask), **CLOSE
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
    gradient = nnx.jit(nnx.grad(lambda layer: jnp.square(layer(X)).sum()))(layer)
    learned = gradient["attention_fn"]["variant"]
    assert (learned["weight"][...] != 0).all()
    assert (learned["shape"][...] != 0).all()


class LinenBlock(linen.Module):
    @linen.compact
    def __call__(self, x):
        variant = nnx.bridge.to_linen(modules.DistanceAware, N, name="variant")()
        return linen_layer(as_attention_fn(variant))(x)


def test_the_parameters_of_a_module_are_in_the_tree_of_linen_and_are_trained():
    def loss(variables):
        return jnp.square(LinenBlock().apply(variables, X) - X).mean()

    @jax.jit
    def train_one_step(key):
        before = LinenBlock().init(key, X)
        first, gradient = jax.value_and_grad(loss)(before)
        after = jax.tree.map(lambda x, dx: x - 0.1 * dx, before, gradient)
        return before, after, loss(after) - first

    before, after, change = train_one_step(jax.random.key(0))
    assert change < 0
    for name in ("weight", "shape"):
        assert np.all(before["params"]["variant"][name] != after["params"]["variant"][name])


def test_a_module_that_linen_does_not_train_is_a_warning():
    module = modules.DistanceAware(N, rngs=nnx.Rngs(0))
    init = functools.partial(jax.eval_shape, linen_layer(as_attention_fn(module)).init)
    with pytest.warns(UserWarning, match=r"the NNX module DistanceAware: .*to_linen\(DistanceAw"):
        init(jax.random.key(0), X)


def test_modules_that_are_trained_or_have_no_parameters_give_no_warning():
    key = jax.random.key(0)  # Every warning is an error in these tests.
    wrapped = nnx.bridge.to_linen(
        lambda rngs: nnx_layer(as_attention_fn(modules.DistanceAware(N, rngs=rngs)))
    )
    params = jax.eval_shape(wrapped.init, key, X)["params"]
    assert params["attention_fn"]["variant"]["weight"].shape == (N,)
    constant = as_attention_fn(modules.DistanceAware(N, rngs=nnx.Rngs(0))())
    jax.eval_shape(linen_layer(constant).init, key, X)
    jax.eval_shape(linen_layer(as_attention_fn(Parameterless())).init, key, X)


class Parameterless(nnx.Module):
    def __call__(self):
        return DotProduct()


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


@pytest.mark.filterwarnings("ignore:Linen does not train")
@pytest.mark.parametrize("kind", ["variant", "module"])
def test_linen_passes_the_mask_and_the_dropout(kind):
    module = modules.DistanceAware(N, rngs=nnx.Rngs(0))
    attention_fn = as_attention_fn(module() if kind == "variant" else module)
    variables = linen_layer().init(jax.random.key(0), X)
    apply = linen_layer(attention_fn, dropout_rate=0.5).apply
    free = apply(variables, X, deterministic=True)
    hidden = apply(variables, X, mask=LAST_KEY_HIDDEN, deterministic=True)
    chex.assert_trees_all_close(
        hidden[:, :4], apply(variables, X[:, :4], deterministic=True), **CLOSE
    )
    assert not np.allclose(hidden, free)
    rngs = {"dropout": jax.random.key(1)}
    assert not np.allclose(apply(variables, X, deterministic=False, rngs=rngs), free)


@pytest.mark.parametrize("name", ["relative_position", "transformer_xl"])
def test_decoding_in_the_layer_of_flax_equals_the_causal_pass(name):
    attention_fn = as_attention_fn(MAKERS[name](rngs=nnx.Rngs(0)), decode=True)
    attend = nnx.MultiHeadAttention(N, D, attention_fn=attention_fn, decode=True, rngs=nnx.Rngs(0))
    # The mask of the user hides the first key of the second example from the last query.
    mask = nnx.make_causal_mask(X[..., 0]).at[1, :, 4, 0].set(0)
    whole = call(attend, X, mask=mask, decode=False)
    attend.init_cache((2, 7, D))

    @nnx.jit
    def step(attend, x, mask):
        return attend(x, mask=mask)

    masks = jnp.ones((5, 2, 1, 1, 7)).at[4, 1, ..., 0].set(0)
    parts = [step(attend, X[:, i : i + 1], masks[i]) for i in range(5)]
    chex.assert_trees_all_close(np.concatenate(parts, axis=1), whole, rtol=1e-4, atol=1e-5)


def test_decoding_in_the_layer_of_linen_equals_the_causal_pass():
    attend = linen_layer(as_attention_fn(VARIANT, decode=True), decode=True)
    variables = jax.jit(attend.init)(jax.random.key(0), X)
    params, cache = ({name: variables[name]} for name in ("params", "cache"))
    step = jax.jit(functools.partial(attend.apply, mutable=["cache"]))
    parts = []
    for i in range(5):
        part, cache = step(params | cache, X[:, i : i + 1])
        parts.append(part)
    mask = linen.make_causal_mask(X[..., 0])
    whole = linen_layer(as_attention_fn(VARIANT)).apply(params, X, mask=mask)
    chex.assert_trees_all_close(np.concatenate(parts, axis=1), whole, **CLOSE)


def test_a_decoding_function_rejects_calls_whose_positions_are_unknown():
    attention_fn = as_attention_fn(VARIANT, decode=True)
    key = jnp.ones((2, 5, N, 6))
    with pytest.raises(ValueError, match=r"decode=True expects one query .* got 1 queries, 5 keys"):
        attention_fn(key[:, :1], key, key)
    with pytest.raises(ValueError, match=r"decode=True expects one query .* got 2 queries, 5 keys"):
        attention_fn(key[:, :2], key, key, mask=jnp.ones((2, 1, 2, 5), bool))


def test_arguments_that_change_the_scores_are_rejected():
    query = jnp.ones((2, 5, N, 6))
    for name in ("bias", "qk_attn_weights_einsum", "attn_weights_value_einsum"):
        with pytest.raises(ValueError, match=f"{name} must be None"):
            as_attention_fn(VARIANT)(query, query, query, **{name: jnp.ones((2, N, 5, 5))})
    with pytest.raises(TypeError, match=r"variant must be an attention variant .*got 'sigmoid'"):
        as_users_have_it(modules.attention_fn).as_attention_fn("sigmoid")


PRECISIONS = {
    "highest": "(Precision.HIGHEST, Precision.HIGHEST)",
    jax.lax.Precision.HIGH: "(Precision.HIGH, Precision.HIGH)",
    ("default", "fastest"): "(Precision.DEFAULT, Precision.DEFAULT)",
    "BF16_BF16_F32_X3": "BF16_BF16_F32_X3",
    jax.lax.DotAlgorithmPreset.DEFAULT: "(Precision.DEFAULT, Precision.DEFAULT)",
}


@pytest.mark.parametrize(("precision", "expected"), PRECISIONS.items(), ids=str)
def test_the_precision_applies_to_all_products_of_the_attention(precision, expected):
    query = jnp.ones((2, 5, N, 6))

    def loss(query):
        return as_attention_fn(VARIANT)(query, query, query, precision=precision).sum()

    program = str(jax.make_jaxpr(jax.grad(loss))(query))
    assert set(re.findall(r"precision=(.*)", program)) == {expected}


def test_an_unknown_precision_is_rejected():
    query = jnp.ones((2, 5, N, 6))
    for precision in ("exact", ("high", "highest")):
        with pytest.raises(ValueError, match="precision must be one"):
            as_attention_fn(VARIANT)(query, query, query, precision=precision)


def test_input_positions_set_the_query_offset():
    query, key = jnp.ones((2, 2, N, 6)), jnp.asarray(np.random.default_rng(0).random((2, 5, N, 6)))
    positions = jnp.asarray([[3, 4], [1, 2]])
    actual = as_attention_fn(VARIANT)(query, key, key, input_positions=positions)
    expected = attention(query, key, key, VARIANT, query_offset=positions[:, 0]).values
    chex.assert_trees_all_close(actual, expected, **CLOSE)


def test_input_positions_that_restart_are_rejected():
    query, attention_fn = jnp.ones((2, 3, N, 6)), as_attention_fn(VARIANT)
    positions = jnp.asarray([[0, 1, 2], [0, 1, 0]])
    with pytest.raises(ValueError, match="input_positions must count up by 1 in each row"):
        attention_fn(query, query, query, input_positions=positions)
    with pytest.raises(ValueError, match=r"one position for each of the 3 queries; got .*\(2, 2\)"):
        attention_fn(query, query, query, input_positions=positions[:, :2])
    traced = jax.jit(lambda positions: attention_fn(query, query, query, input_positions=positions))
    assert np.isnan(traced(positions)).all(axis=(1, 2, 3)).tolist() == [False, True]
    assert np.isfinite(traced(positions)[0]).all()
