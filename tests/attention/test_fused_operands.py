"""Operands of the fused kernels: their meaning, their sharding, and the radius of each head."""

import contextlib
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from distattn_jax import hash
from distattn_jax.attention import (
    MAPPINGS,
    DistanceAware,
    DistanceBias,
    ShardedSequence,
    TwoSided,
    attention,
    explain_implementation,
    near_keys,
)
from distattn_jax.attention.fused import derivative, interpreter, position_tables
from distattn_jax.attention.fused.attend import Inputs, Settings, prepare
from distattn_jax.attention.fused.derivative import Outputs
from distattn_jax.attention.fused.distance_functions import (
    LOG2E,
    Distances,
    unstack_coefficients,
)
from distattn_jax.attention.fused.kernel_view import Block
from distattn_jax.attention.fused.schedule import CallSchedules, TileSizes
from distattn_jax.attention.fused.visible_columns import UNBOUNDED, Window
from distattn_jax.attention.softmax import masked_softmax
from distattn_jax.attention.variants import early_add
from tests.attention.cases import Sizes, inputs, needs_kernels
from tests.attention.test_fused_programs import (
    KEY,
    SMALL,
    distance_aware,
    make_mesh,
    outputs_and_gradients,
    shard,
)
from tests.evaluation import evaluate

pytestmark = needs_kernels


RESTRICTIONS = {
    "key_lengths": jnp.asarray([24, 3, 0, 6]),
    "query_lengths": jnp.asarray([20, 13, 2, 19]),
    "query_offset": jnp.asarray([0, 2, 1, -1]),
    "dropout_key": KEY,
    "mask": (np.arange(24) % 7 != np.arange(2)[:, None, None])[None],  # of the keys of each head
}


restricted_outputs_and_gradients = functools.partial(
    outputs_and_gradients,
    implementation="pallas",
    is_causal=True,
    local_window_size=9,
    dropout_rate=0.2,
    received=True,
)


def attention_without_kernels(make_kernels, plan, operands):
    """Compute the outputs of `fused_attention` in plain JAX, which runs on any mesh."""
    query, key, value = operands[:3]
    (_, T, N, _), (_, S, K, _) = query.shape, key.shape
    key, value = (jnp.repeat(x, N // K, axis=2) for x in (key, value))
    i, j = jnp.arange(T)[:, None], jnp.arange(S)[None, :]
    lengths = (operands.query_lengths, operands.key_lengths, operands.offset)
    queries, keys, offset = (x[:, None, None, None] for x in lengths)
    i, j = i[None, None], j[None, None]
    relative_positions = i + offset - j
    products = jnp.einsum("btnh,bsnh->bnts", query, key, preferred_element_type=jnp.float32)
    if plan.scoring.table_names:
        coefficients, positions = (
            None,
            lambda name: getattr(operands, name)[:, :, (i - j + S)[0, 0]],
        )
    else:
        coefficients = unstack_coefficients(operands.coefficients[:, :, None, None, :])
        positions = Distances(lambda: jnp.abs(relative_positions).astype(jnp.float32))
    tile_scores = plan.scoring.score(products, positions, coefficients, for_gradient=False)
    scores = tile_scores.scores * plan.scoring.score_multiplier(coefficients) / LOG2E
    left, right = (UNBOUNDED if limit is None else limit for limit in plan.window)
    visible = (i < queries) & (j < keys)
    visible &= (relative_positions >= -right) & (relative_positions <= left)
    if operands.key_mask is not None:
        visible &= operands.key_mask[:, :, None, :]
    weights, logsumexp = masked_softmax(scores, visible)
    kept = weights
    if operands.dropout_words is not None:
        words = jnp.moveaxis(operands.dropout_words, -1, 0)[..., None, None]
        query_word, key_word, *first, threshold = words
        first_query, first_key = (x.astype(jnp.int32) for x in first)
        query_hash, query_shift = hash.hash_indices(query_word, first_query + i, shift=16)
        key_hash, key_shift = hash.hash_indices(key_word, first_key + j, shift=8)
        is_kept = hash.is_kept(query_hash ^ key_hash, query_shift + key_shift, threshold)
        kept = jnp.where(is_kept, weights * operands.dropout_scale[..., None], 0)
    values = jnp.einsum("bnts,bsne->btne", kept, value.astype(jnp.float32)).astype(value.dtype)
    return Outputs(
        values,
        weights.sum(axis=2) if plan.received else None,
        logsumexp if plan.logsumexp else None,
    )


@pytest.fixture
def without_kernels(monkeypatch):
    monkeypatch.setattr(derivative, "fused_attention", attention_without_kernels)


@pytest.mark.usefixtures("without_kernels")
@pytest.mark.parametrize(
    "variant",
    [
        distance_aware(),
        distance_aware(adjust=early_add),
        DistanceAware(jnp.asarray([-0.5, 0.5]), (), MAPPINGS["sigmoid"]),
        DistanceBias(jnp.asarray([0.5, 0.1]), "alibi"),
    ],
    ids=["multiply", "add", "sigmoid", "alibi"],
)
def test_operands_of_the_kernels_reproduce_the_reference(variant):
    """Lengths, offsets, coefficients and dropout have the same meaning in both."""
    arrays = inputs(SMALL._replace(width=13), "float16")
    actual = evaluate(restricted_outputs_and_gradients, *arrays, variant, **RESTRICTIONS)
    float32_arrays = [x.astype(jnp.float32) for x in arrays]
    reference = functools.partial(restricted_outputs_and_gradients, implementation="reference")
    expected = evaluate(reference, *float32_arrays, variant, **RESTRICTIONS)
    actual = jax.tree.map(lambda x: x.astype(jnp.float32), actual)
    chex.assert_trees_all_close(actual, expected, rtol=4e-3, atol=4e-3)


@pytest.mark.usefixtures("eight_devices", "without_kernels")
@pytest.mark.parametrize("is_set", [False, True])
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_eight_devices_equal_one(kind, is_set):
    """Every operand is sharded like the examples and heads of the query."""
    compare_with_one_device(inputs(SMALL, "float16"), kind, is_set)


@pytest.mark.usefixtures("eight_devices", "without_kernels")
def test_devices_that_share_a_key_head_get_a_copy_of_it():
    query, key, value = inputs(SMALL, "float16")
    compare_with_one_device([query, key[:, :, :1], value[:, :, :1]], AxisType.Auto, is_set=False)


def compare_with_one_device(arrays, kind, is_set):
    """Assert that eight devices compute the same outputs and gradients as one device."""
    variant = distance_aware()
    on_one_device = evaluate(restricted_outputs_and_gradients, *arrays, variant, **RESTRICTIONS)
    mesh = make_mesh(kind)
    with jax.set_mesh(mesh) if is_set else contextlib.nullcontext():
        on_mesh = jax.jit(restricted_outputs_and_gradients)(
            *shard(mesh, arrays, variant), **RESTRICTIONS
        )
    values = on_mesh[1].values
    assert len(values.sharding.device_set) == 8
    assert values.sharding.shard_shape(values.shape) == (1, 20, 1, 16)
    actual, expected = (
        jax.tree.map(lambda x: np.asarray(x, np.float32), x) for x in (on_mesh, on_one_device)
    )
    chex.assert_trees_all_close(actual, expected, rtol=2e-3, atol=1e-3)


@pytest.mark.usefixtures("eight_devices", "without_kernels")
def test_blocks_of_a_sharded_sequence_equal_one_device():
    """Each block has its own offset, its own lengths, and its own indices for dropout."""
    sizes = SMALL._replace(queries=64, keys=64)
    arrays, variant = inputs(sizes, "float16"), distance_aware()
    restrictions = RESTRICTIONS | {
        "query_lengths": jnp.asarray([64, 40, 2, 60]),
        "key_lengths": jnp.asarray([64, 33, 0, 46]),
        "mask": (np.arange(64) % 7 != np.arange(2)[:, None, None])[None],
    }
    on_one_device = evaluate(restricted_outputs_and_gradients, *arrays, variant, **restrictions)
    axes = ("data", "sequence", "model")
    mesh = jax.make_mesh((2, 2, 2), axes, axis_types=(AxisType.Auto,) * 3)
    sharded = jax.device_put(arrays, NamedSharding(mesh, PartitionSpec(*axes)))
    ring = functools.partial(
        restricted_outputs_and_gradients, sequence=ShardedSequence(strategy="ring")
    )
    on_mesh = jax.jit(ring)(*sharded, variant, **restrictions)
    actual, expected = (
        jax.tree.map(lambda x: np.asarray(x, np.float32), x) for x in (on_mesh, on_one_device)
    )
    chex.assert_trees_all_close(actual, expected, rtol=2e-3, atol=2e-3)


def compare_near_keys_with_one_device(mesh_sizes, halos, is_causal, monkeypatch, cases):
    """Compare shards of 16 queries with one device, in float32. All cases run the same programs.

    Each case is a variant, True if all devices take the branch of the last halo and False if they
    take that of a ring, and further arguments.
    """
    monkeypatch.setattr(near_keys, "HALOS", (*halos, 16))  # The last one is as long as a shard.
    select_halo, taken = near_keys.select_halo, set()

    def select_and_record(*arguments):
        index = select_halo(*arguments)
        jax.debug.callback(lambda x: taken.add(int(x)), index)
        return index

    monkeypatch.setattr(near_keys, "select_halo", select_and_record)
    length = 16 * mesh_sizes[1]
    arrays = inputs(SMALL._replace(queries=length, keys=length), "float32")
    axes = ("data", "sequence", "model")
    mesh = jax.make_mesh(mesh_sizes, axes, axis_types=(AxisType.Auto,) * 3)
    sharded = jax.device_put(arrays, NamedSharding(mesh, PartitionSpec(*axes)))
    options = {"is_causal": is_causal, "sequence": ShardedSequence(strategy="ring")}
    on_mesh = jax.jit(functools.partial(outputs_and_gradients, implementation="pallas", **options))
    on_one_device = functools.partial(
        outputs_and_gradients, is_causal=is_causal, implementation="reference"
    )
    distances = " or ".join(map(str, halos))
    for variant, is_near, restrictions in cases:
        with interpreter.interpreted():  # The kernels for TPUs then take float32 on a CPU.
            actual = on_mesh(*sharded, variant, **restrictions)
            plan = explain_implementation(*sharded, variant, **options).sequence
        assert f"with {distances} keys of each neighbour if all heads look near" in str(plan)
        expected = evaluate(on_one_device, *arrays, variant, **restrictions)
        chex.assert_trees_all_close(jax.device_get(actual), expected, rtol=1e-4, atol=1e-4)
        jax.effects_barrier()
        assert taken == {len(halos) - is_near}
        taken.clear()


@pytest.mark.usefixtures("eight_devices", "without_kernels")
@pytest.mark.parametrize(("is_causal", "halos"), [(False, (15,)), (True, (4, 15))])
def test_local_heads_of_a_sharded_sequence_equal_one_device(is_causal, halos, monkeypatch):
    """Keys beyond the halo have the score 0 if all heads are local. Otherwise all keys travel."""
    restrictions = {
        "key_lengths": jnp.asarray([64, 17, 64, 39]),
        "query_lengths": jnp.asarray([64, 20, 30, 64]),
        "mask": (np.arange(64) % 7 != 3)[None, None, None],
    }
    shape = jnp.asarray([1.0, 0.5])
    local, mixed = (
        DistanceAware(jnp.asarray(weights), shape, tolerance=1e-5)
        for weights in ((-1.3, -1.2), (-1.3, 0.5))
    )
    cases = [(local, True, restrictions), (mixed, False, restrictions)]
    compare_near_keys_with_one_device((1, 4, 2), halos, is_causal, monkeypatch, cases)


@pytest.mark.usefixtures("eight_devices", "without_kernels")
def test_forgetting_heads_of_a_sharded_sequence_equal_one_device(monkeypatch):
    """Keys beyond the halo are left out if all queries see their own key, as in the first case."""
    slope = jnp.asarray([[1.8, 4.0], [3.0, 2.0]])
    constant = jnp.asarray([[0.0, 1.0], [0.5, -2.0]])
    weight = -0.1 * jnp.ones((2, 2))
    bias = (slope, constant), ("alibi", "constant")
    variant = TwoSided(weight, constant, *bias, tolerance=1e-5)
    keys = jnp.asarray([64, 17, 64, 39])
    cases = [
        (variant, is_near, {"key_lengths": keys, "query_lengths": jnp.asarray(queries)})
        for queries, is_near in (([64, 17, 12, 39], True), ([64, 20, 12, 64], False))
    ]
    compare_near_keys_with_one_device((2, 4, 1), (15,), False, monkeypatch, cases)


SATURATING_SHAPES = {
    "learnable_sigmoid": jnp.asarray([1.0, 0.37]),
    "sigmoid": (),
    "exponent": (),
    "clip": jnp.asarray([3.0, 3.0]),
}


@pytest.mark.parametrize("first_query", [(4,), (4, 0, 9)])
def test_examples_with_equal_offsets_share_tables_and_schedules(first_query):
    examples, heads = len(first_query), 2
    sizes = Sizes(batch=3, queries=40, keys=70, heads=heads, width=16, value_width=16)
    parameters = (jnp.ones((heads, 2)), jnp.ones((heads, 2)))
    variant = TwoSided(jnp.ones((heads, 2)), jnp.ones((heads, 2)), (parameters,), ("kerple_power",))
    arrays = *inputs(sizes, "float32"), variant
    settings = Settings(0.25, Window(right=0), False, False, widths=(16,))
    positions = jnp.asarray(first_query, jnp.int32), jnp.zeros(1, jnp.int32)
    plan, operands = prepare(settings, Inputs(*arrays, *positions))
    assert operands.bias_table.shape[:2] == operands.factor_table.shape[:2] == (examples, heads)
    schedule = CallSchedules(plan, operands).blocks(TileSizes(16, 16))
    assert schedule.runs.shape[:2] == schedule.start.shape[:2] == (examples, 1)
    for example, start in enumerate(first_query):
        visited = np.minimum((np.arange(0, 40, 16) + 15 + start) // 16 + 1, 5)
        np.testing.assert_array_equal(schedule.end[example, 0], visited)


@pytest.mark.parametrize("size", [1e-12, 1, 1e12])
def test_the_gradient_of_a_bias_gets_its_exact_sum_in_proportion_to_its_squares(size):
    gradient = size * jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 50)), jnp.float32)
    total = size * jnp.ones((2, 3, 1))
    corrected = derivative.correct_sum(gradient, total)
    np.testing.assert_allclose(corrected.sum(axis=2, keepdims=True) / size, 1, atol=1e-4)
    shares = (gradient - corrected) / gradient**2
    np.testing.assert_allclose(shares, jnp.broadcast_to(shares[..., :1], shares.shape), rtol=0.02)


@pytest.mark.parametrize("size", [0, 1e-25, 1e25])
def test_the_gradient_of_a_bias_keeps_its_size_where_squares_leave_float32(size):
    gradient = size * jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 50)), jnp.float32)
    corrected = derivative.correct_sum(gradient, 0.0)
    np.testing.assert_allclose(corrected, gradient, rtol=0.01)


def test_joint_gradients_of_a_table_are_those_of_its_operations():
    random = np.random.default_rng(0)
    shapes = ((2, 2), (1, 2), (2, 2))  # The heads share one parameter.
    constants, *decay = (jnp.asarray(random.uniform(0.2, 0.9, x), jnp.float32) for x in shapes)
    variant = TwoSided(None, (), (constants, tuple(decay)), ("constant", "kerple_power"))
    arrays = jnp.zeros((3, 40, 2, 8)), jnp.zeros((3, 70, 2, 8)), jnp.zeros((3, 70, 2, 8))
    block = Block(*arrays, offset=jnp.array([0, 5, -90]), scale=1.0)
    cotangent = jnp.asarray(random.normal(size=(3, 2, block.relative_positions.size)), jnp.float32)

    def total(variant, **options):
        table = position_tables.make_table(TwoSided.bias_sum, variant, block, 2.0, **options)
        return jnp.sum(table * cotangent)

    joint = jax.grad(functools.partial(total, joins_gradients=True))(variant)
    chex.assert_trees_all_close(joint, jax.grad(total)(variant), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("width", "tolerance"), [(16, None), (64, None), (64, 0.0)])
@pytest.mark.parametrize("mapping", SATURATING_SHAPES)
def test_saturating_mappings_have_a_small_radius(mapping, width, tolerance, monkeypatch):
    """The far value must equal f to the last bit, otherwise no head would reach its radius."""
    results = []

    def record_radius(make_kernels, plan, operands):
        results.append(plan.scoring.find_radius(operands, plan.tolerance))
        return Outputs(jnp.zeros_like(operands.query), None, None)

    monkeypatch.setattr(derivative, "fused_attention", record_radius)
    sizes = Sizes(batch=1, queries=2048, keys=2048, heads=2, width=width, value_width=width)
    weight = jnp.asarray([-0.5, -0.25] if mapping == "exponent" else [-0.5, 0.5])
    shape = SATURATING_SHAPES[mapping]
    variant = DistanceAware(weight, shape, MAPPINGS[mapping], tolerance=tolerance)
    attention(*inputs(sizes, "bfloat16"), variant, implementation="pallas")
    ((radius, skips),) = results
    falls_without_limit = mapping == "clip"  # for the first head, whose weight is negative
    assert skips.tolist() == [[not falls_without_limit, mapping == "exponent"]]
    assert (radius[0, 0] == UNBOUNDED) == falls_without_limit
    assert radius[0, 1] < (100 if tolerance is None else 450)
