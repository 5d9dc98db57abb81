"""Calls that the fused kernels do not support: the error names the reason, None falls back."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import pytest

from distattn_jax.attention import (
    Adapted,
    DistanceAware,
    DistanceBias,
    DotProduct,
    RelativePosition,
    T5Buckets,
    TransformerXL,
    attention,
    devices,
    fused_kernels,
)
from distattn_jax.attention.fused.variants import transformer_xl
from distattn_jax.attention.variants import late_multiply
from distattn_jax.attention.variants.variant import variant
from tests.attention.cases import Sizes, inputs

DISTANCE_AWARE = DistanceAware(jnp.ones(3), jnp.ones(3))


def polynomial(x, shape):
    return jnp.polyval(shape, x)


@variant
class Widened(Adapted):
    """Adapted attention that does not tell that most columns of its keys are constants."""

    appends_constants = False


UNSUPPORTED = {
    "heads written as dot-product attention must be at most 128 wide; got 144": {
        "variant": Widened(jnp.ones((1, 72)), jnp.ones((3, 72))),
        "width": 72,
    },
    "adjust must be early": {"variant": dataclasses.replace(DISTANCE_AWARE, adjust=late_multiply)},
    "must have at most 4 parameters per head; got 6": {
        "variant": DistanceAware(jnp.ones(3), jnp.ones((3, 5)), polynomial)
    },
    "relations must be clipped at most at 128; got 200": {
        "variant": DistanceBias(jnp.ones((3, 32)), T5Buckets(max_distance=200))
    },
    "relations must be clipped at most at 128; got 129": {
        "variant": RelativePosition(jnp.ones((1, 259, 4)))
    },
    "weights must be False": {"weights": True},
    "must all be bfloat16 or float16; got ['float32']": {"dtype": "float32"},
    "must all be bfloat16 or float16; got ['bfloat16', 'float16']": {"key_dtype": "float16"},
    "heads must be at most 128 wide; got 136": {"width": 136},
    "it needs JAX 99.0 or newer; this is": {"oldest_jax": (99, 0)},
    "it needs Hopper GPUs, compute capability 9; got [7.5]": {"capabilities": [7.5]},
}


UNSUPPORTED_ON_TPU = {
    "(T + S) x width must be at most 10; got 12 x 4": {
        "variant": TransformerXL(jnp.ones((3, 6, 4)), jnp.ones((1, 4)), jnp.ones((1, 4))),
        "largest_positions": 10,
    },
    "must all be bfloat16 or float32; got ['float16']": {"dtype": "float16"},
    "heads must be at most 256 wide; got 260": {"width": 260},
    "it needs a TPU v5e or newer; got TPU v4": {"tpu_kinds": ["TPU v4"]},
    "float32 inputs need a local TPU": {"dtype": "float32"},
}
CASES = [("cuda", *item) for item in UNSUPPORTED.items()]
CASES += [("tpu", *item) for item in UNSUPPORTED_ON_TPU.items()]


@pytest.mark.parametrize(("platform", "reason", "arguments"), CASES)
def test_the_error_names_the_reason_and_none_falls_back(platform, reason, arguments, monkeypatch):
    monkeypatch.setattr(devices, "local_platform", lambda: platform)
    arguments = dict(arguments)
    sizes = Sizes(width=arguments.pop("width", 4))
    query, key, value = inputs(sizes, arguments.pop("dtype", "bfloat16"))
    key = key.astype(arguments.pop("key_dtype", key.dtype))
    variant = arguments.pop("variant", DotProduct())
    capabilities = arguments.pop("capabilities", [])
    if platform == "cuda":
        monkeypatch.setattr(fused_kernels, "OLDEST_JAX", arguments.pop("oldest_jax", (0, 1)))
    largest_positions = arguments.pop("largest_positions", transformer_xl.LARGEST_POSITIONS)
    monkeypatch.setattr(transformer_xl, "LARGEST_POSITIONS", largest_positions)
    tpu_kinds = arguments.pop("tpu_kinds", [])
    monkeypatch.setattr(devices, "cuda_capabilities", lambda: capabilities)
    monkeypatch.setattr(devices, "tpu_kinds", lambda: tpu_kinds)
    message = f"'pallas' does not support this call: .*{re.escape(reason)}.*Change that"
    with pytest.raises(ValueError, match=message):
        attention(query, key, value, variant, implementation="pallas", **arguments)
    fallback = jax.eval_shape(lambda: attention(query, key, value, variant, **arguments))
    assert fallback.values.shape == (2, 5, 3, 6)


def test_float32_calls_have_forward_mode_derivatives_without_a_tpu():
    query, key, value = inputs(Sizes(), "float32")

    def attend(query):
        return attention(query, key, value, DotProduct()).values

    _, tangent = jax.jvp(attend, (query,), (jnp.ones_like(query),))
    assert tangent.shape == (2, 5, 3, 6)
