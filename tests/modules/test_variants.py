"""Modules that own the parameters of attention variants."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from distattn_jax import attention, modules
from tests.modules.cases import MAKERS, D, H, N, draw

PARAMETERS = {
    "distance_aware": 2 * N,  # DA-Transformer, section 3.4
    "distance_aware_linear": 3 * N,
    "distance_aware_clip": N,
    "distance_aware_sigmoid": N,
    "two_sided": 10 * N,  # w, v, c, r₁ and r₂ of each side
    "two_sided_tied": 3 * N,
    "relative_position": 2 * N * 5 * H,
    "relative_position_keys": H,
    "distance_bias": 2 * N,
    "distance_bias_t5": 8 * N,
    "transformer_xl": N * D * H + 2 * N * H,
    "adapted": 2 * H,
}


def inputs():
    return [draw(2, 5, N, H, seed=seed) for seed in range(3)]


def loss(module):
    return jnp.square(attention.attention(*inputs(), module()).values).sum()


@pytest.mark.parametrize("name", MAKERS)
def test_each_module_owns_only_the_expected_parameters_and_each_has_a_gradient(name):
    module = MAKERS[name](rngs=nnx.Rngs(0))
    leaves = jax.tree.leaves(module)
    assert sum(leaf.size for leaf in leaves) == PARAMETERS[name]
    assert len(jax.tree.leaves(nnx.state(module, nnx.Param))) == len(leaves)
    gradients = jax.tree.leaves(jax.jit(jax.grad(loss))(module))
    assert all(np.isfinite(gradient).all() for gradient in gradients)
    if name != "relative_position_keys":  # one vector for all keys shifts all scores of a query
        assert all(np.any(gradient) for gradient in gradients)


@pytest.mark.parametrize("name", ["distance_aware_clip", "relative_position"])
def test_graph_and_tree_mode_agree(name):
    module = MAKERS[name](rngs=nnx.Rngs(0))
    by_graph = jax.tree.leaves(nnx.jit(nnx.grad(loss))(module))
    by_tree = jax.tree.leaves(nnx.jit(nnx.grad(loss, graph=False), graph=False)(module))
    chex.assert_trees_all_close(by_graph, by_tree, rtol=1e-4, atol=1e-6)


def test_vmap_over_seeds_equals_a_loop():
    def values(key):
        variant = MAKERS["distance_aware_linear"](rngs=nnx.Rngs(key))()
        return attention.attention(*inputs(), variant).values

    keys = jax.random.split(jax.random.key(0))
    alone = np.stack([jax.jit(values)(key) for key in keys])
    chex.assert_trees_all_close(jax.jit(jax.vmap(values))(keys), alone, rtol=1e-5, atol=1e-6)


def test_the_signs_of_the_initial_weights_alternate():
    weight = np.asarray(modules.DistanceAware(16, rngs=nnx.Rngs(0)).weight)
    assert (weight[::2] < 0).all()
    assert (weight[1::2] > 0).all()
    assert ((np.abs(weight) >= 0.05) & (np.abs(weight) <= 0.15)).all()
    assert len(np.unique(np.abs(weight))) == 16


@pytest.mark.parametrize("shape", [2.5, [2.5] * N, jnp.full(N, 2.5)], ids=["one", "list", "array"])
def test_the_threshold_of_clip_is_constant(shape):
    module = modules.DistanceAware(N, mapping=attention.clip, shape=shape, rngs=nnx.Rngs(0))
    assert (module().shape == 2.5).all()
    assert len(jax.tree.leaves(module)) == 1  # the distance weights
    one = modules.DistanceAware(N, mapping=attention.clip, shape=2.5, rngs=nnx.Rngs(0))
    chex.assert_trees_all_close(loss(module), loss(one))


def test_mappings_and_adjustments_have_names():
    module = modules.DistanceAware(N, mapping="clip", adjust="late_add", rngs=nnx.Rngs(0))
    assert module().mapping is attention.clip
    assert module().adjust is attention.late_add
    with pytest.raises(ValueError, match=r"mapping must be one of .* got 'relu'"):
        modules.DistanceAware(N, mapping="relu", rngs=nnx.Rngs(0))


def test_initial_shapes_are_numbers_or_one_number_per_head():
    def shape(**arguments):
        return modules.DistanceAware(N, rngs=nnx.Rngs(0), **arguments)().shape

    assert shape(shape=1).tolist() == [1, 1, 1, 1]
    assert shape(shape=[1, 2, 3, 4]).tolist() == [1, 2, 3, 4]
    slope, intercept = shape(shape=(jnp.arange(4), 2.0), mapping=attention.linear)
    assert (slope.tolist(), intercept.tolist()) == ([0, 1, 2, 3], [2, 2, 2, 2])
    for mapping, bad in (
        (attention.learnable_sigmoid, (1.0, 1.0)),
        (attention.clip, jnp.ones((1, N))),
        (attention.linear, (1.0, jnp.ones(3))),
    ):
        with pytest.raises(ValueError, match=r"shape must contain one number, or one for each"):
            shape(shape=bad, mapping=mapping)
    for mapping in (attention.sigmoid, attention.linear):
        with pytest.raises(ValueError, match=f"parameters of {mapping.__name__}; got 1.0"):
            shape(shape=1.0, mapping=mapping)


def test_a_custom_mapping_requires_a_shape():
    def mapping(x, shape):
        return x * shape

    with pytest.raises(ValueError, match="shape must be given for a custom mapping"):
        modules.DistanceAware(N, mapping=mapping, rngs=nnx.Rngs(0))
    module = modules.DistanceAware(N, mapping=mapping, shape=2.0, rngs=nnx.Rngs(0))
    assert module().shape.shape == (N,)


def test_a_negative_max_distance_is_rejected():
    with pytest.raises(ValueError, match="max_distance must be at least 0; got -1"):
        modules.RelativePosition(N, H, -1, rngs=nnx.Rngs(0))


def scaled_distance(distance, parameters):
    return parameters["slope"] * distance + parameters["shared"][0]


def test_a_bias_function_of_ones_own_requires_parameters():
    with pytest.raises(ValueError, match="Pass the initial parameters of your own function"):
        modules.DistanceBias(N, function=scaled_distance, rngs=nnx.Rngs(0))
    initial = {"slope": 0.5, "shared": jnp.ones((1, 3))}
    module = modules.DistanceBias(N, function=scaled_distance, parameters=initial, rngs=nnx.Rngs(0))
    assert jax.tree.map(jnp.shape, module().parameters) == {"slope": (N,), "shared": (1, 3)}
    assert attention.attention(*inputs(), module()).values.shape == (2, 5, N, H)
    with pytest.raises(ValueError, match=r"parameters must contain .* of size 4 or 1; .*\(3,\)"):
        modules.DistanceBias(N, parameters=jnp.ones(3), rngs=nnx.Rngs(0))


def test_alibi_begins_with_the_slopes_of_the_paper():
    slopes = modules.DistanceBias(8, rngs=nnx.Rngs(0))().parameters
    assert slopes.tolist() == [2.0**-n for n in range(1, 9)]
