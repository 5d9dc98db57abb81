"""Programs that contain the fused kernels: their lowering, under transformations and on meshes."""

import contextlib
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from distattn_jax import hash
from distattn_jax.attention import (
    MAPPINGS,
    DistanceAware,
    DistanceBias,
    DotProduct,
    RelativePosition,
    TransformerXL,
    attention,
)
from distattn_jax.attention.fused import derivative
from distattn_jax.attention.fused.derivative import Outputs
from distattn_jax.attention.fused.distance_functions import (
    LOG2E,
    Distances,
    unstack_coefficients,
)
from distattn_jax.attention.fused.saturation import compute_radius
from distattn_jax.attention.fused.visible_columns import INFINITE_RADIUS
from distattn_jax.attention.softmax import masked_softmax
from distattn_jax.attention.variants import early_add, late_multiply
from distattn_jax.guiding import map_discrimination, pattern_decorrelation
from distattn_jax.models import PretrainedClassifier, PretrainedConfig
from tests.attention.cases import Sizes, inputs, needs_kernels

pytestmark = needs_kernels
SMALL = Sizes(batch=4, queries=20, keys=24, heads=2, width=16, value_width=16)
KEY = jax.random.key(0)


def distance_aware(**arguments) -> DistanceAware:
    return DistanceAware(jnp.asarray([-0.5, 0.5]), jnp.asarray([1.0, -0.5]), **arguments)


def outputs_and_gradients(query, key, value, variant, **arguments):
    def loss(*arrays):
        attended = attention(*arrays, **arguments)
        total = sum(jnp.sin(x.astype(jnp.float32)).sum() for x in jax.tree.leaves(attended))
        return total, attended

    return jax.grad(loss, (0, 1, 2, 3), has_aux=True)(query, key, value, variant)


def lower(program, *arrays, platform="cuda") -> str:
    return jax.jit(program).trace(*arrays).lower(lowering_platforms=(platform,)).as_text()


def test_only_programs_lowered_for_cuda_contain_kernels():
    traced = jax.jit(outputs_and_gradients).trace(*inputs(SMALL, "bfloat16"), DotProduct())
    for platform in ("cuda", "cpu", "tpu"):
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        assert ("mosaic_gpu" in text) == (platform == "cuda"), platform


UNSUPPORTED = {
    "float32": (DotProduct(), {"dtype": "float32"}),
    "weights": (DotProduct(), {"weights": True}),
    "late_multiply": (distance_aware(adjust=late_multiply), {}),
}


@pytest.mark.parametrize(("variant", "arguments"), UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_unsupported_calls_lower_without_kernels(variant, arguments):
    arguments = {"received": True, **arguments}
    arrays = inputs(SMALL, arguments.pop("dtype", "bfloat16"))
    program = functools.partial(outputs_and_gradients, **arguments)
    assert "mosaic_gpu" not in lower(program, *arrays, variant)


GUIDED_MODEL = PretrainedConfig(
    family="bert",
    vocabulary=50,
    features=128,
    layers=2,
    heads=2,
    hidden_features=256,
    positions=192,
    types=2,
    embedding_features=128,
    groups=2,
    pooler=False,
)


@pytest.mark.parametrize("weights", [False, True])
def test_guides_on_received_attention_store_no_map(weights):
    """Only a request for the weights puts an array of queries by keys into the gradients."""
    texts, length = 3, GUIDED_MODEL.positions
    model = nnx.eval_shape(
        lambda: PretrainedClassifier(GUIDED_MODEL, classes=3, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    )
    graph, params = nnx.split(model)

    def loss(params, tokens, lengths):
        output = nnx.merge(graph, params)(
            tokens,
            lengths,
            received=True,
            weights=weights,
            rngs=nnx.Rngs(dropout=0),
        )
        guides = map_discrimination(output.received, lengths)
        guides += pattern_decorrelation(output.received, lengths)
        return (jax.nn.logsumexp(output.logits, axis=-1) + guides).sum()

    tokens = jax.ShapeDtypeStruct((texts, length), jnp.int32)
    lengths = jax.ShapeDtypeStruct((texts,), jnp.int32)
    text = lower(jax.grad(loss), params, tokens, lengths)
    assert ("mosaic_gpu" in text) != weights
    assert (f"{length}x{length}x" in text) == weights


def hump(x, shape):
    center, width = shape
    return jnp.exp(-(((x - center) / width) ** 2))


# Together these cover every width, scoring, distance function and option of a plan.
KERNELS = {
    "relative position": (
        RelativePosition(jnp.ones((2, 9, 64)), jnp.ones((1, 7, 128))),
        Sizes(width=64, value_width=128),
        {"received": True, "dropout_rate": 0.1, "dropout_key": KEY},
    ),
    "relative position, values, causal": (
        RelativePosition(values=jnp.ones((1, 1, 16))),
        Sizes(width=16, value_width=16),
        {"is_causal": True},
    ),
    "Transformer-XL": (
        TransformerXL(jnp.ones((2, 6, 64)), jnp.ones((1, 64)), jnp.ones((2, 64))),
        Sizes(width=64, value_width=32),
        {"received": True, "dropout_rate": 0.1, "dropout_key": KEY},
    ),
    "dot product": (DotProduct(), Sizes(width=16, value_width=64), {"received": True}),
    "dot product, causal, dropout": (
        DotProduct(),
        Sizes(width=32, value_width=32),
        {"is_causal": True, "dropout_rate": 0.1, "dropout_key": KEY},
    ),
    "distance, dropout": (
        distance_aware(),
        Sizes(width=64, value_width=16),
        {"dropout_rate": 0.1, "dropout_key": KEY},
    ),
    "distance, saturating": (
        distance_aware(tolerance=1e-3),
        Sizes(width=32, value_width=64),
        {},
    ),
    "distance, saturating, causal": (
        distance_aware(tolerance=1e-3, mapping=MAPPINGS["learnable_sigmoid"]),
        Sizes(width=64, value_width=64),
        {"received": True, "is_causal": True},
    ),
    "added": (distance_aware(adjust=early_add, tolerance=1e-3), Sizes(width=16), {}),
    "exponent": (DistanceAware(jnp.ones(2), (), MAPPINGS["exponent"]), Sizes(width=16), {}),
    "linear": (
        DistanceAware(jnp.ones(2), (jnp.ones(2), jnp.ones(2)), MAPPINGS["linear"]),
        Sizes(width=16),
        {},
    ),
    "clip": (DistanceAware(jnp.ones(2), jnp.ones(1), MAPPINGS["clip"]), Sizes(width=16), {}),
    "alibi": (DistanceBias(jnp.ones(2), "alibi"), Sizes(width=16), {}),
    "table": (
        DistanceBias((jnp.ones(2), jnp.ones(2)), "kerple_log"),
        Sizes(width=64, value_width=64),
        {"received": True, "is_causal": True},
    ),
    "multiplied table": (
        DistanceAware(jnp.ones(2), (jnp.ones(2), jnp.ones(2)), hump),
        Sizes(width=16),
        {"dropout_rate": 0.1, "dropout_key": KEY},
    ),
}


@pytest.mark.parametrize(("variant", "sizes", "arguments"), KERNELS.values(), ids=KERNELS)
def test_every_kernel_lowers(variant, sizes, arguments):
    arrays = inputs(sizes._replace(heads=2), "float16")
    program = functools.partial(outputs_and_gradients, implementation="pallas", **arguments)
    assert "mosaic_gpu" in lower(program, *arrays, variant)


def test_kernels_of_grouped_queries_lower():
    query, key, value = inputs(Sizes(heads=2, width=64, value_width=64), "float16")
    program = functools.partial(outputs_and_gradients, implementation="pallas", received=True)
    variant = distance_aware(tolerance=1e-3)
    assert "mosaic_gpu" in lower(program, query, key[:, :, :1], value[:, :, :1], variant)


def test_kernels_lower_under_transformations():
    """Several seeds in a vmap, and checkpointed layers in a scan."""

    def layers(query, key, value, variant):
        def layer(query, variant):
            values = attention(query, key, value, variant, implementation="pallas").values
            return query + values, None

        return jax.lax.scan(jax.checkpoint(layer), query, variant)[0].astype(jnp.float32).sum()

    variant = jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), distance_aware())
    seeds = jax.tree.map(lambda x: jnp.stack([x, x]), (*inputs(SMALL, "bfloat16"), variant))
    text = lower(jax.vmap(jax.grad(layers, (0, 1, 2, 3))), *seeds)
    assert "mosaic_gpu" in text


def make_mesh(kind: AxisType):
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=(kind, kind))


def shard(mesh, arrays, variant):
    """Shard examples over "data" and heads over "model"."""
    rows = NamedSharding(mesh, PartitionSpec("data", None, "model"))
    heads = NamedSharding(mesh, PartitionSpec("model"))
    all_heads = NamedSharding(mesh, PartitionSpec("data"))
    arrays = [jax.device_put(x, rows if x.shape[2] > 1 else all_heads) for x in arrays]
    return *arrays, jax.tree.map(lambda leaf: jax.device_put(leaf, heads), variant)


@pytest.mark.usefixtures("eight_devices")
@pytest.mark.parametrize("is_set", [False, True])
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_kernels_lower_on_a_mesh(kind, is_set):
    mesh = make_mesh(kind)
    variant = DistanceBias((jnp.ones(2), jnp.ones(2)), "kerple_log")
    arrays = shard(mesh, inputs(SMALL, "bfloat16"), variant)
    with jax.set_mesh(mesh) if is_set else contextlib.nullcontext():
        program = functools.partial(outputs_and_gradients, implementation="pallas")
        text = lower(program, *arrays)
    assert "mosaic_gpu" in text


@pytest.mark.usefixtures("eight_devices")
@pytest.mark.parametrize("axes", [{"data", "model"}, {"data"}])
def test_a_shard_map_over_all_axes_uses_kernels_and_over_some_axes_falls_back(axes):
    mesh = make_mesh(AxisType.Auto)
    arrays, variant = inputs(SMALL, "float16"), distance_aware()
    program = functools.partial(outputs_and_gradients, received=True)
    rows = PartitionSpec("data", None, "model" if "model" in axes else None)
    heads = PartitionSpec("model" if "model" in axes else None)

    def gradients(query, key, value, variant):
        return program(query, key, value, variant)[0][:3]

    sharded_gradients = jax.shard_map(
        gradients,
        mesh=mesh,
        in_specs=(rows, rows, rows, heads),
        out_specs=rows,
        axis_names=axes,
    )
    assert ("mosaic_gpu" in lower(sharded_gradients, *arrays, variant)) == (len(axes) == 2)
    actual, expected = (jax.jit(f)(*arrays, variant) for f in (sharded_gradients, gradients))
    chex.assert_trees_all_close(actual, expected, rtol=2e-3, atol=1e-3)


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
    coefficients = unstack_coefficients(operands.coefficients[:, :, None, None, :])
    products = jnp.einsum("btnh,bsnh->bnts", query, key, preferred_element_type=jnp.float32)
    distances = Distances(lambda: jnp.abs(relative_positions).astype(jnp.float32))
    tile_scores = plan.scoring.score(products, distances, coefficients, for_gradient=False)
    scores = tile_scores.scores * plan.scoring.score_multiplier(coefficients) / LOG2E
    left, right = plan.window
    visible = (i < queries) & (j < keys)
    visible &= (relative_positions >= -right) & (relative_positions <= left)
    visible &= operands.key_mask[:, :, None, :]
    weights, _ = masked_softmax(scores, visible)
    kept = weights
    if operands.dropout_words is not None:
        words = jnp.moveaxis(operands.dropout_words, -1, 0)[..., None, None]
        query_word, key_word, threshold = words
        query_hash, query_shift = hash.hash_indices(query_word, i, shift=16)
        key_hash, key_shift = hash.hash_indices(key_word, j, shift=8)
        is_kept = hash.is_kept(query_hash ^ key_hash, query_shift + key_shift, threshold)
        kept = jnp.where(is_kept, weights * operands.dropout_scale[..., None], 0)
    values = jnp.einsum("bnts,bsne->btne", kept, value.astype(jnp.float32)).astype(value.dtype)
    return Outputs(values, weights.sum(axis=2) if plan.received else None, None)


@pytest.fixture
def without_kernels(monkeypatch):
    monkeypatch.setattr(derivative, "fused_attention", attention_without_kernels)


@pytest.mark.usefixtures("without_kernels")
@pytest.mark.parametrize(
    "variant",
    [
        distance_aware(),
        distance_aware(adjust=early_add),
        DistanceBias(jnp.asarray([0.5, 0.1]), "alibi"),
    ],
    ids=["multiply", "add", "alibi"],
)
def test_operands_of_the_kernels_reproduce_the_reference(variant):
    """Lengths, offsets, coefficients and dropout have the same meaning in both."""
    arrays = inputs(SMALL._replace(width=13), "float16")
    actual = jax.jit(restricted_outputs_and_gradients)(*arrays, variant, **RESTRICTIONS)
    float32_arrays = [x.astype(jnp.float32) for x in arrays]
    reference = functools.partial(restricted_outputs_and_gradients, implementation="reference")
    expected = jax.jit(reference)(*float32_arrays, variant, **RESTRICTIONS)
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
    on_one_device = jax.jit(restricted_outputs_and_gradients)(*arrays, variant, **RESTRICTIONS)
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


SATURATING_SHAPES = {
    "learnable_sigmoid": jnp.asarray([1.0, 0.37]),
    "sigmoid": (),
    "exponent": (),
    "clip": jnp.asarray([3.0, 3.0]),
}


@pytest.mark.parametrize("width", [16, 64])
@pytest.mark.parametrize("mapping", SATURATING_SHAPES)
def test_saturating_mappings_have_a_small_radius(mapping, width, monkeypatch):
    """The far value must equal f to the last bit, otherwise no head would reach its radius."""
    results = []

    def record_radius(make_kernels, plan, operands):
        results.append(compute_radius(plan.scoring, operands, plan.tolerance))
        return Outputs(jnp.zeros_like(operands.query), None, None)

    monkeypatch.setattr(derivative, "fused_attention", record_radius)
    sizes = Sizes(batch=1, queries=2048, keys=2048, heads=2, width=width, value_width=width)
    weight = jnp.asarray([-0.5, -0.25] if mapping == "exponent" else [-0.5, 0.5])
    variant = DistanceAware(weight, SATURATING_SHAPES[mapping], MAPPINGS[mapping])
    attention(*inputs(sizes, "bfloat16"), variant, implementation="pallas")
    ((radius, skips),) = results
    falls_without_limit = mapping == "clip"  # for the first head, whose weight is negative
    assert skips.tolist() == [[not falls_without_limit, mapping == "exponent"]]
    assert (radius[0, 0] == INFINITE_RADIUS) == falls_without_limit
    assert radius[0, 1] < 100
