"""Relations, position vectors and tables in the fused kernels, against oracles and reference."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from distattn_jax.attention import (
    DistanceAware,
    DistanceBias,
    RelativePosition,
    TwoSided,
    attention,
    early_add,
)
from distattn_jax.attention.fused import derivative, small_scores
from distattn_jax.attention.fused.derivative import Outputs
from distattn_jax.attention.fused.gpu import kernels as gpu_kernels
from distattn_jax.attention.fused.gpu import tile_configs
from tests import oracles
from tests.attention.cases import (
    Sizes,
    inputs,
    needs_kernels,
    random_arrays,
    relative_position,
    t5_bias,
    transformer_xl,
)
from tests.attention.test_fused import (
    RESTRICTIONS,
    assert_close,
    assert_zero_where_masked,
    compare_with_reference,
    inputs_with_large_padding,
    kernels,  # noqa: F401, an autouse fixture that interprets the kernels
    make_mask,
    outputs_and_gradients,
    run_oracle,
    tile_sizes,  # noqa: F401
)
from tests.evaluation import evaluate

pytestmark = needs_kernels
DROPOUT = {"dropout_rate": 0.25, "dropout_key": jax.random.key(3)}


@pytest.mark.parametrize("make_case", [functools.partial(relative_position, k=20), transformer_xl])
def test_memory_with_lengths_offsets_and_a_causal_mask(make_case):
    sizes = Sizes(batch=2, queries=70, keys=150, heads=1, width=16, value_width=16)
    arrays = inputs(sizes, "float16")
    variant, oracle = make_case(sizes, "float32")
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


def test_position_vectors_with_every_mask_dropout_and_grouped_queries():
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
        **DROPOUT,
    )


def test_position_vectors_of_wide_heads_with_a_mask_of_keys_and_one_query():
    sizes = Sizes(batch=2, queries=1, keys=17, heads=1, width=72, value_width=16)
    variant, _ = transformer_xl(sizes, "float32")
    mask = np.random.default_rng(0).random((2, 1, 1, 17)) < 0.7
    compare_with_reference(inputs(sizes, "float16"), variant, mask=mask)


def test_blocks_of_position_vectors_wait_for_a_free_slot():
    """There are more tiles than slots in the ring buffer of the position vectors."""
    sizes = Sizes(batch=1, queries=64, keys=900, heads=1, width=16, value_width=16)
    variant, _ = transformer_xl(sizes, "float32")
    values = [
        evaluate(
            functools.partial(attention, implementation=name), *inputs(sizes, dtype), variant
        ).values
        for name, dtype in (("pallas", "float16"), ("reference", "float32"))
    ]
    assert_close({"values": values[0]}, {"values": values[1]}, "float16")


def test_relations_in_far_tiles_on_both_sides_with_dropout_and_grouped_queries(monkeypatch):
    """Tiles have few columns. Heads share one of two tables, which differ in their relations."""
    configs = tile_configs.TileConfigs(*[tile_configs.TileConfig(rows=64, columns=32)] * 5)
    form = gpu_kernels.HOPPER._replace(select_tile_configs=lambda plan, operands: configs)
    monkeypatch.setattr(gpu_kernels, "HOPPER", form)
    jax.clear_caches()  # compiled programs contain the tile sizes
    sizes = Sizes(batch=1, queries=70, keys=230, heads=2, width=16, value_width=16, key_heads=1)
    variant = RelativePosition(*random_arrays(2, (1, 7, 16), (2, 11, 16), dtype="float32"))
    arrays = inputs(sizes, "float16")
    compare_with_reference(arrays, variant, query_offset=40, logsumexp=True, **DROPOUT)
    jax.clear_caches()


def test_one_thread_block_multiplies_the_tables_of_three_heads():
    """The third table replaces the first in shared memory, which has place for two."""
    sizes = Sizes(batch=1, queries=20, keys=20, heads=3, width=16, value_width=16)
    variant, _ = relative_position(sizes, "float32", k=33)
    compare_with_reference(inputs(sizes, "bfloat16"), variant)


SMALL = Sizes(batch=2, queries=17, keys=30, heads=1, width=16, value_width=12)
MASK = jnp.asarray(np.random.default_rng(0).random((2, 1, 17, 30)) < 0.7)
ONE_TABLE = {
    "values, k = 0": (functools.partial(relative_position, k=0, keys=None), {"mask": MASK}),
    "keys, k is larger than the length": (
        functools.partial(relative_position, k=40, values=None),
        {"mask": MASK[:, :, :1], "is_causal": True, "query_offset": 5},
    ),
    "buckets of T5": (t5_bias, {"query_offset": 8, "scale": 0.5}),
}


@pytest.mark.parametrize(("make_case", "arguments"), ONE_TABLE.values(), ids=ONE_TABLE)
def test_one_table_of_relations(make_case, arguments):
    variant, oracle = make_case(SMALL, "float32")
    arrays = inputs(SMALL, "float16")
    fused = compare_with_reference(arrays, variant, **arguments)
    expected = run_oracle(oracle, arrays, **arguments)
    assert_close(fused, {"values": expected["values"]}, "float16")


def attend_without_kernels(make_kernels, plan, operands):
    """Compute the values in plain JAX, which runs on any mesh."""
    (B, T, N, _), S, k = operands.query.shape, operands.key.shape[1], plan.scoring.clip_distance
    distance = jnp.arange(T)[:, None] - jnp.arange(S)[None, :]
    is_relation = jax.nn.one_hot(k - jnp.clip(distance, -k, k), 2 * k + 1)
    query, key, value = (x.astype(jnp.float32) for x in operands[:3])
    products = jnp.einsum("btnh,bsnh->bnts", query, key)
    if operands.positions is None:
        # The table has no vector for relation 0: it is 0.
        products += jnp.einsum(
            "btnh,nrh,tsr->bnts", query, operands.key_table, is_relation[..., 1:]
        )
    else:
        positions = jnp.broadcast_to(operands.positions, (B, *operands.positions.shape[1:]))
        arrays = operands.position_query, positions[:, distance + S]
        products += jnp.einsum("btnh,btsnh->bnts", *(x.astype(jnp.float32) for x in arrays))
    weights = jax.nn.softmax(plan.scoring.scale * products)
    values = jnp.einsum("bnts,bsne->btne", weights, value)
    if operands.positions is None:
        table = jnp.broadcast_to(operands.value_table, (N, *operands.value_table.shape[1:]))
        values += jnp.einsum("bnts,tsr,nre->btne", weights, is_relation, table)
    return Outputs(values.astype(operands.value.dtype), None, None), None


# Each head has a table of keys, and all heads share a table of values.
SHARED = {
    "relations": functools.partial(relative_position, values="shared"),
    "position vectors": functools.partial(transformer_xl, shared=True),
}


@pytest.mark.usefixtures("eight_devices")
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("name", SHARED)
def test_eight_devices_that_share_examples_and_heads_equal_one(name, kind, monkeypatch):
    monkeypatch.setattr(derivative, "_attend", attend_without_kernels)
    sizes = Sizes(batch=4, queries=24, keys=24, heads=2, width=16, value_width=16)
    arrays, (variant, _) = inputs(sizes, "float16"), SHARED[name](sizes, "float32")
    expected = outputs_and_gradients("reference", arrays, variant)
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(kind, kind))

    def put(x, *axes):
        return jax.device_put(x, NamedSharding(mesh, PartitionSpec(*axes)))

    def put_leaf(leaf):
        return put(leaf, "model") if name == "relations" and leaf.shape[0] > 1 else put(leaf)

    arrays = [put(x, "data", None, "model") for x in arrays]
    variant = jax.tree.map(put_leaf, variant)
    actual = jax.jit(lambda *x: outputs_and_gradients("pallas", *x))(arrays, variant)
    assert_close(actual, expected, "float16")


def test_a_bias_under_every_restriction():
    sizes = Sizes(batch=3, queries=140, keys=150, heads=1, width=16, value_width=16)
    arrays = inputs_with_large_padding(sizes, "float16")
    parameters = jnp.asarray([1.3]), jnp.asarray([0.2])
    fused = compare_with_reference(
        arrays,
        DistanceBias(parameters, "kerple_log"),
        logsumexp=True,
        **RESTRICTIONS,
    )
    oracle = oracles.distance_bias(oracles.kerple_log, *parameters)
    expected = run_oracle(oracle, arrays, **RESTRICTIONS)
    assert_close(fused, {"values": expected["values"]}, "float16")
    assert_zero_where_masked(fused, sizes)


def hump(x, shape):
    """Bell curve with a center and a width, plus a constant."""
    center, width = shape["bell"]
    return jnp.exp(-(((x - center) / width) ** 2)) + shape["constant"]


BELL = jnp.asarray([[0.5, 2.0], [1.5, 0.7]])  # center and width of each head
HUMP = DistanceAware(
    jnp.asarray([0.02, -0.03]),
    {"bell": BELL, "constant": jnp.asarray([0.1])},  # The heads share the constant.
    hump,
)


@pytest.mark.usefixtures("tile_sizes")
@pytest.mark.parametrize("tile_sizes", ["long"], indirect=True)
def test_any_mapping_with_dropout_and_grouped_queries():
    sizes = Sizes(batch=1, queries=140, keys=70, heads=2, width=16, value_width=16, key_heads=1)
    compare_with_reference(
        inputs(sizes, "float16"),
        HUMP,
        query_offset=-20,
        **DROPOUT,
    )


def bell(x, shape):
    return shape * jnp.exp(-(x**2))


def test_a_head_skips_the_tiles_where_its_mapping_is_small():
    """The first head skips tiles. The second head falls too slowly."""
    sizes = Sizes(batch=1, queries=70, keys=256, heads=2, width=16, value_width=16)
    weight, height = jnp.asarray([0.1, 0.002]), jnp.asarray([1.2, 0.7])
    variant = DistanceAware(weight, height, bell, tolerance=2.0**-10)
    # Under dropout, the skipped tiles are visited where the values are multiplied.
    compare_with_reference(inputs(sizes, "float16"), variant, query_offset=-60, **DROPOUT)


def test_kernels_do_not_read_tiles_of_keys_that_every_query_forgets():
    """Keys before and after a query have different functions. The values of the tiles are NaN."""
    sizes = Sizes(batch=1, queries=70, keys=256, heads=2, width=16, value_width=16, key_heads=1)
    weight, shape = jnp.asarray([[-0.05, 0.1], [0.02, -0.03]]), jnp.asarray([[0.3, -0.5]])
    slopes = jnp.asarray([[0.5, 0.25], [1.0, 0.02]])
    variant = TwoSided(weight, shape, (slopes,), ("alibi",), tolerance=2.0**-10)
    query, key, value = inputs(sizes, "float16")

    def run(implementation, number):
        program = functools.partial(
            outputs_and_gradients,
            implementation,
            query_offset=186,
            query_lengths=jnp.asarray([60]),
            key_lengths=jnp.asarray([250]),
            received=True,
        )
        return evaluate(program, (query, key, value.at[:, :128].set(number)), variant)

    fused = run("pallas", jnp.nan)
    assert_close(fused, run("reference", 0), "float16")
    assert not fused["dk"][:, :128].any()


def power(distance, parameters):
    """Bias without parameters that overflows in float32 from distance 4 on."""
    return 10.0 ** (10 * distance)


FORWARD = {
    "f is added": (dataclasses.replace(HUMP, adjust=early_add), (20, 30)),
    "f overflows at distances of the padding": (DistanceBias((), power), (3, 1)),
}


@pytest.mark.parametrize(("variant", "lengths"), FORWARD.values(), ids=FORWARD)
def test_values_equal_those_of_the_reference(variant, lengths):
    arrays = inputs(Sizes(1, *lengths, heads=2, width=16, value_width=16), "float16")
    fused, exact = (
        evaluate(functools.partial(attention, implementation=name), *arrays, variant).values
        for name in ("pallas", "reference")
    )
    assert_close({"values": fused}, {"values": exact}, "float16")


def cosines(distance, parameters):
    """Bias with 12 parameters per head."""
    return sum(parameters[i] * jnp.cos(i * distance / 20) for i in range(12))


def test_a_bias_with_twelve_parameters_in_several_blocks_of_a_head(monkeypatch):
    """One processor computes all blocks of a head, and adds to the same sums along diagonals."""
    monkeypatch.setattr(tile_configs, "count_processors", lambda: 1)
    jax.clear_caches()  # compiled programs contain the order of the blocks
    sizes = Sizes(batch=2, queries=270, keys=70, heads=1, width=16, value_width=16)
    (parameters,) = random_arrays(4, (1, 12), dtype="float32")
    variant = DistanceBias(parameters, cosines)
    compare_with_reference(inputs(sizes, "float16"), variant, query_offset=jnp.asarray([-50, 3]))
    jax.clear_caches()


def test_the_gradient_of_a_bias_that_is_nearly_constant():
    """Rounding the output to 16 bits changes it by less than the error of its own gradient."""
    sizes = Sizes(batch=3, queries=40, keys=30, heads=2, width=16, value_width=16)
    variant = DistanceBias(
        jnp.asarray([0.3, -0.5]), lambda distance, height: height * jnp.cos(distance / 200)
    )
    lengths = {"query_lengths": jnp.asarray([40, 9, 33]), "key_lengths": jnp.asarray([30, 0, 21])}
    compare_with_reference(inputs(sizes, "bfloat16"), variant, ["d.parameters"], **lengths)
    compare_with_reference(inputs(sizes, "bfloat16"), variant, logsumexp=True, **lengths)


# The factor of the first head falls to 0 on both sides. That of the second falls after the query.
FALLING = TwoSided(
    *jnp.asarray([[[-0.4, -0.3], [0.2, -0.5]], [[0.3, 0.2], [0.1, 0.2]]]),
    (
        jnp.asarray([[0.5, -0.3], [0.2, 0.4]]),
        (jnp.asarray([[1.0, 0.7], [1.2, 0.9]]), jnp.asarray([[0.1, 0.3], [0.2, 0.1]])),
    ),
    ("constant", "kerple_log"),
    tolerance=2.0**-10,
)
ZERO_PRODUCTS = {
    "all outputs": {"received": True, "logsumexp": True, "key_lengths": jnp.asarray([310])},
    "window and mask of keys": {"local_window_size": (150, 190), "mask": make_mask(1, 2, 1, 320)},
    "segments and dropout": {
        "query_segments": jnp.arange(120, 190)[None] // 150,
        "key_segments": jnp.arange(320)[None] // 150,
        **DROPOUT,
    },
}


@pytest.mark.parametrize("name", ZERO_PRODUCTS)
def test_scores_are_the_bias_where_the_factor_falls_to_zero(name, monkeypatch):
    """The scores of all heads are small, so that their softmax needs no maximum."""
    monkeypatch.setattr(small_scores, "MIN_LENGTH", 1)
    sizes = Sizes(batch=1, queries=70, keys=320, heads=2, width=16, value_width=16, key_heads=1)
    arguments = {"query_offset": 120, **ZERO_PRODUCTS[name]}
    compare_with_reference(inputs(sizes, "bfloat16"), FALLING, **arguments)


def test_scores_are_a_large_bias_where_the_factor_falls_to_zero():
    """In float16, the softmax needs a maximum. The first tile has the largest scores of a query."""
    sizes = Sizes(batch=1, queries=70, keys=320, heads=2, width=16, value_width=16)
    biases = jnp.asarray([[-30.0, -31.0], [40.0, 41.0]]), jnp.asarray([[-0.01, 0.01], [0.0, -0.01]])
    variant = TwoSided(
        2 * FALLING.weight, FALLING.shape, biases, ("constant", "alibi"), tolerance=1e-5
    )
    mask = make_mask(1, 1, 70, 320)
    compare_with_reference(inputs(sizes, "float16"), variant, query_offset=120, mask=mask)


def test_heads_with_different_work_share_thread_blocks(monkeypatch):
    """Three blocks of queries have four thread blocks for the two heads."""
    monkeypatch.setattr(tile_configs, "count_processors", lambda: 4)
    jax.clear_caches()  # compiled programs contain the order of the blocks
    sizes = Sizes(batch=1, queries=270, keys=250, heads=2, width=16, value_width=16)
    compare_with_reference(inputs(sizes, "float16"), FALLING, is_causal=True)
    jax.clear_caches()
