"""Text classifier with each attention method."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from distattn_jax.attention import DotProduct, attention
from distattn_jax.models import METHODS, Sizes, TextClassifier
from distattn_jax.sharding import make_mesh, replicated

SIZES = Sizes(2, 4, 8, embedding_features=6, hidden_features=8, pooling_features=4, max_distance=3)
MAIN_METHODS = tuple(METHODS)[:6]  # the others are forms of these, biases, and rotary positions
TOKENS = np.asarray([[2, 3, 4, 5, 6], [7, 8, 9, 0, 0], [10, 11, 2, 3, 0]])
LENGTHS = np.asarray([5, 3, 4])
CLOSE = {"rtol": 1e-5, "atol": 1e-6}
compiled = jax.jit(lambda model, tokens, lengths: model(tokens, lengths).logits)


def logits(model, tokens=TOKENS, lengths=LENGTHS):
    return np.asarray(compiled(model, np.asarray(tokens), lengths))


def make(method, *, sizes=SIZES, **arguments):
    return TextClassifier(12, 4, method=method, sizes=sizes, rngs=nnx.Rngs(0), **arguments)


@pytest.fixture(scope="module", params=MAIN_METHODS)
def method(request):
    return request.param


@pytest.fixture(scope="module")
def model(method):
    return make(method)


def test_logits_are_finite_float32_and_differ_by_text_and_class(model):
    found = logits(model)
    assert found.shape == (3, 4)
    assert found.dtype == np.float32
    assert np.isfinite(found).all()
    assert len(np.unique(np.round(found, 4))) == 12


def test_padding_does_not_matter(method, model):
    padded = np.where(TOKENS == 0, 11, TOKENS)
    np.testing.assert_allclose(logits(model, padded), logits(model), **CLOSE)
    if method == "distance_aware":  # The width of the batch is irrelevant to all methods alike.
        longer = np.pad(padded, ((0, 0), (0, 2)), constant_values=11)
        np.testing.assert_allclose(logits(model, longer), logits(model), **CLOSE)


def test_word_order_matters_for_all_methods_with_positions(method, model):
    # A rotation or a reversal would keep some distances.
    change = np.abs(logits(model, [[4, 2, 3, 6, 5], *TOKENS[1:]]) - logits(model))
    assert change[1:].max() == 0
    if method == "no_positions":
        assert change[0].max() < 1e-6
    else:
        assert change[0].max() > 1e-4


def test_an_empty_text_has_finite_logits(model):
    assert np.isfinite(logits(model, lengths=np.asarray([5, 0, 4]))).all()


def test_parameters_on_a_mesh_give_the_same_logits():
    model = make("transformer_xl")
    placed = jax.device_put(model, replicated(make_mesh(1, 1)))
    np.testing.assert_allclose(logits(placed), logits(model), **CLOSE)


def test_parameters_and_logits_stay_float32_in_bfloat16_models():
    model = make("adapted", dtype=jnp.bfloat16)
    assert {leaf.dtype for leaf in jax.tree.leaves(nnx.state(model))} == {jnp.dtype("float32")}
    half, full = logits(model), logits(make("adapted"))
    assert half.dtype == np.float32
    assert (half != full).any()  # the computation was rounded to bfloat16
    np.testing.assert_allclose(half, full, atol=0.1)


def test_received_and_weights_of_all_layers_are_returned_on_request():
    model = make("distance_aware", sizes=dataclasses.replace(SIZES, layers=2))
    output = jax.jit(lambda *arrays: model(*arrays, received=True, weights=True))(TOKENS, LENGTHS)
    assert output.weights.shape == (3, 2, 2, 5, 5)
    assert output.received.shape == (3, 2, 2, 5)
    np.testing.assert_allclose(output.received, output.weights.sum(axis=-2), **CLOSE)
    np.testing.assert_allclose(output.weights[0].sum(axis=-1), np.ones((2, 2, 5)), rtol=1e-5)
    assert not output.received[1, :, :, 3:].any()  # padding
    np.testing.assert_allclose(output.logits, logits(model), **CLOSE)


def test_all_forms_of_distance_aware_attention_and_all_biases_differ():
    forms = [name for name in METHODS if name.startswith("distance_aware")]
    assert len(forms) == 9  # the default, four other mappings, three other adjustments, a bias
    forms += ["alibi", "kerple_log", "kerple_power", "t5_bias"]
    query = np.random.default_rng(0).normal(size=(1, 5, 2, 4)).astype(np.float32)

    @jax.jit
    def attend():
        variants = [METHODS[form].variant(SIZES, rngs=nnx.Rngs(0))() for form in forms]
        return [attention(query, query, query, x).values for x in (*variants, DotProduct())]

    found = np.asarray(attend())
    assert np.isfinite(found).all()
    assert len(np.unique(np.round(found, 5), axis=0)) == len(forms) + 1


def test_each_other_form_of_two_sided_attention_changes_one_part():
    def parts(method):
        module = nnx.eval_shape(lambda: METHODS[method].variant(SIZES, rngs=nnx.Rngs(0)))
        assert METHODS[method].has_distance_weights == (module.mapping is not None)
        return {
            "sides": set(module.parameters),
            "bias": [getattr(x, "__name__", type(x).__name__) for x in module.bias],
            "rectify": module.rectify,
            "mapping": module.mapping and module.mapping.__name__,
        }

    default = parts("two_sided")
    changes = {
        "tied": {"sides": {"both"}},
        "no_constant": {"bias": ["kerple_power"]},
        "no_decay": {"bias": ["constant"]},
        "linear_decay": {"bias": ["constant", "alibi"]},
        "log_decay": {"bias": ["constant", "kerple_log"]},
        "buckets": {"bias": ["T5Buckets", "kerple_power"]},
        "no_relu": {"rectify": False},
        "no_factor": {"mapping": None},
        "same_rate": {},  # It changes the learning rate alone.
    }
    assert default == {
        "sides": {"before", "after"},
        "bias": ["constant", "kerple_power"],
        "rectify": True,
        "mapping": "learnable_sigmoid",
    }
    forms = {f"two_sided_{name}": {**default, **change} for name, change in changes.items()}
    assert {name: parts(name) for name in METHODS if name.startswith("two_sided_")} == forms
    rates = {name: METHODS[name].position_rate for name in ("two_sided", *forms)}
    assert rates == {**dict.fromkeys(rates, 5.0), "two_sided_same_rate": 1.0}


def test_the_error_for_an_unknown_method_lists_all_methods():
    with pytest.raises(ValueError, match=r"method must be one of no_positions, .*; got 'best'"):
        make("best")
