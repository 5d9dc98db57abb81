"""Programs that contain the fused kernels: their lowering, under transformations and on meshes."""

import contextlib
import functools

import chex
import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from distattn_jax.attention import (
    MAPPINGS,
    DistanceAware,
    DistanceBias,
    DotProduct,
    RelativePosition,
    ShardedSequence,
    TransformerXL,
    attention,
    devices,
)
from distattn_jax.attention.variants import early_add
from distattn_jax.guiding import map_discrimination, pattern_decorrelation
from distattn_jax.models import PretrainedClassifier, PretrainedConfig
from tests.attention.cases import Sizes, inputs, needs_kernels

pytestmark = needs_kernels
SMALL = Sizes(batch=4, queries=20, keys=24, heads=2, width=16, value_width=16)
KEY = jax.random.key(0)
DROPOUT = {"dropout_rate": 0.1, "dropout_key": KEY}


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


def test_programs_contain_the_kernels_of_the_platform_that_they_are_lowered_for():
    traced = jax.jit(outputs_and_gradients).trace(*inputs(SMALL, "bfloat16"), DotProduct())
    for platform in ("cuda", "cpu", "tpu"):
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        assert ("mosaic_gpu" in text) == (platform == "cuda"), platform
        assert ("tpu_custom_call" in text) == (platform == "tpu"), platform


def test_kernels_of_16_bit_inputs_lower_with_64_bit_numbers_enabled():
    arrays, variant = (
        inputs(SMALL, "bfloat16"),
        DistanceBias((jnp.ones(1), jnp.ones(1)), "kerple_log"),
    )
    with jax.enable_x64(True):
        traced = jax.jit(outputs_and_gradients).trace(*arrays, variant)
        for platform, name in (("cuda", "mosaic_gpu"), ("tpu", "tpu_custom_call")):
            assert name in traced.lower(lowering_platforms=(platform,)).as_text()


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
        {"received": True, **DROPOUT},
    ),
    "relative position, values, causal": (
        RelativePosition(values=jnp.ones((1, 1, 16))),
        Sizes(width=16, value_width=16),
        {"is_causal": True},
    ),
    "Transformer-XL": (
        TransformerXL(jnp.ones((2, 6, 64)), jnp.ones((1, 64)), jnp.ones((2, 64))),
        Sizes(width=64, value_width=32),
        {"received": True, **DROPOUT},
    ),
    "dot product": (DotProduct(), Sizes(width=16, value_width=64), {"received": True}),
    "dot product, causal, dropout": (
        DotProduct(),
        Sizes(width=32, value_width=32),
        {"is_causal": True, **DROPOUT},
    ),
    "distance, dropout": (distance_aware(), Sizes(width=64, value_width=16), DROPOUT),
    "distance, saturating": (distance_aware(tolerance=1e-3), Sizes(width=32, value_width=64), {}),
    "distance, saturating, causal, grouped queries": (
        distance_aware(tolerance=1e-3),
        Sizes(width=64, value_width=64, key_heads=1),
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
        DROPOUT,
    ),
}


@pytest.mark.parametrize(("variant", "sizes", "arguments"), KERNELS.values(), ids=KERNELS)
def test_every_kernel_lowers(variant, sizes, arguments):
    arrays = inputs(sizes._replace(heads=2), "float16")
    program = functools.partial(outputs_and_gradients, implementation="pallas", **arguments)
    assert "mosaic_gpu" in lower(program, *arrays, variant)


def ripple(distance, parameters):
    """Return a bias with 4 parameters per head, so that the kernels read a table."""
    height, decay, frequency, phase = parameters
    return height * jnp.exp(-decay * jnp.abs(distance)) * jnp.cos(frequency * distance + phase)


@pytest.mark.parametrize(
    "variant", [DotProduct(), DistanceBias(4 * (jnp.ones(2),), ripple)], ids=["dot product", "bias"]
)
def test_a_mask_with_segments_in_persistent_kernels_fits_into_shared_memory(variant, monkeypatch):
    """Persistent kernels have two buffers for the rows of a block, if there is one processor."""
    module = "distattn_jax.attention.fused.gpu.tile_configs"
    monkeypatch.setattr(f"{module}.count_processors", lambda: 1)
    sizes = Sizes(batch=2, queries=256, keys=256, heads=2, width=64, value_width=64)
    types = jax.eval_shape(lambda: inputs(sizes, "bfloat16"))
    segments = jnp.zeros((2, 256), jnp.int32)
    program = functools.partial(
        outputs_and_gradients,
        implementation="pallas",
        received=True,
        mask=jnp.ones((2, 1, 256, 256), bool),
        query_segments=segments,
        key_segments=segments,
    )
    assert "mosaic_gpu" in lower(program, *types, variant)


@pytest.fixture(params=["cuda", "tpu"])
def platform(request):
    """Let `implementation="pallas"` select the kernels for a platform."""
    with devices.assumed(devices.local_machine()._replace(platform=request.param)):
        yield request.param


CALLS = {"cuda": "mosaic_gpu", "tpu": "tpu_custom_call"}  # of kernels in programs, by platform


def test_kernels_lower_under_transformations(platform):
    """Several seeds in a vmap, and checkpointed layers in a scan."""

    def layers(query, key, value, variant):
        def layer(query, variant):
            values = attention(query, key, value, variant, implementation="pallas").values
            return query + values, None

        return jax.lax.scan(jax.checkpoint(layer), query, variant)[0].astype(jnp.float32).sum()

    variant = jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), distance_aware())
    seeds = jax.tree.map(lambda x: jnp.stack([x, x]), (*inputs(SMALL, "bfloat16"), variant))
    text = lower(jax.vmap(jax.grad(layers, (0, 1, 2, 3))), *seeds, platform=platform)
    assert CALLS[platform] in text


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
@pytest.mark.parametrize(("kind", "is_set"), [(AxisType.Auto, False), (AxisType.Explicit, True)])
def test_kernels_lower_on_a_mesh(kind, is_set, platform):
    mesh = make_mesh(kind)
    variant = DistanceBias((jnp.ones(2), jnp.ones(2)), "kerple_log")
    arrays = shard(mesh, inputs(SMALL, "bfloat16"), variant)
    with jax.set_mesh(mesh) if is_set else contextlib.nullcontext():
        program = functools.partial(outputs_and_gradients, implementation="pallas")
        text = lower(program, *arrays, platform=platform)
    assert CALLS[platform] in text


@pytest.mark.usefixtures("eight_devices")
def test_kernels_lower_in_a_ring_of_devices(platform):
    """Keys and values travel in the program, and kernels compute each block."""
    mesh = jax.make_mesh((4, 2), ("data", "sequence"), axis_types=(AxisType.Auto,) * 2)
    rows = NamedSharding(mesh, PartitionSpec("data", "sequence"))
    arrays = [
        jax.device_put(x, rows) for x in inputs(SMALL._replace(queries=64, keys=64), "bfloat16")
    ]
    program = functools.partial(
        outputs_and_gradients,
        implementation="pallas",
        is_causal=True,
        sequence=ShardedSequence(strategy="ring"),
        **DROPOUT,
    )
    text = lower(program, *arrays, DistanceAware(jnp.ones(2), jnp.ones(2)), platform=platform)
    assert CALLS[platform] in text
    assert "collective_permute" in text


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
    bfloat16_arrays = [x.astype(jnp.bfloat16) for x in arrays]
    text = lower(sharded_gradients, *bfloat16_arrays, variant, platform="tpu")
    assert ("tpu_custom_call" in text) == (len(axes) == 2)
    actual, expected = (jax.jit(f)(*arrays, variant) for f in (sharded_gradients, gradients))
    chex.assert_trees_all_close(actual, expected, rtol=2e-3, atol=1e-3)
