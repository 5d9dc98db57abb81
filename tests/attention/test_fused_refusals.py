"""What keeps the fused kernels from serving a call: the error says what to change."""

import dataclasses
import re

import jax.numpy as jnp
import pytest

from distattn_jax.attention import Adapted, DistanceAware, DotProduct, attention, pallas
from distattn_jax.attention.variants import late_multiply
from tests.attention.cases import Sizes, inputs

DISTANCE_AWARE = DistanceAware(jnp.ones(3), jnp.ones(3))


def own_mapping(x, shape):
    return x


REFUSED = {
    "there is no kernel for Adapted": {"variant": Adapted(jnp.ones((1, 4)), jnp.ones((3, 4)))},
    "adjust must be early": {"variant": dataclasses.replace(DISTANCE_AWARE, adjust=late_multiply)},
    "there is no kernel for the mapping own_mapping": {
        "variant": dataclasses.replace(DISTANCE_AWARE, mapping=own_mapping)
    },
    "weights must be False": {"weights": True},
    "mask must be None (use query_lengths and key_lengths)": {"mask": jnp.ones((5, 7), bool)},
    "must all be bfloat16 or float16; got ['float32']": {"dtype": "float32"},
    "must all be bfloat16 or float16; got ['bfloat16', 'float16']": {"key_dtype": "float16"},
    "heads must be at most 64 wide; got 72": {"width": 72},
    "it needs JAX 99.0 or newer; this is": {},
    "its matrix instructions are those of Hopper": {},
}


@pytest.mark.parametrize(("reason", "asked"), REFUSED.items(), ids=REFUSED)
def test_a_refused_call_says_why_and_none_serves_it_anyway(reason, asked, monkeypatch):
    asked = dict(asked)
    query, key, value = inputs(Sizes(width=asked.pop("width", 4)), asked.pop("dtype", "bfloat16"))
    key = key.astype(asked.pop("key_dtype", key.dtype))
    variant = asked.pop("variant", DotProduct())
    monkeypatch.setattr(pallas, "OLDEST_JAX", (99, 0) if "99.0" in reason else (0, 1))
    monkeypatch.setattr(pallas, "_fits_devices", lambda: "Hopper" not in reason)
    message = f"'pallas' does not support this call: .*{re.escape(reason)}.*Change that"
    with pytest.raises(ValueError, match=message):
        attention(query, key, value, variant, implementation="pallas", **asked)
    assert attention(query, key, value, variant, **asked).values.shape == (2, 5, 3, 6)
