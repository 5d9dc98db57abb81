"""Portable form of the fused GPU kernels against the reference: values and gradients.

Without a GPU, the kernels run in the Pallas interpreter, where `jnp.dot` replaces `mma.sync`, and
copies are complete at once. The interpreter detects wrong tiles, wrong slots of ring buffers, and
copies to slots that are still read. It cannot detect a wrong address, a wrong register, or that a
wait before a read is missing.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from distattn_jax.attention import Adapted, DistanceAware, DistanceBias, DotProduct
from tests.attention.cases import Sizes, inputs, needs_kernels
from tests.attention.test_fused import (
    assert_close,
    kernels,  # noqa: F401, an autouse fixture that interprets the kernels
    outputs_and_gradients,
)
from tests.attention.test_fused_variants import relative_position, transformer_xl
from tests.evaluation import evaluate

pytestmark = needs_kernels
LOCAL_AND_DISTANT = jnp.asarray([-0.5, 0.5]), jnp.asarray([1.0, -0.5])  # w and v of two heads
SEGMENTS = np.repeat([0, 1, 2], [20, 60, 16])[None]
MASK = np.random.default_rng(0).random((1, 1, 70, 140)) < 0.7


def one_head(**sizes):
    return Sizes(**{"batch": 1, "heads": 1, "width": 16, "value_width": 16} | sizes)


CASES = {
    "dot product": (
        one_head(queries=70, keys=140, value_width=32),
        lambda sizes: DotProduct(),
        {"received": True, "logsumexp": True, "mask": MASK},
    ),
    "distances of packed sequences with dropout": (
        one_head(queries=96, keys=96, heads=2, key_heads=1),
        lambda sizes: DistanceAware(*LOCAL_AND_DISTANT),
        {
            "query_segments": SEGMENTS,
            "key_segments": SEGMENTS,
            "dropout_rate": 0.2,
            "dropout_key": jax.random.key(0),
        },
    ),
    "tables of relations": (
        one_head(queries=70, keys=140),
        lambda sizes: relative_position(sizes, "float32", k=5)[0],
        {"is_causal": True, "query_offset": 70},
    ),
    "very wide keys": (
        one_head(queries=40, keys=24, width=72),
        lambda sizes: Adapted(jnp.full((1, 72), 0.2), jnp.full((1, 72), 0.1)),
        {"query_offset": -8},
    ),
    "position vectors": (
        one_head(queries=70, keys=140),
        lambda sizes: transformer_xl(sizes, "float32")[0],
        {},
    ),
    "a table by distance": (
        one_head(queries=70, keys=130),
        lambda sizes: DistanceBias((jnp.full(1, 0.5), jnp.full(1, 0.3)), "kerple_log"),
        {"query_offset": 60},
    ),
}


@pytest.mark.parametrize(("sizes", "make_variant", "arguments"), CASES.values(), ids=CASES)
def test_the_portable_form_agrees_with_the_reference(sizes, make_variant, arguments):
    arrays, variant = inputs(sizes, "float16"), make_variant(sizes)
    exact = [x.astype(jnp.float32) for x in arrays]
    actual, expected = (
        evaluate(functools.partial(outputs_and_gradients, name, **arguments), x, variant)
        for name, x in (("pallas_portable", arrays), ("reference", exact))
    )
    assert_close(actual, expected, "float16")
