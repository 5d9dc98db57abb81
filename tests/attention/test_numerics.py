"""Outputs and gradients stay finite and accurate for extreme inputs and positions."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from distattn_jax.attention import ADJUSTMENTS, Adapted, DistanceAware, attention, sinusoid
from distattn_jax.attention.variants.variant import weigh
from tests import oracles
from tests.attention.cases import VARIANTS, Sizes, inputs, random_arrays

pytestmark = pytest.mark.usefixtures("optimised")
LENGTH = 32768
attend = functools.partial(attention, implementation="xla")


def value_and_gradients(variant, qkv, **arguments):
    """Return all outputs, and the gradients of a loss that depends on all outputs."""

    @jax.jit
    def both(query, key, value, variant):
        def loss(*args):
            attended = attend(*args, received=True, weights=True, **arguments)
            losses = [jnp.sin(x.astype(jnp.float32)).sum() for x in jax.tree.leaves(attended)]
            return sum(losses), attended

        return jax.value_and_grad(loss, (0, 1, 2, 3), has_aux=True)(query, key, value, variant)

    return jax.device_get(both(*qkv, variant))


@pytest.mark.parametrize("name", VARIANTS)
def test_large_inputs_are_finite_and_queries_without_a_visible_key_have_zero_output(name):
    sizes = Sizes(batch=3)
    variant, _ = VARIANTS[name](sizes, "float32")
    result = value_and_gradients(
        variant,
        [(1e4 * jnp.sign(x)).astype("bfloat16") for x in inputs(sizes, "float32")],
        is_causal=True,
        query_offset=np.asarray([4, -3, 2]),
        key_lengths=np.asarray([7, 7, 0]),
        query_lengths=np.asarray([5, 4, 5]),
    )
    chex.assert_tree_all_finite(result)
    (_, attended), gradients = result
    without_key = np.asarray([[False] * 5, [True, True, True, False, True], [True] * 5])
    assert (attended.values[without_key] == 0).all()
    assert (attended.values[~without_key] != 0).any(axis=(1, 2)).all()
    assert (gradients[0][without_key] == 0).all()
    received = attended.received.sum(-1)
    np.testing.assert_allclose(received, np.tile([[5], [1], [0]], 3), rtol=1e-6)


# All implementations call the same mappings and adjustments.
@pytest.mark.parametrize(
    ("mapping", "adjust"),
    [
        *(("learnable_sigmoid", adjust) for adjust in ADJUSTMENTS),
        ("sigmoid", "early_multiply"),
        ("clip", "early_multiply"),
    ],
)
def test_extreme_weights_and_shapes_over_32k_keys_are_finite(mapping, adjust):
    # |w R| reaches 1e6 at R = 32768 + 8. The heads have all combinations of the signs of w and v.
    largest = 1e6 / LENGTH
    weight = jnp.asarray([-largest, largest, -largest, largest, -0.003, 0.003])
    v = jnp.asarray([-100.0, -100.0, 100.0, 100.0, 100.0, -100.0])
    shape = () if mapping == "sigmoid" else v
    sizes = Sizes(batch=1, queries=8, keys=LENGTH, heads=6, width=2, value_width=2)
    variant = DistanceAware(weight, shape, mapping, adjust)
    qkv = inputs(sizes, "float32")
    chex.assert_tree_all_finite(value_and_gradients(variant, qkv, query_offset=LENGTH))


@pytest.mark.parametrize("first", [0, 1000, LENGTH, -LENGTH])
def test_sinusoids_are_accurate_at_any_position(first):
    positions = np.arange(first, first + 5, dtype=np.int32)
    expected = np.stack([oracles.sinusoid(int(t), 64) for t in positions])
    actual = sinusoid(jnp.asarray(positions), 64, jnp.float32)
    np.testing.assert_allclose(actual, expected, atol=3e-5)


def test_adapted_scores_at_position_32768_equal_scores_at_small_positions():
    """The expansion of sin(i-j) must keep its accuracy where i and j are large and i-j is small."""
    biases = random_arrays(0, (1, 16), (1, 16), dtype="float32")
    sizes = Sizes(batch=1, queries=2, keys=LENGTH, heads=1, width=16, value_width=2)
    qkv = inputs(sizes, "float32")
    mask = np.arange(LENGTH)[None, None, None] >= LENGTH - 4
    actual = attend(*qkv, Adapted(*biases), mask=mask, query_offset=LENGTH - 2).values
    query, key, value = map(np.asarray, qkv)
    expected, *_ = oracles.attend(
        query, key[:, -4:], value[:, -4:], **oracles.adapted(*biases), query_offset=2
    )
    np.testing.assert_allclose(actual, expected, atol=2e-3)


@pytest.mark.parametrize("number", [0, 1, (0, 1)])
def test_joined_gradients_are_the_same_gradients(number):
    keys = jax.random.split(jax.random.key(0), 2)
    operands = jax.random.normal(keys[0], (3, 5, 7)), jax.random.normal(keys[1], (3, 7, 2))

    def differentiate(join_gradients):
        product = jax.vmap(functools.partial(weigh, join_gradients=join_gradients))
        gradient = jax.grad(lambda *arrays: jnp.sin(product(*arrays)).sum(), number)
        return jax.jit(lambda *arrays: jax.jvp(gradient, arrays, arrays))(*operands)

    chex.assert_trees_all_close(differentiate(True), differentiate(False), rtol=1e-6)
