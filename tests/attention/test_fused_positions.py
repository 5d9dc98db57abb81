"""Transformer-XL attention with the fused kernels, against the oracle and the reference."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.attention.cases import Sizes, inputs, needs_kernels, transformer_xl
from tests.attention.test_fused import (
    assert_close,
    compare_with_reference,
    kernels,  # noqa: F401, an autouse fixture that interprets the kernels
    run_oracle,
)

pytestmark = needs_kernels


def test_memory_with_lengths_offsets_and_a_causal_mask():
    sizes = Sizes(batch=2, queries=70, keys=150, heads=1, width=16, value_width=16)
    arrays = inputs(sizes, "float16")
    variant, oracle = transformer_xl(sizes, "float32")
    restrictions = {
        "query_lengths": jnp.asarray([61, 70]),
        "key_lengths": jnp.asarray([150, 133]),
        "query_offset": jnp.asarray([-9, 70]),
        "is_causal": True,
    }
    fused = compare_with_reference(arrays, variant, received=True, logsumexp=True, **restrictions)
    assert_close(fused, run_oracle(oracle, arrays, **restrictions), "float16")
    for name in ("values", "dq"):
        assert not fused[name][0, :9].any(), "the first 9 queries see no key"
        assert not fused[name][0, 61:].any(), "the others are padding"


def test_more_queries_than_keys_with_dropout_grouped_queries_and_shared_vectors():
    sizes = Sizes(batch=1, queries=150, keys=70, heads=2, width=16, value_width=16, key_heads=1)
    variant, _ = transformer_xl(sizes, "float32", shared=True)
    arguments = {"dropout_rate": 0.25, "dropout_key": jax.random.key(3)}
    compare_with_reference(inputs(sizes, "bfloat16"), variant, query_offset=-40, **arguments)


SMALL = Sizes(batch=2, queries=17, keys=30, heads=1, width=16, value_width=12)
MASK = np.random.default_rng(0).random((2, 1, 17, 30)) < 0.7
MASKS = {
    "pairs": {"mask": MASK, "received": True},
    "segments in a window": {
        "query_segments": jnp.arange(17)[None] // 8 + jnp.ones((2, 1), jnp.int32),
        "key_segments": (jnp.arange(30)[None] - 5) // 8 + jnp.ones((2, 1), jnp.int32),
        "query_offset": 5,
        "local_window_size": (9, 3),
        "mask": MASK[:, :, :1],
    },
}


@pytest.mark.parametrize("name", MASKS)
def test_masks(name):
    variant, _ = transformer_xl(SMALL, "float32")
    compare_with_reference(inputs(SMALL, "float16"), variant, **MASKS[name])
