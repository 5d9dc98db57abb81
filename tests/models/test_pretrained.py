"""BERT, RoBERTa and ALBERT give what transformers gives, and all that our own encoders can."""

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
    """Its matrices are wide enough for attention that is far from even."""
    encoder = PretrainedEncoder(config, rngs=nnx.Rngs(seed), **arguments)
    nnx.update(encoder, jax.tree.map(lambda x: 20 * x if x.ndim > 1 else x, nnx.state(encoder)))
    return encoder


@jax.jit
def everything(encoder, tokens, lengths, types=None):
    return encoder(tokens, lengths, types, received=True, weights=True, states=True)


@jax.jit
def values_of(encoder, tokens, lengths, types=None):
    return encoder(tokens, lengths, types).values


# -- as transformers has it


@pytest.fixture(scope="module", params=["bert", "roberta", "albert"])
def family(request):
    return request.param


@pytest.fixture(scope="module")
def expected(family):
    with np.load(GOLDEN / family / "expected.npz") as file:
        return dict(file)


@pytest.fixture(scope="module")
def given(family, expected):
    arrays = (jnp.asarray(expected[name]) for name in ("tokens", "lengths", "types"))
    return everything(load(GOLDEN / family), *arrays)


@pytest.fixture(scope="module")
def own(expected):
    return np.arange(expected["tokens"].shape[1])[None] < expected["lengths"][:, None]


def test_hidden_states_and_pooled_output_are_those_of_transformers(given, expected, own):
    states, wanted = (np.moveaxis(x, 1, 2)[own] for x in (given.states, expected["states"]))
    np.testing.assert_allclose(states, wanted, **CLOSE)
    np.testing.assert_allclose(given.pooled, expected["pooled"], **CLOSE)
    assert (given.values == given.states[:, -1]).all()


def test_attention_maps_are_those_of_transformers(given, expected, own):
    weights, wanted = (np.moveaxis(x, 3, 1)[own] for x in (given.weights, expected["weights"]))
    np.testing.assert_allclose(weights, wanted, **CLOSE)
    received = (expected["weights"] * own[:, None, None, :, None]).sum(-2)
    np.testing.assert_allclose(given.received, received, **CLOSE)


def test_golden_attention_is_uneven_and_differs_by_layer_and_head(expected):
    maps = expected["weights"][0].reshape(-1, 81)
    assert maps.max() > 0.5
    assert len(np.unique(maps.round(3), axis=0)) == len(maps)


# -- what it may and may not see


def test_padding_does_not_matter():
    encoder = make()
    longer = jnp.full((4, 7), 11).at[:, :5].set(jnp.where(TOKENS == 0, 11, TOKENS))
    long_types = jnp.ones((4, 7), int).at[:, :5].set(TYPES)
    first = everything(encoder, TOKENS, LENGTHS, TYPES)
    other = everything(encoder, longer, LENGTHS, long_types)
    own = np.arange(5)[None] < np.asarray(LENGTHS)[:, None]
    np.testing.assert_allclose(other.values[:, :5][own], first.values[own], **CLOSE)
    np.testing.assert_allclose(other.received[..., :5], first.received, **CLOSE)
    assert not other.received[..., 5:].any()


def test_types_matter_and_without_them_all_are_0():
    encoder = make()
    plain = values_of(encoder, TOKENS, LENGTHS)
    np.testing.assert_allclose(values_of(encoder, TOKENS, LENGTHS, 0 * TYPES), plain, **CLOSE)
    assert jnp.abs(values_of(encoder, TOKENS, LENGTHS, TYPES) - plain).max() > 1e-3


def test_roberta_counts_positions_from_its_padding_on():
    config = dataclasses.replace(BERT, family="roberta", padding=1)
    roberta, bert = make(config), make(BERT)
    table = roberta.embeddings.positions.embedding
    bert.embeddings.positions.embedding[...] = jnp.roll(table[...], -2, axis=0)
    embedded = (encoder.embeddings(TOKENS, TYPES, 0.0, None) for encoder in (roberta, bert))
    np.testing.assert_allclose(*embedded, **CLOSE)
    assert config.longest == 6


def test_a_text_longer_than_the_positions_is_refused():
    with pytest.raises(ValueError, match=r"tokens must be at most 8 a text.*; got 9"):
        values_of(make(), jnp.ones((1, 9), int), jnp.asarray([9]))


def test_a_token_that_does_not_exist_is_not_taken_for_another():
    assert jnp.isnan(values_of(make(), TOKENS.at[0, 0].set(20), LENGTHS)[0]).all()


# -- the same attention as everywhere


VARIANTS = {
    "distance_aware": functools.partial(DistanceAware, 2),
    "relative_position": functools.partial(RelativePosition, 2, 4, 2),
    "transformer_xl": functools.partial(TransformerXL, 2, 4, 8),
    "adapted": functools.partial(Adapted, 2, 4),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_any_attention_takes_the_place(name):
    encoder = make(variant=VARIANTS[name])
    found = values_of(encoder, TOKENS, LENGTHS)
    assert jnp.isfinite(found).all()
    for layer in encoder.layers:
        layer.attention.variant = None
    assert jnp.abs(values_of(encoder, TOKENS, LENGTHS) - found)[0].max() > 1e-5


def test_every_layer_has_its_own_variant_and_a_shared_layer_one():
    variant = VARIANTS["distance_aware"]
    weights = [layer.attention.variant.weight[...] for layer in make(BERT, variant=variant).layers]
    assert len(weights) == 2
    assert (weights[0] != weights[1]).all()
    assert len(make(variant=variant).layers) == 1


def test_implementations_agree():
    encoders = (make(implementation=name) for name in ("reference", None))
    found, plain = (values_of(encoder, TOKENS, LENGTHS) for encoder in encoders)
    np.testing.assert_allclose(found, plain, **CLOSE)
    with pytest.raises(ValueError, match="fastest"):
        values_of(make(implementation="fastest"), TOKENS, LENGTHS)


def test_bfloat16_computes_in_bfloat16_with_float32_parameters():
    encoder = make(dtype=jnp.bfloat16)
    found = everything(encoder, TOKENS, LENGTHS, TYPES)
    assert found.values.dtype == jnp.bfloat16
    assert found.weights.dtype == found.received.dtype == jnp.float32
    assert {leaf.dtype for leaf in jax.tree.leaves(nnx.state(encoder))} == {jnp.dtype("float32")}
    exact = values_of(make(), TOKENS, LENGTHS, TYPES)
    np.testing.assert_allclose(found.values.astype(jnp.float32), exact, atol=0.1)


# -- training


def loss(model, tokens=TOKENS, lengths=LENGTHS, rate=None, key=None):
    rngs = None if key is None else nnx.Rngs(key)
    given = model(tokens, lengths, dropout_rate=rate, rngs=rngs, received=True)
    return jnp.sin(3 * given.values).sum() + (given.received**2).sum()


def test_seeds_are_a_batch_axis_and_computing_layers_again_changes_nothing():
    step = jax.value_and_grad(loss)
    keys = jax.random.split(jax.random.key(0), 2)
    models = jax.vmap(lambda key: make(seed=key, remat=True))(keys)
    together = jax.jit(jax.vmap(step))(models)
    one = jax.jit(step)
    alone = [one(make(seed=key)) for key in keys]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *alone)
    chex.assert_trees_all_close(jax.tree.leaves(together), jax.tree.leaves(stacked), **CLOSE)


def test_only_what_enters_a_layer_is_kept_for_its_gradient():
    def kept(**arguments):
        graph, state = nnx.split(make(**arguments))
        backward = jax.eval_shape(
            lambda s: jax.vjp(lambda s: loss(nnx.merge(graph, s)), s)[1], state
        )
        return sum(leaf.size for leaf in jax.tree.leaves(backward))

    parameters = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(make())))
    assert kept(remat=True) - parameters < (kept() - parameters) / 2


@jax.jit
def dropped(model, key, rate=None):
    return loss(model, rate=rate, key=key)


def test_dropout_follows_the_configuration_unless_a_rate_is_given():
    key, rates = jax.random.key(1), ("dropout_rate", "attention_dropout_rate")
    silent = dataclasses.replace(SMALL, **dict.fromkeys(rates, 0.0))
    plain = jax.jit(loss)(make())
    each = [dropped(make(dataclasses.replace(silent, **{name: 0.3})), key) for name in rates]
    both = dropped(make(dataclasses.replace(silent, **dict.fromkeys(rates, 0.3))), key)
    assert len(np.unique(np.asarray([plain, *each, both]))) == 4
    np.testing.assert_allclose(dropped(make(silent), key, jnp.float32(0.3)), both, rtol=1e-5)
    np.testing.assert_allclose(dropped(make(silent), key, jnp.float32(0)), plain, rtol=1e-5)


def test_it_is_valid_in_graph_mode_and_in_tree_mode():
    def run(model, key):
        return loss(model, key=key)

    key = jax.random.key(1)
    graph, tree = nnx.jit(run)(make(), key), nnx.jit(run, graph=False)(make(remat=True), key)
    np.testing.assert_allclose(graph, tree, rtol=1e-5)


def value_and_gradient(model, tokens, lengths, types):
    def loss(model):
        rngs = nnx.Rngs(0)
        given = model(tokens, lengths, types, dropout_rate=0.1, rngs=rngs, received=True)
        return jnp.sin(given.logits).sum() + (given.received**2).sum(), given

    return jax.value_and_grad(loss, has_aux=True)(model)


@pytest.fixture(scope="module")
def alone():
    model = PretrainedClassifier(SMALL, 3, rngs=nnx.Rngs(0))
    return model, jax.jit(value_and_gradient)(model, TOKENS, LENGTHS, TYPES)


@pytest.mark.usefixtures("eight_devices")
@pytest.mark.parametrize("kind", [AxisType.Explicit, AxisType.Auto])
def test_eight_devices_equal_one(kind, alone):
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


# -- classes


def test_a_classifier_reads_the_first_token_of_the_last_layer():
    model = PretrainedClassifier(SMALL, 3, rngs=nnx.Rngs(0), dtype=jnp.bfloat16)
    call = jax.jit(lambda model: model(TOKENS, LENGTHS, TYPES, received=True, weights=True))
    given = call(model)
    encoded = everything(model.encoder, TOKENS, LENGTHS, TYPES)
    first = np.maximum(0, encoded.values[:, 0].astype(jnp.float32))
    assert given.logits.dtype == jnp.float32
    np.testing.assert_allclose(
        given.logits, first @ model.classes.kernel[...], rtol=1e-2, atol=1e-4
    )
    chex.assert_shape(given.received, (4, 1, 2, 5))
    chex.assert_shape(given.weights, (4, 1, 2, 5, 5))
    assert model.classes.bias is None


def test_a_classifier_drops_out_before_its_classes():
    config = dataclasses.replace(SMALL, dropout_rate=0.0, attention_dropout_rate=0.0)
    run = jax.jit(lambda model, key: model(TOKENS, LENGTHS, rngs=nnx.Rngs(key)).logits)
    for rate, same in ((0.0, True), (0.5, False)):
        one = dataclasses.replace(config, classifier_dropout_rate=rate)
        model = PretrainedClassifier(one, 3, rngs=nnx.Rngs(0))
        first, second = (run(model, jax.random.key(seed)) for seed in (1, 2))
        assert bool((first == second).all()) == same


# -- wrong use


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
def test_a_model_that_cannot_be_is_refused(changed, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(BERT, **changed)
