"""Transformer-XL attention with the fused kernels, against the oracle and the reference."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from distattn_jax.attention.fused import derivative
from distattn_jax.attention.fused.derivative import Outputs
from tests.attention.cases import Sizes, inputs, needs_kernels, transformer_xl
from tests.attention.test_fused import (
    compare_under_memory,
    compare_with_eight_devices,
    compare_with_reference,
    kernels,  # noqa: F401, an autouse fixture that interprets the kernels
)

pytestmark = needs_kernels


def test_memory_with_lengths_offsets_and_a_causal_mask():
    compare_under_memory(transformer_xl)


def test_every_mask_with_dropout_grouped_queries_and_shared_biases():
    """There are more queries than keys, and queries and keys are packed alike."""
    sizes = Sizes(batch=1, queries=150, keys=70, heads=2, width=16, value_width=12, key_heads=1)
    variant, _ = transformer_xl(sizes, "float32", shared=True)
    compare_with_reference(
        inputs(sizes, "float16"),
        variant,
        mask=np.random.default_rng(0).random((1, 2, 150, 70)) < 0.8,
        query_segments=(jnp.arange(150)[None] - 40) // 30,
        key_segments=jnp.arange(70)[None] // 30,
        local_window_size=(25, 20),
        query_offset=-40,
        dropout_rate=0.25,
        dropout_key=jax.random.key(3),
    )


def test_wide_heads_with_a_mask_of_keys_and_one_query():
    sizes = Sizes(batch=2, queries=1, keys=17, heads=1, width=72, value_width=16)
    variant, _ = transformer_xl(sizes, "float32")
    mask = np.random.default_rng(0).random((2, 1, 1, 17)) < 0.7
    compare_with_reference(inputs(sizes, "float16"), variant, mask=mask)


def attend_without_kernels(make_kernels, plan, operands):
    """Compute values in plain JAX, which runs on any mesh."""
    (B, T, N, _), S = operands.query.shape, operands.key.shape[1]
    arrays = (*operands[:3], operands.position_query, operands.positions)
    query, key, value, position_query, positions = (x.astype(jnp.float32) for x in arrays)
    diagonal = jnp.arange(T)[:, None] - jnp.arange(S)[None, :] + S
    positions = jnp.broadcast_to(positions, (B, positions.shape[1], N, positions.shape[3]))
    products = jnp.einsum("btnh,bsnh->bnts", query, key)
    products += jnp.einsum("btnh,btsnh->bnts", position_query, positions[:, diagonal])
    weights = jax.nn.softmax(plan.scoring.scale * products)
    values = jnp.einsum("bnts,bsne->btne", weights, value).astype(operands.value.dtype)
    return Outputs(values, None, None), None


@pytest.mark.usefixtures("eight_devices")
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_eight_devices_compute_the_gradient_of_the_projection(kind, monkeypatch):
    """All examples share the position vectors, and each head has its own."""
    monkeypatch.setattr(derivative, "_attend", attend_without_kernels)
    sizes = Sizes(batch=4, queries=24, keys=24, heads=2, width=16, value_width=16)
    variant, _ = transformer_xl(sizes, "float32", shared=True)
    compare_with_eight_devices(sizes, variant, kind, is_sharded=lambda leaf: False)
