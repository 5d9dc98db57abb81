"""Every variant in every implementation equals its float64 oracle, and its gradients are right."""

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from distattn_jax.attention import ADJUSTMENTS, MAPPINGS, attention, clip
from distattn_jax.attention.dropout import Dropout, make_words
from tests import oracles
from tests.attention.cases import (
    ALL_FORMS,
    IMPLEMENTATIONS,
    TOLERANCE,
    VARIANTS,
    Sizes,
    inputs,
    random_like,
    select_implementation,
)

attend = functools.partial(attention, received=True, weights=True, logsumexp=True)
STORED, BLOCKS = IMPLEMENTATIONS[2:]
# Segments, grouped heads, dropout and stored blocks are independent of the variant, so that a few
# forms check them. Dropout follows the adjustment of the weights, and precedes the sum of values.
SAMPLE = ("distance_aware", "relative_position")
SIZES = Sizes()
DROPOUT = {"dropout_rate": 0.25, "dropout_key": jax.random.key(3)}
DROPPED = ("relative_position", "distance_aware_learnable_sigmoid_late_add")
TABLES = [name for name in ALL_FORMS if name.startswith("relative_position_")]
OTHER_MAPPINGS = [name for name in MAPPINGS if name != "learnable_sigmoid"]
OTHER_ADJUSTMENTS = [name for name in ADJUSTMENTS if name != "early_multiply"]
# Each group is compiled as one program. Mappings and adjustments are independent of each other and
# of the implementation, so that not all combinations need a check.
GROUPS = {
    **{
        name: [(name, other) for other in IMPLEMENTATIONS if name in DROPPED or other != STORED]
        for name in VARIANTS
    },
    "mappings": [(f"distance_aware_{name}_early_multiply", "xla") for name in OTHER_MAPPINGS],
    "adjustments": [
        *((f"distance_aware_learnable_sigmoid_{name}", "xla") for name in OTHER_ADJUSTMENTS),
        ("distance_aware_learnable_sigmoid_late_add", BLOCKS),
        ("distance_aware_linear_late_multiply", "xla"),
        ("distance_aware_clip_early_add", "xla"),
    ],
    "tables": [
        *((name, other) for name in TABLES for other in ("xla", "reference")),
        ("relative_position_k0", BLOCKS),
    ],
    "biases": [
        *((name, "xla") for name in ALL_FORMS if name.startswith("distance_bias_")),
        ("distance_bias_t5", "reference"),
        ("transformer_xl_shared", "xla"),
        ("adapted_shared", "xla"),
        ("two_sided_bias", BLOCKS),
        ("two_sided_factor", "xla"),
    ],
}


def no_restriction(sizes: Sizes) -> dict:
    return {}


def packed_sequences(sizes: Sizes) -> dict:
    """Return segments that queries and keys share, a causal mask and an offset per example."""
    B, T, S, *_ = sizes
    keys = np.sort(np.random.default_rng(1).integers(0, 3, (B, S)))
    return {
        "query_segments": np.stack([keys[0, 2 : 2 + T], keys[1, :T]]),
        "key_segments": keys,
        "query_offset": np.asarray([2, 0]),
        "is_causal": True,
    }


def every_restriction(sizes: Sizes) -> dict:
    """Return a mask with an empty row, lengths, a window, a scale and an offset per example."""
    B, T, S, *_ = sizes
    mask = np.random.default_rng(7).random((B, 1, T, S)) < 0.8
    mask[0, :, T // 2] = False
    return {
        "mask": mask,
        "query_lengths": np.asarray([T, max(T - 1, 1)]),
        "key_lengths": np.asarray([max(S - 2, 0), S]),
        "query_offset": np.asarray([2, -1]),
        "local_window_size": (4, 5),
        "scale": 0.7,
    }


@functools.cache
def kept_by_dropout(seed: int, rate: float, sizes: Sizes) -> np.ndarray:
    """Return True for the entries of the (B, N, T, S) map that dropout keeps."""
    B, T, S, N, *_ = sizes
    words = make_words(jax.random.key(seed))

    @jax.jit
    @jax.vmap
    def kept(b, n):
        return Dropout(jnp.float32(rate), words, b, n).kept(jnp.arange(T), jnp.arange(S))

    return np.asarray(kept(*np.indices((B, N)).reshape(2, -1))).reshape(B, N, T, S)


def assert_matches(attended, qkv, oracle, dtype, case):
    """Compare all outputs with an oracle, relative to the largest entry if it exceeds 1."""
    expected = oracles.attend(*map(np.asarray, qkv), **oracle)
    for name, actual, wanted in zip(attended._fields, attended, expected, strict=True):
        scale = np.abs(wanted).max(initial=1.0, where=np.isfinite(wanted))
        np.testing.assert_allclose(
            np.asarray(actual, np.float64) / scale,
            wanted / scale,
            atol=TOLERANCE[dtype],
            err_msg=f"{name} of {case}",
        )


def draw_direction(point):
    """Draw a direction in which the outputs are differentiated."""
    *qkv, variant = random_like(point, seed=8)
    if getattr(variant, "mapping", None) is clip:  # The threshold has no gradient.
        variant = dataclasses.replace(variant, shape=jnp.zeros(1))
    return jax.device_get((*qkv, variant))


def assert_derivatives_match(result, direction, differences, case):
    """Compare gradients, and tangents if there are any, with finite differences of the outputs."""
    outputs, gradients, tangents = result

    def inner_product(tree, other):
        return sum(map(np.vdot, jax.tree.leaves(tree), jax.tree.leaves(other)))

    actual = inner_product(gradients, direction)
    expected = inner_product(random_like(outputs, seed=9), differences)
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-6, err_msg=str(case))
    if tangents is not None:
        chex.assert_trees_all_close(tangents, differences, rtol=1e-6, atol=1e-6)


def differentiate(name, implementation, point, direction, monkeypatch):
    """Return outputs, gradients for random cotangents, and tangents or None."""
    arguments = every_restriction(SIZES) | (DROPOUT if name in DROPPED else {})
    with select_implementation(implementation, monkeypatch) as chosen:
        call = functools.partial(attend, **arguments, implementation=chosen)
        outputs, pull = jax.vjp(call, *point)
        tangents = None
        if name in VARIANTS and implementation == "xla":
            _, tangents = jax.jvp(call, point, direction)
    return outputs, pull(random_like(outputs, seed=9)), tangents


@pytest.mark.parametrize("cases", GROUPS.values(), ids=GROUPS)
@jax.enable_x64(True)
def test_outputs_match_oracles_and_gradients_match_finite_differences(cases, monkeypatch):
    step = 1e-5
    forms = {name: ALL_FORMS[name](SIZES, "float64") for name, _ in cases}
    points = {name: (*inputs(SIZES), form.variant) for name, form in forms.items()}
    directions = {name: draw_direction(point) for name, point in points.items()}
    points = jax.device_get(points)

    @jax.jit
    def run(points):
        return {
            case: differentiate(*case, points[case[0]], directions[case[0]], monkeypatch)
            for case in cases
        }

    def run_at(step):
        return jax.device_get(run(jax.tree.map(lambda x, y: x + step * y, points, directions)))

    results, after, before = map(run_at, (0, step, -step))
    for case, result in results.items():
        name, _ = case
        oracle = forms[name].oracle | every_restriction(SIZES)
        if name in DROPPED:
            rate = DROPOUT["dropout_rate"]
            oracle |= {"kept": kept_by_dropout(3, rate, SIZES), "dropout_rate": rate}
        assert_matches(result[0], points[name][:3], oracle, "float64", case)
        differences = jax.tree.map(
            lambda x, y: (np.nan_to_num(x) - np.nan_to_num(y)) / (2 * step),
            after[case][0],
            before[case][0],
        )
        assert_derivatives_match(result, directions[name], differences, case)
        if name in VARIANTS:
            expected = results[name, "xla"][1]
            chex.assert_trees_all_close(result[1], expected, rtol=1e-9, atol=1e-10)


class Call(NamedTuple):
    """Arguments of a call that is compared with the oracle."""

    implementation: str
    sizes: Sizes
    restrict: Callable[[Sizes], dict]
    dtype: str = "float64"


ONE_OF_EACH = Sizes(batch=1, queries=1, keys=1, heads=1, width=2, value_width=1)
GROUPED = Sizes(heads=6, key_heads=2)
CALLS = [
    Call("xla", Sizes(queries=1), every_restriction),
    Call(BLOCKS, Sizes(keys=1), every_restriction),  # A block has more queries than keys.
    Call("xla", Sizes(queries=9, keys=4), no_restriction),
    Call("xla", ONE_OF_EACH, no_restriction),
    Call("xla", GROUPED, packed_sequences),
]
SAMPLE_CALLS = [
    Call("reference", GROUPED, packed_sequences),
    Call(BLOCKS, GROUPED, packed_sequences),
]
LOW_PRECISION_CALLS = [
    Call("xla", SIZES, no_restriction, "float32"),
    Call("xla", SIZES, every_restriction, "bfloat16"),
]
# The reference converts all inputs to float32 before it calls a method of the variant.
SAMPLE_LOW_PRECISION_CALLS = [
    Call("reference", SIZES, every_restriction, "bfloat16"),
    Call("xla", SIZES, every_restriction, "float16"),
]


def assert_calls_match(name, calls, monkeypatch):
    """Compare all calls with the oracle. They are compiled as one program."""
    forms = [VARIANTS[name](call.sizes, jnp.promote_types(call.dtype, "float32")) for call in calls]
    qkvs = [inputs(call.sizes, call.dtype) for call in calls]

    @jax.jit
    def run(qkvs, variants):
        results = []
        for call, qkv, variant in zip(calls, qkvs, variants, strict=True):
            with select_implementation(call.implementation, monkeypatch) as chosen:
                arguments = call.restrict(call.sizes)
                results.append(attend(*qkv, variant, **arguments, implementation=chosen))
        return results

    results = run(qkvs, [form.variant for form in forms])
    for call, form, qkv, attended in zip(calls, forms, qkvs, results, strict=True):
        assert attended.values.dtype == call.dtype
        assert {x.dtype for x in attended[1:]} == {jnp.promote_types(call.dtype, "float32")}
        oracle = form.oracle | call.restrict(call.sizes)
        assert_matches(attended, qkv, oracle, call.dtype, call)


@pytest.mark.parametrize("name", VARIANTS)
@jax.enable_x64(True)
def test_variants_match_their_oracles_for_all_sizes(name, monkeypatch):
    assert_calls_match(name, CALLS + SAMPLE_CALLS * (name in SAMPLE), monkeypatch)


@pytest.mark.parametrize("name", VARIANTS)
def test_low_precision_inputs_match_the_oracles_and_keep_their_dtype(name, monkeypatch):
    calls = LOW_PRECISION_CALLS + SAMPLE_LOW_PRECISION_CALLS * (name in SAMPLE)
    assert_calls_match(name, calls, monkeypatch)
