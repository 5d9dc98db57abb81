"""Every variant in every implementation equals its float64 oracle, and its gradients are right."""

import dataclasses
import functools
from itertools import chain

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from distattn_jax.attention import attention
from distattn_jax.attention.dropout import Dropout, make_words
from tests import oracles
from tests.attention.cases import (
    ALL_FORMS,
    IMPLEMENTATIONS,
    TOLERANCE,
    VARIANTS,
    Sizes,
    inputs,
    run_attention,
    select_implementation,
)

SIZES = {
    "one query": Sizes(queries=1),
    "one key": Sizes(keys=1),
    "one of each": Sizes(batch=1, queries=1, keys=1, heads=1, width=2, value_width=1),
    "more queries than keys": Sizes(queries=9, keys=4),
}
SPECIAL_FORMS = (
    "relative_position_k0",
    "distance_aware_learnable_sigmoid_late_add",
    "distance_aware_linear_late_multiply",
    "distance_aware_clip_early_add",
    "relative_position_k9_shared",
    "relative_position_keys",
    "relative_position_values",
    "transformer_xl_shared",
    "adapted_shared",
    "distance_bias_shared",
    "distance_bias_t5",
)
# Mappings and adjustments are independent, so that not all their combinations need a check.
OTHER_FORMS = {
    "mappings": [name for name in ALL_FORMS if name.endswith("early_multiply")],
    "adjustments": [name for name in ALL_FORMS if "learnable" in name],
    "tables": [name for name in ALL_FORMS if name.startswith("relative_position_")],
    "distance biases": [name for name in ALL_FORMS if name.startswith("distance_bias_")],
    "shared biases": ["transformer_xl_shared", "adapted_shared"],
}
FORMS = dict.fromkeys([*VARIANTS, *SPECIAL_FORMS, *chain(*OTHER_FORMS.values())])


def packed_sequences(sizes: Sizes) -> dict:
    """Return segments that queries and keys share, a window, a scale and an offset per example."""
    B, T, S, *_ = sizes
    offsets = np.asarray([2, 0][:B])
    keys = np.sort(np.random.default_rng(1).integers(0, 3, (B, S)))
    queries = np.stack(
        [row[offset : offset + T] for row, offset in zip(keys, offsets, strict=True)]
    )
    return {
        "query_segments": jnp.asarray(queries),
        "key_segments": jnp.asarray(keys),
        "query_offset": jnp.asarray(offsets),
        "local_window_size": (3, 1),
        "scale": 0.7,
    }


def every_restriction(sizes: Sizes) -> dict:
    """Return a mask with an empty row, lengths, a causal mask and an offset per example."""
    B, T, S, *_ = sizes
    mask = np.random.default_rng(7).random((B, 1, T, S)) < 0.8
    mask[0, :, T // 2] = False
    return {
        "mask": jnp.asarray(mask),
        "query_lengths": jnp.asarray([T, max(T - 1, 1)][:B]),
        "key_lengths": jnp.asarray([max(S - 2, 0), S][:B]),
        "query_offset": jnp.asarray([2, -1][:B]),
        "is_causal": True,
    }


@functools.cache
def kept_by_dropout(seed, rate, sizes: Sizes) -> np.ndarray:
    """Return True for the entries of the (B, N, T, S) map that dropout keeps."""
    B, T, S, N, *_ = sizes
    words = make_words(jax.random.key(seed))
    kept = [
        Dropout(jnp.float32(rate), words, jnp.int32(b), jnp.int32(n)).kept(
            jnp.arange(T), jnp.arange(S)
        )
        for b in range(B)
        for n in range(N)
    ]
    return np.asarray(kept).reshape(B, N, T, S)


def run_oracle(oracle, arrays, restrictions, **dropout):
    """Run an oracle on NumPy arrays, which are faster to index one by one than JAX arrays."""
    arrays, restrictions = jax.tree.map(np.asarray, (arrays, restrictions))
    return oracles.attend(*arrays, **oracle, **restrictions, **dropout)


def assert_matches(attended, expected, dtype):
    """Compare all outputs, relative to the largest entry of each if it exceeds 1."""
    for name, actual, wanted in zip(attended._fields, attended, expected, strict=True):
        tolerance = TOLERANCE[dtype]
        scale = np.abs(wanted).max(initial=1.0, where=np.isfinite(wanted))
        np.testing.assert_allclose(
            np.asarray(actual, np.float64) / scale, wanted / scale, atol=tolerance, err_msg=name
        )


@pytest.mark.parametrize(
    ("name", "implementation"),
    [(name, "xla") for name in FORMS]
    + [(name, "reference") for name in {**VARIANTS, **dict.fromkeys(SPECIAL_FORMS)}]
    + [(name, implementation) for name in VARIANTS for implementation in IMPLEMENTATIONS[2:]]
    + [(name, IMPLEMENTATIONS[3]) for name in SPECIAL_FORMS[:2]],
)
def test_all_forms_match_their_oracles_under_every_restriction(name, implementation, monkeypatch):
    sizes = Sizes()
    with jax.enable_x64(True), select_implementation(implementation, monkeypatch) as chosen:
        variant, oracle = ALL_FORMS[name](sizes, "float64")
        arrays, restrictions = inputs(sizes), every_restriction(sizes)
        attended = run_attention(
            variant,
            *arrays,
            **restrictions,
            implementation=chosen,
            dropout_rate=0.25,
            dropout_key=jax.random.key(3),
        )
        kept = kept_by_dropout(3, 0.25, sizes)
        expected = run_oracle(oracle, arrays, restrictions, kept=kept, dropout_rate=0.25)
    assert_matches(attended, expected, "float64")


def no_restriction(sizes: Sizes) -> dict:
    return {}


GROUPED = Sizes(heads=4, key_heads=2)
BLOCKS = "xla in recomputed blocks"
# Implementation, sizes and restrictions. Blocks divide the queries, so that the number of keys and
# of heads does not matter to them.
CALLS = {
    **{size: ("xla", sizes, every_restriction) for size, sizes in SIZES.items()},
    "one of each in blocks": (BLOCKS, SIZES["one of each"], every_restriction),
    "more queries than keys in blocks": (
        BLOCKS,
        SIZES["more queries than keys"],
        every_restriction,
    ),
    "no restriction": ("xla", Sizes(), no_restriction),
    # The causal mask of the other cases hides all keys after the query from the reference.
    "no restriction, reference": ("reference", Sizes(), no_restriction),
    "packed": ("xla", GROUPED, packed_sequences),
    "packed, reference": ("reference", GROUPED, packed_sequences),
    "packed, in blocks": (BLOCKS, GROUPED, packed_sequences),
}


@pytest.mark.parametrize(("implementation", "sizes", "restrict"), CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("name", VARIANTS)
def test_variants_match_their_oracles(name, implementation, sizes, restrict, monkeypatch):
    with jax.enable_x64(True), select_implementation(implementation, monkeypatch) as chosen:
        variant, oracle = VARIANTS[name](sizes, "float64")
        arrays, restrictions = inputs(sizes), restrict(sizes)
        attended = run_attention(variant, *arrays, **restrictions, implementation=chosen)
        expected = run_oracle(oracle, arrays, restrictions)
    assert_matches(attended, expected, "float64")


@pytest.mark.parametrize(
    ("name", "dtype", "implementation"),
    [(name, dtype, "xla") for name in VARIANTS for dtype in ("float32", "bfloat16")]
    + [(name, "bfloat16", "reference") for name in VARIANTS]
    + [(name, "float16", "xla") for name in ("distance_aware", "relative_position")],
)
def test_low_precision_inputs_match_the_oracles_and_keep_their_dtype(name, dtype, implementation):
    sizes = Sizes()
    variant, oracle = VARIANTS[name](sizes, "float32")
    arrays, restrictions = inputs(sizes, dtype), every_restriction(sizes)
    attended = run_attention(variant, *arrays, **restrictions, implementation=implementation)
    assert [x.dtype for x in attended] == [jnp.dtype(dtype), *[jnp.float32] * 3]
    assert_matches(attended, run_oracle(oracle, arrays, restrictions), dtype)


@pytest.mark.parametrize("name", VARIANTS)
def test_gradients_of_all_outputs_match_finite_differences(name, monkeypatch):
    """Check "xla" by finite differences in both modes, and the other implementations by "xla"."""
    sizes = Sizes(queries=3, keys=4, heads=2)
    with jax.enable_x64(True):
        variant, _ = VARIANTS[name](sizes, "float64")
        arguments = (*inputs(sizes), variant)
        restrictions = every_restriction(sizes)
        options = {"received": True, "weights": True, "logsumexp": True, "dropout_rate": 0.3}

        def outputs(*arguments, implementation):
            key = jax.random.key(3)
            return attention(
                *arguments,
                **restrictions,
                **options,
                dropout_key=key,
                implementation=implementation,
            )

        by_xla = jax.jit(functools.partial(outputs, implementation="xla"))
        check_grads(by_xla, arguments, order=1, atol=1e-6, rtol=1e-6)

        def gradients(implementation):
            attended, pull = jax.vjp(
                functools.partial(outputs, implementation=implementation), *arguments
            )
            return pull(jax.tree.map(jnp.sin, attended))

        expected = jax.jit(gradients, static_argnums=0)("xla")
        for other in ("reference", "xla in recomputed blocks"):
            with select_implementation(other, monkeypatch) as chosen:
                actual = jax.jit(lambda chosen=chosen: gradients(chosen))()
            chex.assert_trees_all_close(actual, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("names", OTHER_FORMS.values(), ids=OTHER_FORMS)
def test_gradients_of_other_forms_match_finite_differences(names):
    sizes = Sizes(queries=3, keys=4, heads=2)
    with jax.enable_x64(True):
        variants = {name: ALL_FORMS[name](sizes, "float64").variant for name in names}
        untrained = {name: {"shape": variants[name].shape} for name in names if "clip" in name}

        @jax.jit
        def outputs(query, key, value, variants):
            return {
                name: attention(
                    query,
                    key,
                    value,
                    dataclasses.replace(variant, **untrained.get(name, {})),
                    received=True,
                    implementation="xla",
                )
                for name, variant in variants.items()
            }

        arguments = (*inputs(sizes), variants)
        check_grads(outputs, arguments, order=1, modes=["rev"], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", ["distance_aware", "relative_position"])
def test_jit_does_not_change_the_outputs(name):
    sizes = Sizes()
    variant, _ = VARIANTS[name](sizes, "float32")
    arrays = inputs(sizes, "float32")
    eager = attention(*arrays, variant, received=True, weights=True, logsumexp=True)
    chex.assert_trees_all_close(run_attention(variant, *arrays), eager, rtol=1e-5, atol=1e-6)
