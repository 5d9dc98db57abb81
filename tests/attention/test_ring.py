"""Attention over a sharded sequence equals attention on one device: values and all gradients."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from distattn_jax.attention import (
    Attended,
    DistanceAware,
    DotProduct,
    ShardedSequence,
    Variant,
    attention,
    explain_implementation,
    from_balanced_order,
    to_balanced_order,
    variant,
)
from tests.attention.cases import ALL_FORMS, Sizes, inputs

pytestmark = pytest.mark.usefixtures("eight_devices")
AUTO, EXPLICIT = AxisType.Auto, AxisType.Explicit
LENGTH = 16
SIZES = Sizes(batch=2, queries=LENGTH, keys=LENGTH, heads=4, key_heads=2)
GENERATOR = np.random.default_rng(0)
SEGMENTS = np.sort(GENERATOR.integers(0, 3, (2, LENGTH)))
MASKS = {
    "pairs": GENERATOR.random((1, 2, LENGTH, LENGTH)).repeat(2, axis=1) < 0.8,
    "keys": GENERATOR.random((2, 1, 1, LENGTH)) < 0.6,
    "queries": GENERATOR.random((1, 4, LENGTH, 1)) < 0.6,
}
DROPOUT = {"dropout_rate": 0.3, "dropout_key": jax.random.key(1)}
LENGTHS = {"query_lengths": np.asarray([13, 16]), "key_lengths": np.asarray([5, 11])}
PACKED = {"query_segments": SEGMENTS, "key_segments": SEGMENTS}
# Sizes of the mesh axes "data", "sequence" and "model".
LINE, PLANE, CUBE = (1, 8, 1), (2, 4, 1), (2, 2, 2)
BOTH = {"received": True, "logsumexp": True}

# Name of the variant, sizes and type of the mesh axes, options of the call. In the backward pass,
# the queries travel in the cases with 4 key heads, and the keys in all others.
RING_CASES = {
    "all keys are visible": ("relative_position", CUBE, AUTO, BOTH | DROPOUT),
    "a causal mask with masked pairs": (
        "distance_aware",
        PLANE,
        EXPLICIT,
        {"is_causal": True, "mask": MASKS["pairs"], "logsumexp": True, "key_heads": 4} | LENGTHS,
    ),
    "a window on both sides": (
        "two_sided_bias",
        LINE,
        EXPLICIT,
        {"local_window_size": (3, 2), "mask": MASKS["keys"], "logsumexp": True, "key_heads": 4},
    ),
    "a window before the query": (
        "transformer_xl",
        LINE,
        AUTO,
        {"local_window_size": 5, "is_causal": True} | PACKED,
    ),
    "other keys than queries, and an offset of each example": (
        "distance_bias",
        PLANE,
        AUTO,
        {
            "query_offset": np.asarray([9, -2]),
            "key_lengths": np.asarray([20, 24]),
            "is_causal": True,
            "keys": 24,
        },
    ),
    "queries that see no key": (
        "adapted",
        CUBE,
        EXPLICIT,
        {"mask": MASKS["queries"], "key_lengths": np.asarray([16, 0]), "key_heads": 4} | DROPOUT,
    ),
}
GATHER_CASES = {
    "weights": (
        "dot_product",
        CUBE,
        AUTO,
        {"weights": True, "mask": MASKS["keys"], **BOTH, **LENGTHS, **PACKED, **DROPOUT},
    ),
    "late adjustment": (
        "distance_aware_learnable_sigmoid_late_add",
        PLANE,
        EXPLICIT,
        {"is_causal": True, "received": True},
    ),
}


def make_mesh(sizes, kind):
    return jax.make_mesh(sizes, ("data", "sequence", "model"), axis_types=(kind,) * 3)


def outputs_and_gradients(attend, query, key, value, variant):
    """Return the gradients of a loss that depends on all outputs, and the outputs."""

    def loss(*arrays):
        outputs = attend(*arrays)
        finite = (jnp.where(jnp.isfinite(x), x, 0) for x in jax.tree.leaves(outputs))
        return sum(jnp.sin(x).sum() for x in finite), outputs

    return jax.grad(loss, (0, 1, 2, 3), has_aux=True)(query, key, value, variant)


def run(attend, *arrays):
    return jax.jit(functools.partial(outputs_and_gradients, attend))(*arrays)


def assert_close(actual, expected):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for x, y in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-10, atol=1e-10)


def compare_with_one_device(name, mesh_sizes, kind, options, strategy):
    sizes = SIZES._replace(**{name: options[name] for name in {"keys", "key_heads"} & {*options}})
    options = {name: option for name, option in options.items() if name not in sizes._fields}
    variant, _ = ALL_FORMS[name](sizes, "float64")
    arrays = inputs(sizes)
    expected = run(functools.partial(attention, **options), *arrays, variant)
    mesh = make_mesh(mesh_sizes, kind)
    spec = PartitionSpec("data", "sequence", "model")
    sharded = jax.device_put(arrays, NamedSharding(mesh, spec))
    sequence = ShardedSequence(strategy=strategy)
    actual = run(functools.partial(attention, sequence=sequence, **options), *sharded, variant)
    assert_close(actual, expected)
    assert actual[1].values.sharding.is_equivalent_to(sharded[0].sharding, 4)


@jax.enable_x64(True)
@pytest.mark.parametrize("name", RING_CASES)
def test_a_ring_of_devices_equals_one_device(name):
    compare_with_one_device(*RING_CASES[name], "ring")


@jax.enable_x64(True)
@pytest.mark.parametrize("name", GATHER_CASES)
def test_gathered_keys_equal_one_device(name):
    compare_with_one_device(*GATHER_CASES[name], None)


SHARD_MAP_OPTIONS = {"is_causal": True, "logsumexp": True, "received": True}


@functools.cache
def run_causal_bias_on_one_device():
    variant, _ = ALL_FORMS["distance_bias_alibi"](SIZES, "float64")
    restrictions = {"mask": MASKS["pairs"], "key_lengths": LENGTHS["key_lengths"]}
    attend = functools.partial(attention, **SHARD_MAP_OPTIONS, **restrictions)
    return variant, jax.device_get(run(attend, *inputs(SIZES), variant))


@jax.enable_x64(True)
@pytest.mark.parametrize("strategy", ["ring", "gather"])
def test_shards_of_a_users_shard_map_in_balanced_order(strategy):
    """The user's program names the axis, and stores all arrays in the balanced order."""
    shards = 4
    mesh = jax.make_mesh((2, shards), ("data", "tokens"), axis_types=(AUTO, AUTO))
    rows, columns = PartitionSpec("data", "tokens"), PartitionSpec("data", None, "tokens")
    sequence = ShardedSequence("tokens", order="balanced", strategy=strategy)
    order = np.asarray(to_balanced_order(jnp.arange(LENGTH), shards, axis=0))

    def attend_to_shard(query, key, value, variant, mask, lengths):
        named = SHARD_MAP_OPTIONS | {"key_lengths": lengths, "mask": mask, "sequence": sequence}
        return attention(query, key, value, variant, **named)

    attend_to_shards = jax.shard_map(
        attend_to_shard,
        mesh=mesh,
        in_specs=(
            *(rows, rows, rows, PartitionSpec()),
            *(PartitionSpec(None, None, "tokens"), PartitionSpec("data")),
        ),
        out_specs=Attended(rows, columns, None, columns),
    )

    def attend(query, key, value, variant):
        mask, lengths = MASKS["pairs"][:, :, order][..., order], LENGTHS["key_lengths"]
        return attend_to_shards(query, key, value, variant, jnp.asarray(mask), jnp.asarray(lengths))

    variant, (gradients, outputs) = run_causal_bias_on_one_device()
    balanced = [jnp.asarray(np.asarray(x)[:, order]) for x in inputs(SIZES)]
    actual = run(attend, *balanced, variant)
    expected = (
        (*(x[:, order] for x in gradients[:3]), gradients[3]),
        Attended(
            values=outputs.values[:, order],
            received=outputs.received[:, :, order],
            logsumexp=outputs.logsumexp[:, :, order],
        ),
    )
    assert_close(actual, expected)


def test_the_balanced_order_gives_all_devices_the_same_work():
    shards, length = 8, 256
    positions = jnp.arange(length)
    balanced = to_balanced_order(positions, shards, axis=0)
    np.testing.assert_array_equal(from_balanced_order(balanced, shards, axis=0), positions)
    work = np.asarray(balanced + 1).reshape(shards, -1).sum(axis=1)  # visible keys
    assert work.max() / work.mean() < 1.01
    with pytest.raises(ValueError, match=r"axis 1 must be a multiple of 2 \* shards, 16; got"):
        to_balanced_order(jnp.ones((2, 24)), shards)


def abstract(heads=8, length=32768):
    return jax.ShapeDtypeStruct((1, length, heads, 64), "bfloat16")


# Options of a call with 32,768 tokens on 8 devices, and its plan.
PLANS = {
    "ring over 8 shards, 8 steps: all keys and values would be 64 MiB on each device": {},
    "ring over 8 shards, 8 steps, exchanges chunks for equal work:": {"is_causal": True},
    "ring over 8 shards, 3 steps: the window": {"local_window_size": 4096},
    "ring over 8 shards, 2 steps: the window": {"local_window_size": (4096, 0)},
    "ring over 8 shards, 2 steps:": {"local_window_size": 4096, "is_causal": True},
    "ring over 8 shards, 8 steps:": {"local_window_size": 4096, "query_offset": 1},
    "gather over 8 shards, 1 step: all keys and values are not larger": {"heads": 1},
    "gather over 8 shards, 1 step: all keys and values are small, 8.0 MiB": {"length": 4096},
    "gather over 8 shards, 1 step: the weights": {"weights": True},
    "gather over 8 shards, 1 step: the call": {"sequence": ShardedSequence(strategy="gather")},
}


@pytest.mark.parametrize("text", PLANS)
def test_the_plan_is_explained(text):
    options = dict(PLANS[text])
    query, key = abstract(length=options.get("length", 32768)), None
    key = abstract(options.pop("heads", 8), options.pop("length", 32768))
    with jax.set_mesh(make_mesh(LINE, AUTO)):
        explanation = explain_implementation(query, key, key, DotProduct(), **options)
    assert str(explanation.sequence).startswith(text)
    assert f"sequence: {text}" in str(explanation)


ONES = jnp.ones((1, 16, 2, 4))
LATE = DistanceAware(jnp.ones(2), jnp.ones(2), adjust="late_multiply")
RING = ShardedSequence(strategy="ring")
INVALID = {
    "query must have a length that the 8 shards of the mesh axis 'sequence' divide": {
        "query": ONES[:, :12]
    },
    "key must have a length .* a multiple of 8; got 12. Pad it, and pass key_lengths": {
        "key": ONES[:, :12]
    },
    "shards of the mesh axis 'sequence' divide into two chunks each, a multiple of 16; got 8": {
        "query": ONES[:, :8],
        "sequence": ShardedSequence(order="balanced"),
    },
    "sequence names the mesh axis 'context', but the mesh has the axes": {"sequence": "context"},
    "sequence must be None, the name of a mesh axis, or a ShardedSequence; got 3": {"sequence": 3},
    "strategy='ring' does not support this call, because the weights": {
        "weights": True,
        "sequence": RING,
    },
    "because DistanceAware changes the weights after the softmax": {
        "variant": LATE,
        "sequence": RING,
    },
}


@pytest.mark.parametrize("message", INVALID)
def test_errors_name_the_argument(message):
    arguments = {"query": ONES, "key": ONES, "variant": DotProduct()} | INVALID[message]
    arguments["value"] = arguments["key"]
    with (
        jax.set_mesh(make_mesh(LINE, AUTO)),
        pytest.raises((ValueError, TypeError), match=re.sub(r"\\\.\\\*", ".*", re.escape(message))),
    ):
        jax.eval_shape(functools.partial(attention, **arguments))


def test_shards_in_balanced_order_have_two_chunks():
    sequence = ShardedSequence("sequence", order="balanced")
    shard = PartitionSpec(None, "sequence")
    attend = jax.shard_map(
        lambda x: attention(x, x, x, DotProduct(), sequence=sequence).values,
        mesh=make_mesh(LINE, AUTO),
        in_specs=shard,
        out_specs=shard,
    )
    with pytest.raises(ValueError, match=r"query must have an even length on each device.* got 1"):
        jax.eval_shape(attend, ONES[:, :8])


def test_a_key_must_be_sharded_like_the_query():
    mesh = make_mesh(LINE, EXPLICIT)
    with jax.set_mesh(mesh):
        query = jax.device_put(ONES, NamedSharding(mesh, PartitionSpec(None, "sequence")))
        with pytest.raises(ValueError, match=r"key must be sharded like query, .* over 'sequence'"):
            attention(query, ONES, ONES, DotProduct())
        with pytest.raises(
            ValueError, match=r"\('data',\), but query is sharded over \('sequence'"
        ):
            attention(query, query, query, DotProduct(), sequence="data")


@pytest.mark.parametrize("arguments", [{"order": "striped"}, {"strategy": "ulysses"}])
def test_orders_and_strategies_have_names(arguments):
    (name,) = arguments
    with pytest.raises(ValueError, match=f"{name} must be .*one of"):
        ShardedSequence(**arguments)


@variant
class OwnValues(Variant):
    """Dot-product attention that doubles the sums of values."""

    def scores(self, query, key, relative_positions, scale):
        return scale * query @ key.T

    def weighted_values(self, weights, value, relative_positions):
        return 2 * weights @ value


def test_variants_of_users_run_in_a_ring():
    """Received attention of a variant that changes the values needs one more method."""
    call = functools.partial(attention, sequence=RING)
    with jax.set_mesh(make_mesh(LINE, AUTO)):
        values = jax.jit(call)(ONES, ONES, ONES, OwnValues()).values
        with pytest.raises(NotImplementedError, match="OwnValues must define with_plain_values"):
            jax.eval_shape(functools.partial(call, received=True), ONES, ONES, ONES, OwnValues())
    np.testing.assert_allclose(values, 2.0, rtol=1e-6)


def test_one_query_is_not_sharded():
    """A decoder attends from one query at a time, which Auto axes cannot shard."""
    key = jnp.arange(128.0).reshape(1, 16, 2, 4)
    with jax.set_mesh(make_mesh(LINE, AUTO)):
        values = attention(ONES[:, :1], key, key, DotProduct()).values
    expected = attention(ONES[:, :1], key, key, DotProduct()).values
    np.testing.assert_allclose(values, expected, rtol=1e-6)


def test_the_memory_of_a_device_does_not_depend_on_the_number_of_devices():
    """Twice the devices attend to a text of twice the length."""

    def measure(shards):
        axes = {"axis_types": (AUTO,), "devices": jax.devices()[:shards]}
        mesh = jax.make_mesh((shards,), ("sequence",), **axes)
        rows = NamedSharding(mesh, PartitionSpec(None, "sequence"))
        x = jax.ShapeDtypeStruct((1, 64 * shards, 2, 16), "float32", sharding=rows)

        def loss(query, key, value):
            attended = attention(query, key, value, DotProduct(), sequence=RING)
            return jnp.sin(attended.values).sum()

        gradient = jax.jit(jax.grad(loss, (0, 1, 2)), out_shardings=rows)
        memory = gradient.lower(x, x, x).compile().memory_analysis()
        return memory.temp_size_in_bytes + memory.argument_size_in_bytes

    assert measure(8) < 1.05 * measure(4)
