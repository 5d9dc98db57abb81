"""Attention on eight devices, with batch and heads sharded, equals attention on one device."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from distattn_jax.attention import attention
from tests.attention.cases import VARIANTS, Sizes, inputs, select_implementation

pytestmark = pytest.mark.usefixtures("eight_devices")
SIZES = Sizes(batch=4, heads=4)
SPEC = PartitionSpec("data", None, "model", None)
RESTRICTIONS = {
    "mask": jnp.asarray(np.random.default_rng(0).random((1, 1, 5, 7)) < 0.8),
    "key_lengths": jnp.asarray([7, 3, 0, 6]),
    "query_lengths": jnp.asarray([5, 5, 2, 4]),
    "query_offset": jnp.asarray([0, 2, 1, -1]),
    "dropout_key": jax.random.key(0),
}
OPTIONS = {"is_causal": True, "received": True, "weights": True}


def make_mesh(kind):
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=(kind, kind))


def shard(mesh, arrays, specs=(SPEC, SPEC, SPEC)):
    """Put each array on the devices of the mesh."""
    shardings = [NamedSharding(mesh, spec) for spec in specs]
    return jax.device_put(arrays, shardings)


@pytest.mark.parametrize(
    ("name", "blocks", "kind"),
    [(name, name == "distance_aware", AxisType.Explicit) for name in VARIANTS]
    + [("transformer_xl", True, AxisType.Auto)],
)
def test_eight_devices_equal_one_device(name, blocks, kind, monkeypatch):
    # Dropout does not depend on the variant.
    options = OPTIONS | {"dropout_rate": 0.2 if name == "dot_product" else 0.0}
    variant, _ = VARIANTS[name](SIZES, "float32")
    qkv = inputs(SIZES, "float32")
    mesh = make_mesh(kind)

    def outputs_and_gradients(query, key, value, variant, restrictions):
        """Return the gradients of a loss that depends on all outputs, and the outputs."""

        def loss(*arrays):
            attended = attention(*arrays, **restrictions, **options)
            return sum(jnp.sin(x).sum() for x in jax.tree.leaves(attended)), attended

        return jax.grad(loss, (0, 1, 2, 3), has_aux=True)(query, key, value, variant)

    with select_implementation("xla in recomputed blocks" if blocks else "xla", monkeypatch):
        expected = jax.jit(outputs_and_gradients)(*qkv, variant, RESTRICTIONS)
        with jax.set_mesh(mesh):
            actual = jax.jit(outputs_and_gradients)(*shard(mesh, qkv), variant, RESTRICTIONS)
    assert len(actual[1].values.sharding.device_set) == 8
    chex.assert_trees_all_close(jax.device_get(actual), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("key_heads", "kind"), [(1, AxisType.Explicit), (2, AxisType.Explicit), (1, AxisType.Auto)]
)
def test_packed_sequences_with_grouped_queries_on_eight_devices(key_heads, kind):
    sizes = SIZES._replace(queries=7, key_heads=key_heads)
    variant, _ = VARIANTS["distance_aware"](sizes, "float32")
    qkv = inputs(sizes, "float32")
    segments = jnp.asarray(np.sort(np.random.default_rng(0).integers(0, 3, (4, 7))))
    call = functools.partial(
        attention, received=True, logsumexp=True, query_segments=segments, key_segments=segments
    )
    mesh = make_mesh(kind)
    with jax.set_mesh(mesh):
        spec = SPEC if key_heads == 2 else PartitionSpec("data")
        actual = jax.jit(call)(*shard(mesh, qkv, (SPEC, spec, spec)), variant)
    chex.assert_trees_all_close(jax.device_get(actual), call(*qkv, variant), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["relative_position", "transformer_xl"])
def test_attention_inside_a_shard_map_equals_attention_outside(name, monkeypatch):
    variant, _ = VARIANTS[name](SIZES, "float32")
    qkv = inputs(SIZES, "float32")
    call = functools.partial(attention, received=True, is_causal=True)
    mesh = make_mesh(AxisType.Auto)
    heads = jax.tree.map(lambda leaf: PartitionSpec("model"), variant)
    with jax.set_mesh(mesh), select_implementation("xla in recomputed blocks", monkeypatch):
        local = jax.shard_map(
            lambda *arrays: call(*arrays)[:2],
            in_specs=(SPEC, SPEC, SPEC, heads),
            out_specs=(SPEC, PartitionSpec("data", "model")),
        )
        actual = jax.jit(local)(*qkv, variant)
    chex.assert_trees_all_close(
        jax.device_get(actual), call(*qkv, variant)[:2], rtol=1e-4, atol=1e-5
    )
