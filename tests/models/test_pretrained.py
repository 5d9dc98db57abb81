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
from jax.sharding import AxisType, NamedSharding

from distattn_jax.models import PretrainedClassifier, PretrainedConfig, PretrainedEncoder
from distattn_jax.models.pretrained import load
from distattn_jax.modules import Adapted, DistanceAware, RelativePosition, TransformerXL
from distattn_jax.sharding import Layout, shardings

GOLDEN = Path(__file__).parent / "golden"
CLOSE = {"rtol": 1e-5, "atol": 1e-5}
SMALL = PretrainedConfig(
    family="albert",
    vocabulary=20,
    features=8,
    layers=1,
    heads=2,
    hidden_features=12,
    positions=8,
    types=2,
    embedding_features=6,
    groups=1,
)
BERT = dataclasses.replace(SMALL, family="bert", embedding_features=8, layers=2, groups=2)
TOKENS = jnp.asarray([[2, 3, 4, 5, 6], [7, 8, 9, 0, 0], [10, 11, 2, 3, 0], [4, 0, 0, 0, 0]])
LENGTHS = jnp.asarray([5, 3, 4, 1])
TYPES = jnp.asarray([[0, 0, 1, 1, 1], [0, 1, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 0]])


def make(config=SMALL, seed=0, **arguments):
    """Make an encoder with parameters so large that the attention is far from uniform."""
    encoder = PretrainedEncoder(config, rngs=nnx.Rngs(seed), **arguments)
    nnx.update(encoder, jax.tree.map(lambda x: 20 * x if x.ndim > 1 else x, nnx.state(encoder)))
    return encoder


@jax.jit
def full_output(encoder, tokens, lengths, types=None):
    return encoder(tokens, lengths, types, received=True, weights=True, states=True)


@jax.jit
def encode(encoder, tokens, lengths, types=None):
    return encoder(tokens, lengths, types).values


# -- agreement with transformers


@pytest.fixture(scope="module", params=["bert", "roberta", "albert"])
def family(request):
    return request.param


@pytest.fixture(scope="module")
def expected(family):
    with np.load(GOLDEN / family / "expected.npz") as file:
        return dict(file)


@pytest.fixture(scope="module")
def output(family, expected):
    arrays = (jnp.asarray(expected[name]) for name in ("tokens", "lengths", "types"))
    return full_output(load(GOLDEN / family), *arrays)


@pytest.fixture(scope="module")
def is_valid(expected):
    return np.arange(expected["tokens"].shape[1])[None] < expected["lengths"][:, None]


def test_hidden_states_and_pooled_output_equal_transformers(output, expected, is_valid):
    arrays = (output.states, expected["states"])
    np.testing.assert_allclose(*(np.moveaxis(x, 1, 2)[is_valid] for x in arrays), **CLOSE)
    np.testing.assert_allclose(output.pooled, expected["pooled"], **CLOSE)
    assert (output.values == output.states[:, -1]).all()


def test_attention_weights_equal_transformers(output, expected, is_valid):
    arrays = (output.weights, expected["weights"])
    np.testing.assert_allclose(*(np.moveaxis(x, 3, 1)[is_valid] for x in arrays), **CLOSE)
    received = (expected["weights"] * is_valid[:, None, None, :, None]).sum(-2)
    np.testing.assert_allclose(output.received, received, **CLOSE)


def test_golden_attention_is_not_uniform_and_differs_by_layer_and_head(expected):
    maps = expected["weights"][0].reshape(-1, 81)
    assert maps.max() > 0.5
    assert len(np.unique(maps.round(3), axis=0)) == len(maps)


# -- inputs


def test_padding_does_not_matter():
    encoder = make()
    longer = jnp.full((4, 7), 11).at[:, :5].set(jnp.where(TOKENS == 0, 11, TOKENS))
    long_types = jnp.ones((4, 7), int).at[:, :5].set(TYPES)
    first = full_output(encoder, TOKENS, LENGTHS, TYPES)
    other = full_output(encoder, longer, LENGTHS, long_types)
    is_valid = np.arange(5)[None] < np.asarray(LENGTHS)[:, None]
    np.testing.assert_allclose(other.values[:, :5][is_valid], first.values[is_valid], **CLOSE)
    np.testing.assert_allclose(other.received[..., :5], first.received, **CLOSE)
    assert not other.received[..., 5:].any()


def test_token_types_matter_and_default_to_zero():
    encoder = make()
    plain = encode(encoder, TOKENS, LENGTHS)
    np.testing.assert_allclose(encode(encoder, TOKENS, LENGTHS, 0 * TYPES), plain, **CLOSE)
    assert jnp.abs(encode(encoder, TOKENS, LENGTHS, TYPES) - plain).max() > 1e-3


def test_the_first_position_of_roberta_follows_its_padding_id():
    config = dataclasses.replace(BERT, family="roberta", padding=1)
    roberta, bert = make(config), make(BERT)
    table = roberta.embeddings.positions.embedding
    bert.embeddings.positions.embedding[...] = jnp.roll(table[...], -2, axis=0)
    embedded = (encoder.embeddings(TOKENS, TYPES) for encoder in (roberta, bert))
    np.testing.assert_allclose(*embedded, **CLOSE)
    assert config.max_length == 6


def test_a_text_longer_than_the_table_of_positions_is_rejected():
    with pytest.raises(ValueError, match=r"tokens must have at most 8 columns.*; got 9"):
        encode(make(), jnp.ones((1, 9), int), jnp.asarray([9]))


def test_a_token_id_outside_the_vocabulary_gives_nan():
    assert jnp.isnan(encode(make(), TOKENS.at[0, 0].set(20), LENGTHS)[0]).all()


# -- attention variants


VARIANTS = {
    "distance_aware": functools.partial(DistanceAware, 2),
    "relative_position": functools.partial(RelativePosition, 2, 4, 2),
    "transformer_xl": functools.partial(TransformerXL, 2, 4, 8),
    "adapted": functools.partial(Adapted, 2, 4),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_each_variant_replaces_the_dot_product(name):
    encoder = make(variant=VARIANTS[name])
    found = encode(encoder, TOKENS, LENGTHS)
    assert jnp.isfinite(found).all()
    for layer in encoder.layers:
        layer.attention.variant = None
    assert jnp.abs(encode(encoder, TOKENS, LENGTHS) - found)[0].max() > 1e-5


def test_each_layer_with_its_own_parameters_has_its_own_variant():
    variant = VARIANTS["distance_aware"]
    weights = [layer.attention.variant.weight[...] for layer in make(BERT, variant=variant).layers]
    assert len(weights) == 2
    assert (weights[0] != weights[1]).all()
    assert len(make(variant=variant).layers) == 1


def test_implementations_agree():
    encoders = (make(implementation=name) for name in ("reference", None))
    found, plain = (encode(encoder, TOKENS, LENGTHS) for encoder in encoders)
    np.testing.assert_allclose(found, plain, **CLOSE)
    with pytest.raises(ValueError, match="fastest"):
        encode(make(implementation="fastest"), TOKENS, LENGTHS)


def test_bfloat16_computes_in_bfloat16_with_float32_parameters():
    encoder = make(dtype=jnp.bfloat16)
    found = full_output(encoder, TOKENS, LENGTHS, TYPES)
    assert found.values.dtype == jnp.bfloat16
    assert found.weights.dtype == found.received.dtype == jnp.float32
    assert {leaf.dtype for leaf in jax.tree.leaves(nnx.state(encoder))} == {jnp.dtype("float32")}
    exact = encode(make(), TOKENS, LENGTHS, TYPES)
    np.testing.assert_allclose(found.values.astype(jnp.float32), exact, atol=0.1)


# -- training


def loss(model, tokens=TOKENS, lengths=LENGTHS, rate=None, key=None):
    rngs = None if key is None else nnx.Rngs(key)
    output = model(tokens, lengths, dropout_rate=rate, rngs=rngs, received=True)
    return jnp.sin(3 * output.values).sum() + (output.received**2).sum()


def test_vmap_over_seeds_and_remat_equal_a_loop_without_remat():
    step = jax.value_and_grad(loss)
    keys = jax.random.split(jax.random.key(0), 2)
    models = jax.vmap(lambda key: make(seed=key, remat=True))(keys)
    together = jax.jit(jax.vmap(step))(models)
    one = jax.jit(step)
    alone = [one(make(seed=key)) for key in keys]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *alone)
    for found, wanted in zip(jax.tree.leaves(together), jax.tree.leaves(stacked), strict=True):
        largest = max(1.0, np.abs(wanted).max())  # Rounding errors are relative to large terms.
        np.testing.assert_allclose(found / largest, wanted / largest, **CLOSE)


def test_remat_at_least_halves_the_stored_residuals():
    def residuals(**arguments):
        graph, state = nnx.split(make(**arguments))
        backward = jax.eval_shape(
            lambda s: jax.vjp(lambda s: loss(nnx.merge(graph, s)), s)[1], state
        )
        return sum(leaf.size for leaf in jax.tree.leaves(backward))

    parameters = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(make())))
    assert residuals(remat=True) - parameters < (residuals() - parameters) / 2


@jax.jit
def loss_with_dropout(model, key, rate=None):
    return loss(model, rate=rate, key=key)


def test_dropout_follows_the_configuration_unless_the_call_sets_a_rate():
    key, rates = jax.random.key(1), ("dropout_rate", "attention_dropout_rate")
    no_dropout = dataclasses.replace(SMALL, **dict.fromkeys(rates, 0.0))
    plain = jax.jit(loss)(make())
    each = [
        loss_with_dropout(make(dataclasses.replace(no_dropout, **{name: 0.3})), key)
        for name in rates
    ]
    both = loss_with_dropout(
        make(dataclasses.replace(no_dropout, **dict.fromkeys(rates, 0.3))), key
    )
    assert len(np.unique(np.asarray([plain, *each, both]))) == 4
    np.testing.assert_allclose(
        loss_with_dropout(make(no_dropout), key, jnp.float32(0.3)), both, rtol=1e-5
    )
    np.testing.assert_allclose(
        loss_with_dropout(make(no_dropout), key, jnp.float32(0)), plain, rtol=1e-5
    )


def test_graph_mode_and_tree_mode_agree():
    def run(model, key):
        return loss(model, key=key)

    key = jax.random.key(1)
    graph, tree = nnx.jit(run)(make(), key), nnx.jit(run, graph=False)(make(remat=True), key)
    np.testing.assert_allclose(graph, tree, rtol=1e-5)


def value_and_gradient(model, tokens, lengths, types):
    def loss(model):
        rngs = nnx.Rngs(0)
        output = model(tokens, lengths, types, dropout_rate=0.1, rngs=rngs, received=True)
        return jnp.sin(output.logits).sum() + (output.received**2).sum(), output

    return jax.value_and_grad(loss, has_aux=True)(model)


@pytest.fixture(scope="module")
def alone():
    model = PretrainedClassifier(SMALL, 3, rngs=nnx.Rngs(0))
    return model, jax.jit(value_and_gradient)(model, TOKENS, LENGTHS, TYPES)


@pytest.mark.usefixtures("eight_devices")
@pytest.mark.parametrize("kind", [AxisType.Explicit, AxisType.Auto])
def test_eight_devices_equal_one_device(kind, alone):
    model, expected = alone
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(kind, kind))
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
    call = jax.jit(lambda model: model(TOKENS, LENGTHS, TYPES, received=True, weights=True))
    output = call(model)
    encoded = full_output(model.encoder, TOKENS, LENGTHS, TYPES)
    first = np.maximum(0, encoded.values[:, 0].astype(jnp.float32))
    assert output.logits.dtype == jnp.float32
    np.testing.assert_allclose(
        output.logits, first @ model.classes.kernel[...], rtol=1e-2, atol=1e-4
    )
    chex.assert_shape(output.received, (4, 1, 2, 5))
    chex.assert_shape(output.weights, (4, 1, 2, 5, 5))
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
        ({"heads": 3}, r"features \(8\) must be a multiple of heads \(3\)"),
        ({"groups": 3}, r"layers \(2\) must be a multiple of groups \(3\)"),
        ({"groups": 1}, r"groups must be layers \(2\) for bert; got 1"),
        ({"embedding_features": 6}, r"embedding_features must be features \(8\) for bert; got 6"),
    ],
)
def test_an_invalid_configuration_is_rejected(changed, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(BERT, **changed)
