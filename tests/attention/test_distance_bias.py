"""Biases of relative positions: values of the functions, their parameters and their gradients."""

import functools
import json
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from distattn_jax.attention import (
    BIAS_FUNCTIONS,
    DistanceBias,
    DotProduct,
    T5Buckets,
    alibi,
    alibi_slopes,
    attention,
    devices,
    init_bias_parameters,
    kerple_log,
    kerple_power,
    t5_buckets,
    xla,
)
from tests import oracles
from tests.attention.cases import CLOSE, Sizes, inputs, run_attention, select_implementation

QKV = inputs(Sizes(), "float32")
DISTANCES = np.arange(-300, 301)


def signed_bias(distance, parameters):
    """Return a bias that is not symmetric, from a dict with an array of two numbers per head."""
    return parameters["pair"][0] * distance + parameters["pair"][1] * jnp.sin(distance)


@pytest.mark.parametrize(
    ("function", "parameters"),
    [(alibi, (0.3,)), (kerple_log, (1.5, 0.4)), (kerple_power, (0.2, 1.3))],
    ids=["alibi", "kerple_log", "kerple_power"],
)
def test_functions_equal_their_oracles_for_distances_of_any_shape(function, parameters):
    bias = getattr(oracles, function.__name__)
    wanted = np.asarray([bias(d, *parameters) for d in DISTANCES.tolist()])
    arrays = tuple(map(jnp.float32, parameters))
    found = function(jnp.asarray(DISTANCES).reshape(1, -1), arrays if arrays[1:] else arrays[0])
    np.testing.assert_allclose(found, wanted[None], rtol=1e-6)


@pytest.mark.parametrize(
    ("buckets", "max_distance", "causal"),
    [(8, 5, False), (7, 100, True), (2, 9, True), (4, 2, False)],
)
def test_buckets_equal_the_oracle(buckets, max_distance, causal):
    found = T5Buckets(buckets, max_distance, causal).find_buckets(jnp.asarray(DISTANCES))
    wanted = [oracles.t5_bucket(d, buckets, max_distance, causal) for d in DISTANCES.tolist()]
    np.testing.assert_array_equal(found, wanted)


def test_buckets_and_slopes_equal_transformers():
    golden = json.loads((Path(__file__).parent / "golden_biases.json").read_text())
    assert t5_buckets == T5Buckets(32, 128, is_causal=False)
    for case in golden["buckets"]:
        wanted = case.pop("buckets")
        longest = len(wanted) // 2
        found = T5Buckets(**case).find_buckets(jnp.arange(-longest, longest + 1))
        np.testing.assert_array_equal(found, wanted, err_msg=str(case))
    for heads, slopes in golden["slopes"].items():
        np.testing.assert_allclose(alibi_slopes(int(heads)), slopes, rtol=1e-6)


def test_initial_parameters_have_one_entry_per_head_and_give_a_finite_gradient():
    variants = {
        name: DistanceBias(init_bias_parameters(name, 3, key=jax.random.key(0)), name)
        for name in BIAS_FUNCTIONS
    }

    @jax.jit
    @jax.grad
    def gradients(variants):
        return sum(jnp.sin(attention(*QKV, x).values).sum() for x in variants.values())

    for leaf in jax.tree.leaves(gradients(variants)):
        assert leaf.shape[0] == 3
        assert np.isfinite(leaf).all()
        assert np.asarray(leaf != 0).reshape(3, -1).any(axis=1).all()


def test_initial_parameters_of_kerple_lie_in_their_ranges():
    for function, largest in ((kerple_log, (2, 1)), (kerple_power, (1, 2))):
        drawn = init_bias_parameters(function, 1000, key=jax.random.key(0))
        for parameter, bound in zip(drawn, largest, strict=True):
            assert 0.01 <= parameter.min() < 0.1 * bound
            assert 0.9 * bound < parameter.max() <= bound


@pytest.mark.parametrize(
    ("function", "outside", "limits"),
    [(kerple_log, (-1, -2), (0.01, 0.01)), (kerple_power, (-1, 7), (0.01, 2))],
)
def test_parameters_of_kerple_are_limited_and_keep_their_gradient(function, outside, limits):
    @jax.jit
    def bias_and_gradient(pair):
        bias, pull = jax.vjp(lambda pair: function(jnp.asarray([0, 1, 5]), pair), pair)
        return bias, *pull(jnp.ones(3))

    beyond, inside = (
        bias_and_gradient(tuple(map(jnp.float32, pair))) for pair in (outside, limits)
    )
    assert all(-np.inf < gradient < 0 for gradient in beyond[1])
    chex.assert_trees_all_equal(beyond, inside)


@pytest.mark.parametrize("implementation", ["xla", "xla in recomputed blocks"])
def test_a_function_of_ones_own_with_shared_parameters_equals_the_reference(
    implementation, monkeypatch
):
    variant = DistanceBias({"pair": jnp.asarray([[0.3, -0.7]])}, signed_bias)
    offset = jnp.asarray([4, -2])
    wanted = run_attention(variant, *QKV, query_offset=offset, implementation="reference")
    with select_implementation(implementation, monkeypatch) as chosen:
        found = run_attention(variant, *QKV, query_offset=offset, implementation=chosen)
    chex.assert_trees_all_close(found, wanted, **CLOSE)


def test_a_bias_of_integers_and_no_parameters_are_allowed():
    def steps(distance, parameters):
        return -jnp.abs(distance)

    qkv = inputs(Sizes(), "bfloat16")
    found = attention(*qkv, DistanceBias((), steps)).values
    wanted = attention(*qkv, DistanceBias(jnp.ones(1), alibi)).values
    np.testing.assert_array_equal(found, wanted)


def test_equal_options_of_buckets_do_not_retrace():
    table, traces = jnp.ones((3, 8)), []

    @jax.jit
    def call(variant):
        traces.append(1)
        return attention(*QKV, variant).values

    for _ in range(2):
        call(DistanceBias(table, T5Buckets(8, 20)))
    assert len(traces) == 1


def test_cudnn_refuses_the_variant_and_none_falls_back():
    machine = devices.local_machine()._replace(cuda_capabilities=[9.0])
    qkv, variant = inputs(Sizes(), "bfloat16"), DistanceBias(jnp.ones(3), alibi)
    message = "DistanceBias cannot be written as dot-product attention"
    with devices.assumed(machine):
        with pytest.raises(ValueError, match=message):
            attention(*qkv, variant, implementation="cudnn")
        assert attention(*qkv, variant).values.shape == (2, 5, 3, 6)


@pytest.mark.parametrize(
    ("batch", "dtype", "is_stored"),
    [(64, "float32", True), (8, "float32", False), (64, "bfloat16", False)],
)
def test_a_gpu_stores_the_scores_of_large_batches_before_the_softmax(batch, dtype, is_stored):
    """XLA's softmax takes a row of the bias with all examples that share it, and is then slow."""
    array = jax.ShapeDtypeStruct((batch, 256, 2, 8), dtype)

    def trace(variant):
        call = functools.partial(attention, variant=variant, implementation="xla")
        with devices.assumed(devices.local_machine()._replace(platform="cuda")):
            return str(jax.make_jaxpr(lambda query: call(query, query, query))(array))

    bias = DistanceBias(jnp.ones(2), alibi)
    assert ("optimization_barrier" in trace(bias)) == is_stored
    assert "optimization_barrier" not in trace(DotProduct())


def test_stored_scores_have_all_derivatives(monkeypatch):
    monkeypatch.setattr(xla, "LARGEST_TILE", 1)

    def loss(implementation, arguments):
        *qkv, slope = arguments
        values = attention(*qkv, DistanceBias(slope, alibi), implementation=implementation).values
        return jnp.sin(values).sum()

    def differentiate(implementation):
        arguments = (*QKV, jnp.asarray([0.1, 0.2, 0.3]))
        gradient = jax.grad(functools.partial(loss, implementation))
        return jax.jit(lambda x: jax.jvp(gradient, (x,), (x,)))(arguments)

    with devices.assumed(devices.local_machine()._replace(platform="cuda")):
        stored = differentiate("xla")
    chex.assert_trees_all_close(stored, differentiate("reference"), **CLOSE)
