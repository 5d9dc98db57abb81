"""All methods in one model: what they give, and what they may and may not see."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from distattn_jax.models import METHODS, Sizes, TextClassifier
from distattn_jax.sharding import make_mesh, replicated

SIZES = Sizes(
    2,
    4,
    8,
    embedding_features=6,
    hidden_features=8,
    pooling_features=4,
    max_distance=3,
)
ROWS = tuple(METHODS)[:6]  # the rows of every table; the rest are forms of the last of them
TOKENS = jnp.asarray([[2, 3, 4, 5, 6], [7, 8, 9, 0, 0], [10, 11, 2, 3, 0]])
LENGTHS = jnp.asarray([5, 3, 4])
logits = jax.jit(lambda model, tokens, lengths: model(tokens, lengths).logits)


def make(method, *, layers=1, **arguments):
    sizes = dataclasses.replace(SIZES, layers=layers)
    return TextClassifier(12, 4, method=method, sizes=sizes, rngs=nnx.Rngs(0), **arguments)


@pytest.fixture(scope="module", params=ROWS)
def method(request):
    return request.param


@pytest.fixture(scope="module")
def model(method):
    return make(method)


def test_every_text_gets_a_finite_number_for_every_class(model):
    given = logits(model, TOKENS, LENGTHS)
    assert given.shape == (3, 4)
    assert given.dtype == jnp.float32
    assert jnp.isfinite(given).all()
    assert len(np.unique(np.round(np.asarray(given), 4))) == 12  # of different texts and classes


def test_padding_does_not_matter(model):
    longer = jnp.full((3, 7), 11).at[:, :5].set(jnp.where(TOKENS == 0, 11, TOKENS))
    np.testing.assert_allclose(
        logits(model, longer, LENGTHS), logits(model, TOKENS, LENGTHS), rtol=1e-5, atol=1e-6
    )


def test_only_without_positions_the_order_of_the_words_does_not_matter(method, model):
    # Neither a rotation nor a reversal: those would keep some distances, or all.
    other = TOKENS.at[0].set(jnp.asarray([4, 2, 3, 6, 5]))
    change = jnp.abs(logits(model, other, LENGTHS) - logits(model, TOKENS, LENGTHS))
    assert change[1:].max() == 0
    if method == "no_positions":
        assert change[0].max() < 1e-6
    else:
        assert change[0].max() > 1e-4


def test_a_text_of_no_words_is_no_danger(model):
    given = logits(model, TOKENS, jnp.asarray([5, 0, 4]))
    assert jnp.isfinite(given).all()


def test_parameters_may_lie_on_a_mesh(model):
    placed = jax.device_put(model, replicated(make_mesh(1, 1)))
    np.testing.assert_allclose(
        logits(placed, TOKENS, LENGTHS), logits(model, TOKENS, LENGTHS), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("method", ["distance_aware", "adapted"], scope="function")
def test_parameters_and_logits_stay_float32_where_the_computation_is_not(method):
    model = make(method, dtype=jnp.bfloat16)
    assert {leaf.dtype for leaf in jax.tree.leaves(nnx.state(model))} == {jnp.dtype("float32")}
    half, full = (logits(one, TOKENS, LENGTHS) for one in (model, make(method)))
    assert half.dtype == jnp.float32
    assert (half != full).any()  # it was not computed in float32
    np.testing.assert_allclose(half, full, atol=0.1)


def test_the_attention_of_every_layer_comes_along_when_asked_for():
    model = make("distance_aware", layers=2)
    given = jax.jit(lambda *arrays: model(*arrays, received=True, weights=True))(TOKENS, LENGTHS)
    assert given.weights.shape == (3, 2, 2, 5, 5)
    assert given.received.shape == (3, 2, 2, 5)
    np.testing.assert_allclose(given.received, given.weights.sum(axis=-2), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(given.weights[0].sum(axis=-1), np.ones((2, 2, 5)), rtol=1e-5)
    assert not given.received[1, :, :, 3:].any()  # padding
    plain = logits(model, TOKENS, LENGTHS)
    np.testing.assert_allclose(given.logits, plain, rtol=1e-5, atol=1e-6)


def test_every_form_of_distance_aware_attention_gives_something_else():
    forms = [name for name in METHODS if METHODS[name].has_distance_weights]
    assert len(forms) == 8  # the paper's own, four mappings, three adjustments
    given = [np.asarray(logits(make(form), TOKENS, LENGTHS)) for form in forms]
    assert np.isfinite(given).all()
    assert len(np.unique(np.round(given, 5), axis=0)) == 8


def test_an_unknown_method_is_named_with_those_that_are_known():
    with pytest.raises(ValueError, match=r"method must be one of no_positions, .*; got 'best'"):
        make("best")
