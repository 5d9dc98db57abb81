"""Outputs and gradients stay finite for extreme inputs."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from distattn_jax.attention import (
    ADJUSTMENTS,
    DistanceAware,
    attention,
    clip,
    learnable_sigmoid,
    sigmoid,
)
from tests.attention.cases import VARIANTS, Sizes, inputs

pytestmark = pytest.mark.usefixtures("optimised")
LENGTH = 32768
every_variant = pytest.mark.parametrize(
    ("name", "implementation"),
    [(name, "xla") for name in VARIANTS] + [("distance_aware", "reference")],
)


def value_and_gradients(variant, qkv, **arguments):
    """Return all outputs, and the gradients of a loss that depends on all outputs."""

    @jax.jit
    def both(query, key, value, variant):
        def loss(*args):
            attended = attention(*args, received=True, weights=True, **arguments)
            return sum(
                jnp.sum(jnp.sin(x.astype(jnp.float32))) for x in jax.tree.leaves(attended)
            ), attended

        return jax.value_and_grad(loss, (0, 1, 2, 3), has_aux=True)(query, key, value, variant)

    return both(*qkv, variant)


@every_variant
def test_large_bfloat16_inputs_are_finite(name, implementation):
    sizes = Sizes()
    variant, _ = VARIANTS[name](sizes, "float32")
    qkv = [(1e4 * jnp.sign(x)).astype("bfloat16") for x in inputs(sizes, "float32")]
    chex.assert_tree_all_finite(value_and_gradients(variant, qkv, implementation=implementation))


@every_variant
def test_queries_without_a_visible_key_have_zero_output_and_gradient(name, implementation):
    sizes = Sizes()
    variant, _ = VARIANTS[name](sizes, "float32")
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
    without_key = np.ones((2, 5), bool)
    without_key[0, 3] = False  # The only query that is neither padding nor without a visible key.
    assert (np.asarray(attended.values)[without_key] == 0).all()
    assert (np.asarray(attended.values)[~without_key] != 0).any()
    assert (np.asarray(gradients[0])[without_key] == 0).all()
    np.testing.assert_allclose(attended.received[0].sum(-1), 1, rtol=1e-6)
    assert (attended.received[1] == 0).all()


@pytest.mark.parametrize(
    ("mapping", "adjust", "implementation"),
    [(learnable_sigmoid, adjust, "xla") for adjust in ADJUSTMENTS]
    + [(mapping, "early_multiply", "xla") for mapping in (sigmoid, clip)]
    # All implementations call the same mappings.
    + [(learnable_sigmoid, adjust, "reference") for adjust in ("late_add", "early_multiply")],
)
def test_extreme_weights_and_shapes_over_32k_keys_are_finite(mapping, adjust, implementation):
    # |w R| reaches 1e6 at R = 32768 + 8. The heads have all combinations of the signs of w and v.
    largest = 1e6 / LENGTH
    weight = jnp.asarray([-largest, largest, -largest, largest, -0.003, 0.003])
    v = jnp.asarray([-100.0, -100.0, 100.0, 100.0, 100.0, -100.0])
    shape = () if mapping is sigmoid else v
    sizes = Sizes(batch=1, queries=8, keys=LENGTH, heads=6, width=2, value_width=2)
    variant = DistanceAware(weight, shape, mapping, ADJUSTMENTS[adjust])
    result = value_and_gradients(
        variant, inputs(sizes, "float32"), query_offset=LENGTH, implementation=implementation
    )
    chex.assert_tree_all_finite(result)
