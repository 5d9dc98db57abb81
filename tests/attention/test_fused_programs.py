"""Programs with the fused kernels in them: what they lower to, transformed and on meshes."""

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
    DotProduct,
    attention,
)
from distattn_jax.attention.fused.saturation import radius_of
from distattn_jax.attention.fused.schedule import NEVER
from distattn_jax.attention.fused.scoring import LOG2E, Apart
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


def lowered(program, *arrays, platform="cuda") -> str:
    return jax.jit(program).trace(*arrays).lower(lowering_platforms=(platform,)).as_text()


def test_one_program_has_kernels_where_they_run_and_nowhere_else():
    program = functools.partial(outputs_and_gradients, received=True)
    traced = jax.jit(program).trace(*inputs(SMALL, "bfloat16"), distance_aware())
    for platform in ("cuda", "cpu", "tpu"):
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        assert ("mosaic_gpu" in text) == (platform == "cuda"), platform


OTHERWISE = {
    "float32": (DotProduct(), {"dtype": "float32"}),
    "a mask": (DotProduct(), {"mask": jnp.ones((20, 24), bool)}),
    "weights": (DotProduct(), {"weights": True}),
    "late_multiply": (distance_aware(adjust=late_multiply), {}),
}


@pytest.mark.parametrize(("variant", "arguments"), OTHERWISE.values(), ids=OTHERWISE)
def test_what_the_kernels_refuse_is_computed_otherwise(variant, arguments):
    arguments = {"received": True, **arguments}
    arrays = inputs(SMALL, arguments.pop("dtype", "bfloat16"))
    program = functools.partial(outputs_and_gradients, **arguments)
    assert "mosaic_gpu" not in lowered(program, *arrays, variant)


GUIDED = PretrainedConfig(
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


@pytest.mark.parametrize("maps", [False, True])
def test_guides_on_received_attention_keep_no_map(maps):
    """Of queries by keys nothing is left in the gradients of a guided model, dropout and all."""
    texts, length = 3, GUIDED.positions
    model = nnx.eval_shape(
        lambda: PretrainedClassifier(GUIDED, classes=3, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    )
    graph, params = nnx.split(model)

    def loss(params, tokens, lengths):
        said = nnx.merge(graph, params)(
            tokens,
            lengths,
            received=True,
            weights=maps,
            rngs=nnx.Rngs(dropout=0),
        )
        guides = map_discrimination(said.received, lengths)
        guides += pattern_decorrelation(said.received, lengths)
        return (jax.nn.logsumexp(said.logits, axis=-1) + guides).sum()

    tokens = jax.ShapeDtypeStruct((texts, length), jnp.int32)
    lengths = jax.ShapeDtypeStruct((texts,), jnp.int32)
    text = lowered(jax.grad(loss), params, tokens, lengths)
    assert ("mosaic_gpu" in text) != maps
    assert (f"{length}x{length}x" in text) == maps


# Between them: every width, both scorings, every family, all that a plan can say.
KERNELS = {
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
}


@pytest.mark.parametrize(("variant", "sizes", "arguments"), KERNELS.values(), ids=KERNELS)
def test_every_kernel_lowers(variant, sizes, arguments):
    arrays = inputs(sizes._replace(heads=2), "float16")
    program = functools.partial(outputs_and_gradients, implementation="pallas", **arguments)
    assert "mosaic_gpu" in lowered(program, *arrays, variant)


def test_kernels_lower_under_transformations():
    """A model of several seeds in one program, with layers in a scan that keeps little."""

    def layers(query, key, value, variant):
        def layer(query, variant):
            values = attention(query, key, value, variant, implementation="pallas").values
            return query + values, None

        return jax.lax.scan(jax.checkpoint(layer), query, variant)[0].astype(jnp.float32).sum()

    variant = jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), distance_aware())
    seeds = jax.tree.map(lambda x: jnp.stack([x, x]), (*inputs(SMALL, "bfloat16"), variant))
    text = lowered(jax.vmap(jax.grad(layers, (0, 1, 2, 3))), *seeds)
    assert "mosaic_gpu" in text


def on_mesh(kind: AxisType):
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=(kind, kind))


def placed(mesh, arrays, variant):
    """Examples over "data", heads over "model"."""
    over = NamedSharding(mesh, PartitionSpec("data", None, "model"))
    heads = NamedSharding(mesh, PartitionSpec("model"))
    arrays = [jax.device_put(x, over) for x in arrays]
    return *arrays, jax.tree.map(lambda leaf: jax.device_put(leaf, heads), variant)


@pytest.mark.usefixtures("eight_devices")
@pytest.mark.parametrize("is_set", [False, True])
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_kernels_lower_on_a_mesh(kind, is_set):
    mesh = on_mesh(kind)
    arrays = placed(mesh, inputs(SMALL, "bfloat16"), DotProduct())
    with jax.set_mesh(mesh) if is_set else contextlib.nullcontext():
        program = functools.partial(outputs_and_gradients, implementation="pallas")
        text = lowered(program, *arrays)
    assert "mosaic_gpu" in text


@pytest.mark.usefixtures("eight_devices")
@pytest.mark.parametrize("axes", [{"data", "model"}, {"data"}])
def test_inside_a_shard_map_of_ones_own(axes):
    """Over all axes kernels serve; over some of them what JAX can part by itself."""
    mesh = on_mesh(AxisType.Auto)
    arrays, variant = inputs(SMALL, "float16"), distance_aware()
    program = functools.partial(outputs_and_gradients, received=True)
    part = PartitionSpec("data", None, "model" if "model" in axes else None)
    heads = PartitionSpec("model" if "model" in axes else None)

    def gradients(query, key, value, variant):
        return program(query, key, value, variant)[0][:3]

    parted = jax.shard_map(
        gradients,
        mesh=mesh,
        in_specs=(part, part, part, heads),
        out_specs=part,
        axis_names=axes,
    )
    assert ("mosaic_gpu" in lowered(parted, *arrays, variant)) == (len(axes) == 2)
    together, alone = (jax.jit(f)(*arrays, variant) for f in (parted, gradients))
    chex.assert_trees_all_close(together, alone, rtol=2e-3, atol=1e-3)


RESTRICTIONS = {
    "key_lengths": jnp.asarray([24, 3, 0, 6]),
    "query_lengths": jnp.asarray([20, 13, 2, 19]),
    "query_offset": jnp.asarray([0, 2, 1, -1]),
    "dropout_key": KEY,
}
by_kernels = functools.partial(
    outputs_and_gradients,
    implementation="pallas",
    is_causal=True,
    dropout_rate=0.2,
    received=True,
)


def on_whole_maps(make_kernels, plan, operands):
    """What `attend` computes of the same operands, in plain JAX: it runs on any mesh."""
    query, key, value = operands[:3]
    (_, T, _, _), (_, S, _, _) = query.shape, key.shape
    i, j = jnp.arange(T)[:, None], jnp.arange(S)[None, :]
    lengths = (operands.query_lengths, operands.key_lengths, operands.offset)
    queries, keys, offset = (x[:, None, None, None] for x in lengths)
    i, j = i[None, None], j[None, None]
    gap = i + offset - j
    numbers = tuple(jnp.moveaxis(operands.coefficients, -1, 0)[..., None, None])
    raw = jnp.einsum("btnh,bsnh->bnts", query, key, preferred_element_type=jnp.float32)
    apart = Apart(lambda: jnp.abs(gap).astype(jnp.float32))
    scored = plan.scoring.score(raw, apart, numbers, keep=False)
    scores = scored.scores * plan.scoring.factor(numbers) / LOG2E
    visible = (i < queries) & (j < keys) & ((gap >= 0) | (not plan.is_causal))
    weights = masked_softmax(scores, visible)
    kept = weights
    if operands.words is not None:
        query_word, key_word, threshold = jnp.moveaxis(operands.words, -1, 0)[..., None, None]
        bits = hash.mix(hash.combine(query_word, i) ^ hash.combine(key_word, j))
        kept = jnp.where(bits >= threshold, weights * operands.scale[..., None], 0)
    values = jnp.einsum("bnts,bsne->btne", kept, value.astype(jnp.float32)).astype(value.dtype)
    return values, weights.sum(axis=2) if plan.received else None


@pytest.fixture
def without_kernels(monkeypatch):
    monkeypatch.setattr("distattn_jax.attention.fused.derivative.fused_attention", on_whole_maps)


@pytest.mark.usefixtures("without_kernels")
@pytest.mark.parametrize("adjust", [{}, {"adjust": early_add}])
def test_operands_are_those_of_the_call(adjust):
    """Lengths, offsets, coefficients and dropout reach the kernels as the reference means them."""
    arrays, variant = inputs(SMALL._replace(width=13), "float16"), distance_aware(**adjust)
    actual = jax.jit(by_kernels)(*arrays, variant, **RESTRICTIONS)
    wide = [x.astype(jnp.float32) for x in arrays]
    reference = functools.partial(by_kernels, implementation="reference")
    expected = jax.jit(reference)(*wide, variant, **RESTRICTIONS)
    actual = jax.tree.map(lambda x: x.astype(jnp.float32), actual)
    chex.assert_trees_all_close(actual, expected, rtol=4e-3, atol=4e-3)


@pytest.mark.usefixtures("eight_devices", "without_kernels")
@pytest.mark.parametrize("is_set", [False, True])
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_eight_devices_equal_one(kind, is_set):
    """Every operand goes with its examples and heads."""
    arrays, variant = inputs(SMALL, "float16"), distance_aware()
    alone = jax.jit(by_kernels)(*arrays, variant, **RESTRICTIONS)
    mesh = on_mesh(kind)
    with jax.set_mesh(mesh) if is_set else contextlib.nullcontext():
        together = jax.jit(by_kernels)(*placed(mesh, arrays, variant), **RESTRICTIONS)
    values = together[1].values
    assert len(values.sharding.device_set) == 8
    assert values.sharding.shard_shape(values.shape) == (1, 20, 1, 16)
    alone, together = (
        jax.tree.map(lambda x: np.asarray(x, np.float32), x) for x in (alone, together)
    )
    chex.assert_trees_all_close(together, alone, rtol=2e-3, atol=1e-3)


LEVEL = {
    "learnable_sigmoid": jnp.asarray([1.0, 0.37]),
    "sigmoid": (),
    "exponent": (),
    "clip": jnp.asarray([3.0, 3.0]),
}


@pytest.mark.parametrize("width", [16, 64])
@pytest.mark.parametrize("mapping", LEVEL)
def test_mappings_that_level_off_saturate_early(mapping, width, monkeypatch):
    """If the constant were not f's own, to the last bit, no head would ever reach it."""
    found = []

    def attend(make_kernels, plan, operands):
        found.append(radius_of(plan.scoring, operands, plan.tolerance))
        return jnp.zeros_like(operands.query), None

    monkeypatch.setattr("distattn_jax.attention.fused.derivative.fused_attention", attend)
    sizes = Sizes(batch=1, queries=2048, keys=2048, heads=2, width=width, value_width=width)
    weight = jnp.asarray([-0.5, -0.25] if mapping == "exponent" else [-0.5, 0.5])
    variant = DistanceAware(weight, LEVEL[mapping], MAPPINGS[mapping])
    attention(*inputs(sizes, "bfloat16"), variant, implementation="pallas")
    ((radius, skips),) = found
    falls_for_ever = mapping == "clip"
    assert skips.tolist() == [[not falls_for_ever, mapping == "exponent"]]
    assert (radius[0, 0] == NEVER) == falls_for_ever
    assert radius[0, 1] < 100
