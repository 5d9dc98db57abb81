"""Calls that an implementation does not support: the error names the reason, None falls back."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import pytest

from distattn_jax.attention import (
    Adapted,
    DistanceAware,
    DotProduct,
    RelativePosition,
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
    "relations must be clipped at most at 128; got 129": {
        "variant": RelativePosition(jnp.ones((1, 259, 4)))
    },
    "weights must be False": {"weights": True},
    "must all be bfloat16 or float16; got ['float32']": {"dtype": "float32"},
    "must all be bfloat16 or float16; got ['bfloat16', 'float16']": {"key_dtype": "float16"},
    "heads must be at most 128 wide; got 136": {"width": 136},
    "it needs JAX 99.0 or newer; this is": {"oldest_jax": (99, 0)},
    "it needs GPUs of compute capability 8.0 or newer; got [9.0, 7.5]": {
        "capabilities": [9.0, 7.5]
    },
}
UNSUPPORTED_BY_PORTABLE_FORM = {
    "must be at most 64 wide on GPUs with 100 KiB of shared memory; got 72": {
        "variant": TransformerXL(jnp.ones((3, 6, 72)), jnp.ones((1, 72)), jnp.ones((1, 72))),
        "width": 72,
        "capabilities": [9.0, 8.9],
    },
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
UNSUPPORTED_BY_CUDNN = {
    "cannot be written as dot-product attention": {"variant": DISTANCE_AWARE},
    "received, weights and logsumexp must be False": {"received": True},
    "dropout_rate must be 0": {"dropout_rate": 0.1, "dropout_key": jax.random.key(0)},
    "mask must be None": {"mask": jnp.ones((1, 1, 5, 7), bool)},
    "query_segments must be None": {
        "query_segments": jnp.zeros((2, 5), int),
        "key_segments": jnp.zeros((2, 7), int),
    },
    "local_window_size must be None": {"local_window_size": 3},
    "query_offset must be 0": {"is_causal": True, "query_offset": 1},
    "must all be bfloat16 or float16": {"dtype": "float32"},
    "at most 128 wide": {"width": 136},
    "got 144, values 6": {
        "width": 72,
        "variant": Adapted(jnp.ones((1, 72)), jnp.ones((3, 72))),
    },
    "no CUDA device": {"capabilities": []},
}
CASES = [
    *(("pallas", "cuda", *item) for item in UNSUPPORTED.items()),
    *(
        ("pallas_portable", "cuda", *item)
        for item in (UNSUPPORTED | UNSUPPORTED_BY_PORTABLE_FORM).items()
    ),
    *(("pallas", "tpu", *item) for item in UNSUPPORTED_ON_TPU.items()),
    *(
        ("cudnn", "cpu", reason, {"capabilities": [8.0], **arguments})
        for reason, arguments in UNSUPPORTED_BY_CUDNN.items()
    ),
]
DEFAULTS = {
    "variant": DotProduct(),
    "width": 4,
    "dtype": "bfloat16",
    "key_dtype": None,
    "oldest_jax": (0, 1),
    "capabilities": [],
    "tpu_kinds": [],
    "largest_positions": transformer_xl.LARGEST_POSITIONS,
}


@pytest.mark.parametrize(("implementation", "platform", "reason", "arguments"), CASES)
def test_the_error_names_the_reason_and_none_falls_back(
    implementation, platform, reason, arguments, monkeypatch
):
    call = DEFAULTS | arguments
    machine = devices.local_machine()._replace(
        platform=platform, cuda_capabilities=call["capabilities"], tpu_kinds=call["tpu_kinds"]
    )
    monkeypatch.setattr(transformer_xl, "LARGEST_POSITIONS", call["largest_positions"])
    if platform == "cuda":
        monkeypatch.setattr(fused_kernels, "OLDEST_JAX", call["oldest_jax"])
    query, key, value = inputs(Sizes(width=call["width"]), call["dtype"])
    qkv = query, key.astype(call["key_dtype"] or key.dtype), value
    variant, options = call["variant"], {k: v for k, v in arguments.items() if k not in DEFAULTS}
    message = f"{implementation!r} does not support this call: .*{re.escape(reason)}.*Change that"
    with devices.assumed(machine):
        with pytest.raises(ValueError, match=message):
            attention(*qkv, variant, implementation=implementation, **options)
        fallback = jax.eval_shape(lambda: attention(*qkv, variant, **options))
    assert fallback.values.shape == (2, 5, 3, 6)


def test_float32_calls_have_forward_mode_derivatives_without_a_tpu():
    query, key, value = inputs(Sizes(), "float32")

    def attend(query):
        return attention(query, key, value, DotProduct()).values

    _, tangent = jax.jvp(attend, (query,), (jnp.ones_like(query),))
    assert tangent.shape == (2, 5, 3, 6)
