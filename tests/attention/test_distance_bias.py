"""Biases of relative positions: values of the functions, their parameters and their gradients."""

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
)
from distattn_jax.attention.variants import bias_functions
from tests import oracles
from tests.attention.cases import CLOSE, Sizes, inputs, run_attention, select_implementation
from tests.unchecked import as_users_have_it

QKV = inputs(Sizes(), "float32")
DISTANCES = np.arange(-300, 301)


def signed_bias(distance, parameters):
    """Return a bias that is not symmetric, from a dict with an array of two numbers per head."""
    return parameters["pair"][0] * distance + parameters["pair"][1] * jnp.sin(distance)


def constant_bias(distance, parameters):
    return parameters


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
    [(32, 128, False), (32, 128, True), (8, 5, False), (7, 100, True), (2, 9, True), (4, 2, False)],
)
def test_buckets_equal_the_oracle(buckets, max_distance, causal):
    found = T5Buckets(buckets, max_distance, causal).find_buckets(jnp.asarray(DISTANCES))
    wanted = [oracles.t5_bucket(d, buckets, max_distance, causal) for d in DISTANCES.tolist()]
    np.testing.assert_array_equal(found, wanted)


def test_buckets_and_slopes_equal_transformers():
    golden = json.loads((Path(__file__).parent / "golden_biases.json").read_text())
    for case in golden["buckets"]:
        wanted = case.pop("buckets")
        longest = len(wanted) // 2
        found = T5Buckets(**case).find_buckets(jnp.arange(-longest, longest + 1))
        np.testing.assert_array_equal(found, wanted, err_msg=str(case))
    for heads, slopes in golden["slopes"].items():
        np.testing.assert_allclose(alibi_slopes(int(heads)), slopes, rtol=1e-6)


def test_buckets_of_t5_begin_at_the_known_distances():
    """Compare with the distances at which the buckets of T5 begin, computed by hand."""
    # 8 (128 / 8)^(b / 8) = 8 2^(b / 2) for b = 0, ..., 7, rounded up
    starts = [*range(8), 8, 12, 16, 23, 32, 46, 64, 91]
    found = t5_buckets.find_buckets(jnp.asarray(DISTANCES))
    past, future = found[DISTANCES >= 0], found[DISTANCES <= 0][::-1]
    assert np.unique(past, return_index=True)[1].tolist() == starts
    np.testing.assert_array_equal(future[1:], past[1:] + 16)


@pytest.mark.parametrize(
    ("heads", "wanted"),
    [
        (1, [2**-8]),
        (2, [2**-4, 2**-8]),
        (8, [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]),
        (6, [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]),
    ],
)
def test_slopes_are_those_of_the_paper(heads, wanted):
    np.testing.assert_allclose(alibi_slopes(heads), wanted)


@pytest.mark.parametrize("function", BIAS_FUNCTIONS)
def test_initial_parameters_have_one_entry_per_head_and_give_a_finite_gradient(function):
    parameters = init_bias_parameters(function, 3, key=jax.random.key(0))
    assert all(leaf.shape[0] == 3 for leaf in jax.tree.leaves(parameters))
    variant = DistanceBias(parameters, function)

    def loss(variant):
        return jnp.sin(attention(*QKV, variant).values).sum()

    gradient = jax.grad(loss)(variant)
    chex.assert_tree_all_finite(gradient)
    assert all(
        (leaf != 0).any(axis=range(1, leaf.ndim)).all() for leaf in jax.tree.leaves(gradient)
    )


def test_initial_parameters_of_kerple_lie_in_their_ranges():
    for function, largest in ((kerple_log, (2, 1)), (kerple_power, (1, 2))):
        drawn = init_bias_parameters(function, 1000, key=jax.random.key(0))
        for parameter, bound in zip(drawn, largest, strict=True):
            assert 0.01 <= parameter.min() < 0.1 * bound
            assert 0.9 * bound < parameter.max() <= bound


def test_parameters_of_kerple_are_limited_and_keep_their_gradient():
    distance = jnp.asarray([0, 1, 5])
    for function, outside, limits in (
        (kerple_log, (-1.0, -2.0), (0.01, 0.01)),
        (kerple_power, (-1.0, 7.0), (0.01, 2.0)),
    ):
        beyond, inside = (tuple(map(jnp.float32, pair)) for pair in (outside, limits))
        np.testing.assert_array_equal(function(distance, beyond), function(distance, inside))
        gradients = [
            jax.grad(lambda pair, function=function: function(distance, pair).sum())(pair)
            for pair in (beyond, inside)
        ]
        assert all(-jnp.inf < gradient < 0 for gradient in gradients[0])
        np.testing.assert_array_equal(*gradients)


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


def test_zero_slopes_equal_dot_product_attention():
    found = run_attention(DistanceBias(jnp.zeros(3), "alibi"), *QKV)
    chex.assert_trees_all_close(found, run_attention(DotProduct(), *QKV), **CLOSE)


def test_equal_options_of_buckets_do_not_retrace():
    table, traces = jnp.ones((3, 8)), []

    @jax.jit
    def call(variant):
        traces.append(1)
        return attention(*QKV, variant).values

    for _ in range(2):
        call(DistanceBias(table, T5Buckets(8, 20)))
    assert len(traces) == 1


def test_cudnn_refuses_the_variant_and_none_falls_back(monkeypatch):
    monkeypatch.setattr(devices, "cuda_capabilities", lambda: [9.0])
    qkv, variant = inputs(Sizes(), "bfloat16"), DistanceBias(jnp.ones(3), alibi)
    with pytest.raises(ValueError, match="DistanceBias cannot be written as dot-product attention"):
        attention(*qkv, variant, implementation="cudnn")
    assert attention(*qkv, variant).values.shape == (2, 5, 3, 6)


INVALID = {
    "function must be one of alibi, kerple_log, .* got 'sandwich'": lambda: DistanceBias(
        jnp.ones(3), "sandwich"
    ),
    "function must be a function of .*distance, parameters.* got 3": lambda: as_users_have_it(
        bias_functions
    ).find_bias_function(3),
    r"DistanceBias.parameters\[1\] must .* r₂ of each head; got shape \(2,\)": lambda: attention(
        *QKV, DistanceBias((jnp.ones(3), jnp.ones(2)), kerple_log)
    ),
    r"DistanceBias.function must return one number per .* got \(\)": lambda: attention(
        *QKV, DistanceBias(jnp.ones(3), constant_bias)
    ),
    r"DistanceBias.parameters must have .* each of the 32 buckets .* \(3, 31\)": lambda: attention(
        *QKV, DistanceBias(jnp.ones((3, 31)), t5_buckets)
    ),
    "num_buckets must be even and at least 4; got 7": lambda: T5Buckets(7),
    "num_buckets must be at least 2; got 1": lambda: T5Buckets(1, is_causal=True),
    "max_distance must be larger than .*, 8; got 8": lambda: T5Buckets(max_distance=8),
    "Pass the initial parameters of your own function": lambda: init_bias_parameters(
        signed_bias, 3, key=jax.random.key(0)
    ),
}


@pytest.mark.parametrize(("message", "call"), INVALID.items(), ids=INVALID)
def test_errors_name_the_argument(message, call):
    with pytest.raises((TypeError, ValueError), match=message):
        call()
