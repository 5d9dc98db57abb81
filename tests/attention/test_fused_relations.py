"""Relative position attention with the fused kernels, against the oracle and the reference."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from distattn_jax.attention import RelativePosition
from distattn_jax.attention.fused import derivative
from distattn_jax.attention.fused.derivative import Outputs
from tests.attention.cases import (
    Sizes,
    inputs,
    needs_kernels,
    random_arrays,
    relative_position,
    t5_bias,
)
from tests.attention.test_fused import (
    assert_close,
    compare_under_memory,
    compare_with_eight_devices,
    compare_with_reference,
    kernels,  # noqa: F401, an autouse fixture that interprets the kernels
    run_oracle,
)

pytestmark = needs_kernels


def test_tables_of_keys_and_values_with_lengths_offsets_and_a_causal_mask():
    compare_under_memory(functools.partial(relative_position, k=20))


@pytest.fixture
def small_tiles(monkeypatch):
    """Use tiles with few columns, so that short sequences have far tiles."""
    from distattn_jax.attention.fused.gpu import tile_configs

    configs = tile_configs.TileConfigs(*[tile_configs.TileConfig(rows=64, columns=32)] * 5)
    select = "distattn_jax.attention.fused.gpu.kernels.select_tile_configs"
    monkeypatch.setattr(select, lambda plan, operands: configs)
    jax.clear_caches()  # compiled programs contain the tile sizes
    yield
    jax.clear_caches()


@pytest.mark.usefixtures("small_tiles")
def test_far_tiles_on_both_sides_with_dropout_and_grouped_queries():
    """The two tables have different numbers of relations, and heads share one of them."""
    sizes = Sizes(batch=1, queries=70, keys=230, heads=2, width=16, value_width=16, key_heads=1)
    arrays = inputs(sizes, "float16")
    variant = RelativePosition(*random_arrays(2, (1, 7, 16), (2, 11, 16), dtype="float32"))
    arguments = {"dropout_rate": 0.25, "dropout_key": jax.random.key(3)}
    compare_with_reference(arrays, variant, query_offset=40, logsumexp=True, **arguments)


SMALL = Sizes(batch=2, queries=17, keys=30, heads=1, width=16, value_width=12)
MASK = np.random.default_rng(0).random((2, 1, 17, 30)) < 0.7
ONE_TABLE = {
    "values, k = 0": ({"k": 0, "keys": None}, {"mask": jnp.asarray(MASK)}),
    "keys, k is larger than the length": (
        {"k": 40, "values": None},
        {"mask": jnp.asarray(MASK[:, :, :1]), "is_causal": True, "query_offset": 5},
    ),
}


@pytest.mark.parametrize(("form", "arguments"), ONE_TABLE.values(), ids=ONE_TABLE)
def test_one_table_and_a_mask(form, arguments):
    variant, oracle = relative_position(SMALL, "float32", **form)
    arrays = inputs(SMALL, "float16")
    fused = compare_with_reference(arrays, variant, **arguments)
    expected = run_oracle(oracle, arrays, **arguments)
    assert_close(fused, {"values": expected["values"]}, "float16")


def test_buckets_of_t5():
    variant, oracle = t5_bias(SMALL, "float32")
    arrays = inputs(SMALL, "float16")
    fused = compare_with_reference(arrays, variant, query_offset=8, scale=0.5)
    expected = run_oracle(oracle, arrays, query_offset=8, scale=0.5)
    assert_close(fused, {"values": expected["values"]}, "float16")


def attend_without_kernels(make_kernels, plan, operands):
    """Compute values and relation weights in plain JAX, which runs on any mesh."""
    (_, T, _, _), S, k = operands.query.shape, operands.key.shape[1], plan.scoring.clip_distance
    relation = jnp.clip(jnp.arange(S)[None, :] - jnp.arange(T)[:, None], -k, k) + k
    is_relation = jax.nn.one_hot(relation, 2 * k + 1)
    query, key, value = (x.astype(jnp.float32) for x in operands[:3])
    products = jnp.einsum("btnh,bsnh->bnts", query, key)
    products += jnp.einsum("btnr,tsr->bnts", operands.relation_products, is_relation)
    weights = jax.nn.softmax(plan.scoring.scale * products)
    values = jnp.einsum("bnts,bsne->btne", weights, value).astype(operands.value.dtype)
    return Outputs(values, None, None), jnp.einsum("bnts,tsr->btnr", weights, is_relation)


@pytest.mark.usefixtures("eight_devices")
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_eight_devices_compute_the_gradients_of_both_tables(kind, monkeypatch):
    """Each head has a table of keys, and all heads share a table of values."""
    monkeypatch.setattr(derivative, "_attend", attend_without_kernels)
    sizes = Sizes(batch=4, queries=24, keys=24, heads=2, width=16, value_width=16)
    variant, _ = relative_position(sizes, "float32", values="shared")
    compare_with_eight_devices(sizes, variant, kind, is_sharded=lambda leaf: leaf.shape[0] > 1)
