"""No NaN and no Inf, forward or backward, at the ends of what one may feed in."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from distattn_jax.attention import (
    ADJUSTMENTS,
    Adapted,
    DistanceAware,
    attention,
    clip,
    exponent,
    learnable_sigmoid,
    sigmoid,
    sinusoid,
)
from tests import oracles
from tests.attention.cases import ONE_OF_EACH, Sizes, arrays, inputs

pytestmark = pytest.mark.usefixtures("optimised")
LONG = 32768
either_way = pytest.mark.parametrize(
    ("name", "implementation"),
    [(name, "xla") for name in ONE_OF_EACH] + [("distance_aware", "reference")],
)


def value_and_gradients(variant, qkv, **arguments):
    """All outputs, and the gradients of a loss that uses them all."""

    @jax.jit
    def both(query, key, value, variant):
        def loss(*args):
            attended = attention(*args, received=True, weights=True, **arguments)
            return sum(jnp.sum(jnp.sin(x.astype(jnp.float32))) for x in attended), attended

        return jax.value_and_grad(loss, (0, 1, 2, 3), has_aux=True)(query, key, value, variant)

    return both(*qkv, variant)


@pytest.mark.parametrize(
    ("mapping", "adjust", "implementation"),
    [(learnable_sigmoid, adjust, "xla") for adjust in ADJUSTMENTS]
    + [(mapping, "early_multiply", "xla") for mapping in (sigmoid, clip)]
    + [(mapping, "late_add", "reference") for mapping in (learnable_sigmoid, sigmoid, clip)]
    + [(learnable_sigmoid, "early_multiply", "reference")],
)
def test_extreme_weights_and_shapes_over_32k_keys_are_finite(mapping, adjust, implementation):
    # |w R| reaches 1e6 at R = 32768 + 8; the heads take all signs of w and v.
    largest = 1e6 / LONG
    weight = jnp.asarray([-largest, largest, -largest, largest, -0.003, 0.003])
    v = jnp.asarray([-100.0, -100.0, 100.0, 100.0, 100.0, -100.0])
    shape = () if mapping is sigmoid else v
    sizes = Sizes(batch=1, queries=8, keys=LONG, heads=6, width=2, value_width=2)
    variant = DistanceAware(weight, shape, mapping, ADJUSTMENTS[adjust])
    result = value_and_gradients(
        variant, inputs(sizes, "float32"), query_offset=LONG, implementation=implementation
    )
    chex.assert_tree_all_finite(result)


@either_way
def test_large_bfloat16_inputs_are_finite(name, implementation):
    sizes = Sizes()
    variant, _ = ONE_OF_EACH[name](sizes, "float32")
    qkv = [(1e4 * jnp.sign(x)).astype("bfloat16") for x in inputs(sizes, "float32")]
    chex.assert_tree_all_finite(value_and_gradients(variant, qkv, implementation=implementation))


@either_way
def test_queries_without_a_visible_key_give_zero_and_get_zero(name, implementation):
    sizes = Sizes()
    variant, _ = ONE_OF_EACH[name](sizes, "float32")
    result = value_and_gradients(
        variant,
        inputs(sizes, "float32"),
        is_causal=True,
        query_offset=jnp.asarray([-3, 2]),
        key_lengths=jnp.asarray([7, 0]),
        query_lengths=jnp.asarray([4, 5]),
        implementation=implementation,
    )
    chex.assert_tree_all_finite(result)
    (_, attended), gradients = result
    blind = np.ones((2, 5), bool)
    blind[0, 3] = False  # sees key 0; the others see nothing, or are padding
    assert (np.asarray(attended.values)[blind] == 0).all()
    assert (np.asarray(attended.values)[~blind] != 0).any()
    assert (np.asarray(gradients[0])[blind] == 0).all()
    np.testing.assert_allclose(attended.received[0].sum(-1), 1, rtol=1e-6)
    assert (attended.received[1] == 0).all()


@pytest.mark.parametrize("v", [-100.0, -1.0, 0.0, 3.0, 59.0, 100.0])
def test_learnable_sigmoid_equals_its_quotient_where_float32_reaches(v):
    x = np.concatenate([np.linspace(-80, 43, 200), [0.0]])
    expected = [oracles.learnable_sigmoid(value, v) for value in x]
    actual = learnable_sigmoid(jnp.asarray(x, jnp.float32), jnp.float32(v))
    smallest = np.finfo(np.float32).tiny * np.exp(60)  # what the cut at 60 leaves of the tail
    np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=1.1 * smallest)


@pytest.mark.parametrize("v", [-2.0, 0.0, 2.0])
def test_the_gradients_of_the_learnable_sigmoid_are_the_closed_forms(v):
    # df/dx = f (1 - s), df/dv = f (sigmoid(v) - 1 + s), s = sigmoid(x - v)
    x = jnp.linspace(-100, 100, 41)
    v = jnp.float32(v)
    s, f = jax.nn.sigmoid(x - v), learnable_sigmoid(x, v)
    by_x = jax.vmap(jax.grad(learnable_sigmoid), (0, None))(x, v)
    by_v = jax.vmap(jax.grad(learnable_sigmoid, 1), (0, None))(x, v)
    np.testing.assert_allclose(by_x, f * (1 - s), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(by_v, f * (jax.nn.sigmoid(v) - 1 + s), rtol=1e-4, atol=1e-6)


def test_the_exponent_is_cut_before_it_overflows():
    assert jnp.isfinite(exponent(jnp.float32(1e6), ()))
    np.testing.assert_allclose(exponent(jnp.float32(3.0), ()), np.exp(3.0), rtol=1e-6)


def test_the_threshold_of_clip_is_not_trained():
    assert jax.grad(clip, argnums=1)(jnp.float32(5.0), jnp.float32(2.0)) == 0


@pytest.mark.parametrize("first", [0, 1000, LONG, -LONG])
def test_sinusoids_are_exact_at_any_position(first):
    positions = jnp.arange(first, first + 5, dtype=jnp.int32)
    expected = np.stack([oracles.sinusoid(int(t), 64) for t in positions])
    np.testing.assert_allclose(sinusoid(positions, 64, jnp.float32), expected, atol=3e-5)


def test_adapted_attention_knows_near_from_far_at_32k():
    """The angle sum must not lose small gaps at large positions: query and key 32k apart from 0."""
    biases = arrays(0, (1, 16), (1, 16), dtype="float32")
    sizes = Sizes(batch=1, queries=2, keys=LONG, heads=1, width=16, value_width=2)
    query, key, value = inputs(sizes, "float32")
    near = slice(LONG - 4, LONG)
    mask = jnp.zeros((1, LONG), bool).at[:, near].set(True)
    far = attention(
        query, key, value, Adapted(*biases), mask=mask, query_offset=LONG - 2, implementation="xla"
    )
    expected, _, _ = oracles.attend(
        query, key[:, near], value[:, near], **oracles.adapted(*biases), query_offset=2
    )
    np.testing.assert_allclose(far.values, expected, atol=2e-3)
