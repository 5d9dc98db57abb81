"""BERT, RoBERTa and ALBERT: agreement with transformers, attention variants and training."""

import dataclasses
import functools
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding

from distattn_jax.models import PretrainedClassifier, PretrainedEncoder
from distattn_jax.models.pretrained import read_config
from distattn_jax.modules import DistanceAware
from distattn_jax.sharding import Layout, shardings
from tests.models.compare_golden import compute_errors

GOLDEN = Path(__file__).parent / "golden"
CLOSE = {"rtol": 1e-5, "atol": 1e-5}
BERT = read_config(GOLDEN / "bert")
SMALL = dataclasses.replace(BERT, family="albert", layers=1, groups=1, embedding_features=8)
TOKENS = jnp.asarray([[2, 3, 4, 5, 6], [7, 8, 9, 0, 0], [10, 11, 2, 3, 0], [4, 0, 0, 0, 0]])
LENGTHS = jnp.asarray([5, 3, 4, 1])
TYPES = jnp.asarray([[0, 0, 1, 1, 1], [0, 1, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 0]])


def make(config=SMALL, seed=0, **arguments):
    """Make an encoder with parameters so large that the attention is far from uniform."""
    encoder = PretrainedEncoder(config, rngs=nnx.Rngs(seed), **arguments)
    nnx.update(encoder, jax.tree.map(lambda x: 20 * x if x.ndim > 1 else x, nnx.state(encoder)))
    return encoder


@jax.jit
def call(model, tokens, types):
    return model(tokens, LENGTHS, types, received=True, weights=True)


def encode(encoder, tokens=TOKENS, types=TYPES):
    return call(encoder, tokens, types).values


@pytest.mark.parametrize("family", ["bert", "roberta", "albert"])
def test_all_outputs_equal_transformers(family):
    errors = compute_errors(GOLDEN / family)
    assert errors.keys() == {"values", "states", "pooled", "maps", "received"}
    assert max(errors.values()) < 1e-5
    with np.load(GOLDEN / family / "expected.npz") as expected:
        maps = expected["weights"][0].reshape(-1, 81)
    assert maps.max() > 0.5  # The attention is not uniform, and differs by layer and head.
    assert len(np.unique(maps.round(3), axis=0)) == len(maps)


# -- inputs


def test_token_types_default_to_zero():
    encoder = make()
    plain = encode(encoder, types=None)
    np.testing.assert_allclose(encode(encoder, types=0 * TYPES), plain, **CLOSE)
    assert jnp.abs(encode(encoder) - plain).max() > 1e-3


def test_a_text_longer_than_the_table_of_positions_is_rejected():
    with pytest.raises(ValueError, match=r"tokens must have at most 12 columns.*; got 13"):
        encode(make(), jnp.ones((4, 13), int), None)


def test_a_token_id_outside_the_vocabulary_gives_nan():
    assert jnp.isnan(encode(make(), TOKENS.at[0, 0].set(40))[0]).all()


# -- attention variants


def test_a_variant_replaces_the_dot_product():
    encoder = make(variant=functools.partial(DistanceAware, 4))
    found = encode(encoder)
    assert jnp.isfinite(found).all()
    encoder.layers[0].attention.variant = None
    assert jnp.abs(encode(encoder) - found)[0].max() > 1e-5


def test_each_layer_with_its_own_parameters_has_its_own_variant():
    encoders = [
        make(config, variant=functools.partial(DistanceAware, 4)) for config in (BERT, SMALL)
    ]
    weights = [layer.attention.variant.weight[...] for layer in encoders[0].layers]
    assert len(weights) == 2
    assert (weights[0] != weights[1]).all()
    assert len(encoders[1].layers) == 1


def test_implementations_agree():
    np.testing.assert_allclose(encode(make(implementation="reference")), encode(make()), **CLOSE)
    with pytest.raises(ValueError, match="fastest"):
        encode(make(implementation="fastest"))


def test_bfloat16_computes_in_bfloat16_with_float32_parameters():
    encoder = make(dtype=jnp.bfloat16)
    found = call(encoder, TOKENS, TYPES)
    assert found.values.dtype == jnp.bfloat16
    assert found.weights.dtype == found.received.dtype == jnp.float32
    assert {leaf.dtype for leaf in jax.tree.leaves(nnx.state(encoder))} == {jnp.dtype("float32")}
    np.testing.assert_allclose(found.values.astype(jnp.float32), encode(make()), atol=0.1)


# -- training


def loss(model, key=None, rate=None):
    rngs = None if key is None else nnx.Rngs(key)
    output = model(TOKENS, LENGTHS, dropout_rate=rate, rngs=rngs, received=True)
    return jnp.sin(3 * output.values).sum() + (output.received**2).sum()


def test_seeds_together_with_remat_equal_a_loop_in_graph_mode_without_remat():
    def step(model):
        return jax.tree.leaves(jax.value_and_grad(loss)(model))

    seeds = jax.random.split(jax.random.key(0))
    models = jax.jit(jax.vmap(lambda seed: make(seed=seed, remat=True)))(seeds)
    together = jax.jit(jax.vmap(step))(models)
    models.remat = False
    one = nnx.jit(step)
    alone = [one(jax.tree.map(lambda x, i=i: np.asarray(x)[i], models)) for i in (0, 1)]
    for found, *wanted in zip(together, *alone, strict=True):
        largest = max(1.0, np.abs(wanted).max())  # Rounding errors are relative to large terms.
        np.testing.assert_allclose(found / largest, np.stack(wanted) / largest, **CLOSE)


def test_remat_at_least_halves_the_stored_residuals():
    def residuals(**arguments):
        graph, state = nnx.split(make(**arguments))
        backward = jax.eval_shape(
            lambda s: jax.vjp(lambda s: loss(nnx.merge(graph, s)), s)[1], state
        )
        return sum(leaf.size for leaf in jax.tree.leaves(backward))

    parameters = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(make())))
    assert residuals(remat=True) - parameters < (residuals() - parameters) / 2


def test_dropout_follows_the_configuration_unless_the_call_sets_a_rate():
    def find_loss(rate, attention_rate, *arguments, remat=False):
        rates = {"dropout_rate": rate, "attention_dropout_rate": attention_rate}
        return jax.jit(loss)(make(dataclasses.replace(SMALL, **rates), remat=remat), *arguments)

    key = jax.random.key(1)
    plain, attention = find_loss(0.3, 0.3), find_loss(0.0, 0.3, key)
    both = find_loss(0.3, 0.3, key, remat=True)
    assert len(np.unique([plain, attention, both])) == 3
    np.testing.assert_allclose(find_loss(0.0, 0.0, key, jnp.float32(0.3)), both, rtol=1e-5)
    np.testing.assert_allclose(find_loss(0.0, 0.0, key, jnp.float32(0)), plain, rtol=1e-5)


def value_and_gradient(model, tokens, lengths, types):
    def loss(model):
        rngs = nnx.Rngs(0)
        output = model(tokens, lengths, types, dropout_rate=0.1, rngs=rngs, received=True)
        return jnp.sin(output.logits).sum() + (output.received**2).sum(), output

    return jax.value_and_grad(loss, has_aux=True)(model)


@pytest.mark.usefixtures("eight_devices")
def test_eight_devices_equal_one_device():
    model = PretrainedClassifier(SMALL, 3, rngs=nnx.Rngs(0))
    expected = jax.jit(value_and_gradient)(model, TOKENS, LENGTHS, TYPES)
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    graph, state = nnx.split(model)
    params = nnx.to_pure_dict(state)
    with jax.set_mesh(mesh):
        nnx.replace_by_pure_dict(state, jax.device_put(params, shardings(params, mesh, Layout())))
        batch = jax.device_put((TOKENS, LENGTHS, TYPES), NamedSharding(mesh, jax.P("data")))
        together = jax.jit(value_and_gradient)(nnx.merge(graph, state), *batch)
    layer = together[1].encoder.layers[0]
    assert layer.attention.query.kernel[...].sharding.spec[1] == "model"
    assert layer.feed_forward.out.kernel[...].sharding.spec[0] == "model"
    chex.assert_trees_all_close(jax.device_get(together), expected, **CLOSE)


# -- classifier


def test_the_classifier_uses_the_output_of_the_first_token():
    model = PretrainedClassifier(SMALL, 3, rngs=nnx.Rngs(0), dtype=jnp.bfloat16)
    output = call(model, TOKENS, TYPES)
    first = np.maximum(0, encode(model.encoder)[:, 0].astype(jnp.float32))
    assert output.logits.dtype == jnp.float32
    expected = first @ model.classes.kernel[...]
    np.testing.assert_allclose(output.logits, expected, rtol=1e-2, atol=1e-4)
    chex.assert_shape(output.received, (4, 1, 4, 5))
    chex.assert_shape(output.weights, (4, 1, 4, 5, 5))
    assert model.classes.bias is None


def test_the_classifier_applies_dropout_before_its_last_layer():
    config = dataclasses.replace(SMALL, dropout_rate=0.0, attention_dropout_rate=0.0)
    run = jax.jit(lambda model, key: model(TOKENS, LENGTHS, rngs=nnx.Rngs(key)).logits)
    for rate, is_same in ((0.0, True), (0.5, False)):
        changed = dataclasses.replace(config, classifier_dropout_rate=rate)
        model = PretrainedClassifier(changed, 3, rngs=nnx.Rngs(0))
        first, second = (run(model, jax.random.key(seed)) for seed in (1, 2))
        assert bool((first == second).all()) == is_same


# -- errors


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"family": "gpt2"}, "family must be one of bert, roberta, albert; got 'gpt2'"),
        ({"activation": "mish"}, "activation must be one of gelu, .*; got 'mish'"),
        ({"heads": 3}, r"features \(16\) must be a multiple of heads \(3\)"),
        ({"groups": 3}, r"layers \(2\) must be a multiple of groups \(3\)"),
        ({"groups": 1}, r"groups must be layers \(2\) for bert; got 1"),
        ({"embedding_features": 6}, r"embedding_features must be features \(16\) for bert; got 6"),
    ],
)
def test_an_invalid_configuration_is_rejected(changed, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(BERT, **changed)
