"""Choice of the implementation, lowering for every platform, and cuDNN against the reference."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from distattn_jax.attention import (
    IMPLEMENTATIONS,
    MAPPINGS,
    DistanceAware,
    DotProduct,
    attention,
    devices,
    implementations,
    masked_softmax,
    xla,
)
from distattn_jax.attention.implementations import Implementation
from tests.attention.cases import VARIANTS, Sizes, inputs, needs_kernels
from tests.programs import iterate_shapes


@pytest.mark.parametrize("name", ["dot_product", "adapted"])
def test_dot_product_of_the_converted_query_and_key_equals_the_variant(name):
    sizes = Sizes()
    variant, _ = VARIANTS[name](sizes, "float32")
    query, key, value = inputs(sizes, "float32")
    one_head = jax.tree.map(lambda leaf: leaf[1], variant)
    new_query, new_key = one_head.as_dot_product(query[0, :, 1], key[0, :, 1], jnp.int32(2))
    actual = attention(
        new_query[None, :, None],
        new_key[None, :, None],
        value[:1, :, 1:2],
        DotProduct(),
        scale=variant.default_scale(sizes.width),
    )
    expected = attention(query, key, value, variant, query_offset=2)
    chex.assert_trees_all_close(actual.values[0, :, 0], expected.values[0, :, 1], rtol=1e-4)


def test_lowering_selects_the_implementation_of_its_platform(monkeypatch):
    """An implementation for one platform must not change the program of another platform."""

    def run_on_tpu(call):
        return IMPLEMENTATIONS["reference"][0].run(call)._replace(values=call.value[:, :5] * 0 + 7)

    table = {
        "tpu kernel": (Implementation(run_on_tpu, "tpu", lambda call: None),),
        **IMPLEMENTATIONS,
    }
    monkeypatch.setattr(implementations, "IMPLEMENTATIONS", table)
    qkv = inputs(Sizes(), "float32")
    traced = jax.jit(functools.partial(attention, variant=DotProduct())).trace(*qkv)
    actual = traced.lower().compile()(*qkv)
    chex.assert_trees_all_close(actual, attention(*qkv, DotProduct(), implementation="xla"))
    assert "7.0" in traced.lower(lowering_platforms=("tpu",)).as_text()
    assert "7.0" not in traced.lower(lowering_platforms=("cpu",)).as_text()


@pytest.fixture
def chosen(monkeypatch):
    """Dict that a call of `attention` fills with the implementation for each platform."""
    implementation = {}

    def run_on_platform(call, branches, fallback):
        implementation.update(branches)
        return fallback(call)

    monkeypatch.setattr(implementations, "_run_on_platform", run_on_platform)
    with devices.assumed(devices.local_machine()._replace(cuda_capabilities=[9.0])):
        yield implementation


@pytest.mark.parametrize(
    ("length", "width", "expected"),
    [
        (1024, 128, "cudnn"),
        pytest.param(1024, 64, "pallas", marks=needs_kernels),
        pytest.param(512, 128, "pallas", marks=needs_kernels),
    ],
)
def test_cudnn_comes_first_where_it_is_faster(length, width, expected, chosen):
    x = jax.ShapeDtypeStruct((1, length, 1, width), jnp.bfloat16)
    jax.eval_shape(attention, x, x, x, DotProduct())
    assert chosen["cuda"] == IMPLEMENTATIONS[expected][0].run


@needs_kernels
@pytest.mark.parametrize("mapping", ["sigmoid", "exponent"])
def test_kernels_are_not_chosen_for_scores_that_are_multiplied_by_a_power(mapping, chosen):
    x = jax.ShapeDtypeStruct((1, 64, 1, 16), jnp.bfloat16)
    variant = DistanceAware(jnp.ones(1), (), MAPPINGS[mapping])
    jax.eval_shape(attention, x, x, x, variant)
    assert ("cuda" in chosen) == (mapping == "sigmoid")


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_lowers_for_every_platform(name):
    sizes = Sizes()
    variant, _ = VARIANTS[name](sizes, "bfloat16")

    gradient = jax.grad(lambda *x: attention(*x).values.astype(jnp.float32).sum(), (0, 1, 2, 3))
    traced = jax.jit(gradient).trace(*inputs(sizes, "bfloat16"), variant)
    for platform in ("cpu", "tpu", "cuda"):
        assert "func.func public @main" in traced.lower(lowering_platforms=(platform,)).as_text()


@pytest.mark.skipif(jax.default_backend() != "gpu", reason="needs a GPU")
@pytest.mark.parametrize(
    "arguments", [{}, {"is_causal": True}, {"key_lengths": jnp.asarray([64, 0])}], ids=str
)
@pytest.mark.parametrize("queries", [1, 77, 128])
@pytest.mark.parametrize("name", ["dot_product", "adapted"])
def test_cudnn_equals_the_reference(name, queries, arguments):
    sizes = Sizes(queries=queries, keys=128, heads=4, width=64, value_width=40)
    variant, _ = VARIANTS[name](sizes, "float32")
    variant = jax.tree.map(lambda leaf: leaf / 4, variant)
    qkv = [x / 2 for x in inputs(sizes, "bfloat16")]

    def value_and_gradients(implementation, *qkv):
        def loss(*args):
            values = attention(*args, implementation=implementation, **arguments).values
            return jnp.sin(values.astype(jnp.float32)).sum(), values

        gradients, values = jax.jit(jax.grad(loss, (0, 1, 2, 3), has_aux=True))(*qkv, variant)
        return [values, *jax.tree.leaves(gradients)]

    exact = value_and_gradients("reference", *(x.astype(jnp.float32) for x in qkv))
    for actual, wanted in zip(value_and_gradients("cudnn", *qkv), exact, strict=True):
        difference = jnp.linalg.norm((actual.astype(jnp.float32) - wanted).reshape(-1))
        assert difference <= 0.03 * jnp.linalg.norm(wanted.reshape(-1)) + 1e-4


@pytest.mark.parametrize(
    ("platform", "tokens", "has_blocks"),
    [("cpu", 2048, True), ("cuda", 2048, False), ("rocm", 2048, False), ("cuda", 4096, True)],
)
def test_a_gpu_computes_and_stores_maps_of_up_to_1_gib(platform, tokens, has_blocks):
    """The maps of 2,048 and 4,096 tokens have 512 MiB and 2 GiB."""
    array = jax.ShapeDtypeStruct((4, tokens, 8, 8), "float32")

    def loss(query):
        return attention(query, query, query, DotProduct(), implementation="xla").values.sum()

    with devices.assumed(devices.local_machine()._replace(platform=platform)):
        program = str(jax.make_jaxpr(jax.grad(loss))(array))
    assert ("scan[" in program) == has_blocks


@pytest.mark.parametrize(
    ("dtype", "arguments", "stored"),
    [
        ("bfloat16", {}, 2),  # weights, and gradients of the products
        ("bfloat16", {"received": True}, 1),  # gradients of the products
        ("float16", {}, 1),  # weights
        ("float32", {}, 0),
    ],
)
def test_a_backward_pass_stores_maps_of_16_bits(dtype, arguments, stored):
    sizes = Sizes(batch=2, queries=9, keys=11, heads=2, width=8, value_width=8)
    variant = DistanceAware(jnp.asarray([-0.3, 0.2]), jnp.asarray([0.5, -0.2]))

    def loss(arrays, variant):
        output = attention(*arrays, variant, implementation="xla", **arguments)
        return sum(jnp.sin(x.astype(jnp.float32)).sum() for x in output if x is not None)

    arrays = inputs(sizes, dtype)
    program = str(jax.make_jaxpr(jax.grad(loss, (0, 1)))(arrays, variant))
    assert program.count("optimization_barrier") == stored
    assert "optimization_barrier" not in str(jax.make_jaxpr(loss)(arrays, variant))


def test_rounded_weights_have_gradients_that_sum_to_0():
    scores = jax.random.normal(jax.random.key(0), (5, 33))
    scores = scores.at[4].set(-jnp.inf)
    visible = jnp.ones(scores.shape, bool).at[3, 7:].set(False).at[4].set(False)
    cotangent = 1 + jax.random.normal(jax.random.key(1), scores.shape)

    def differentiate(stored_dtype):
        weights, vjp = jax.vjp(lambda x: masked_softmax(x, visible, stored_dtype)[0], scores)
        return weights, vjp(cotangent)[0]

    exact, rounded = differentiate(None), differentiate(jnp.bfloat16)
    np.testing.assert_array_equal(rounded[0], exact[0].astype(jnp.bfloat16).astype(jnp.float32))
    np.testing.assert_allclose(rounded[1], exact[1], atol=2e-3)
    np.testing.assert_allclose(rounded[1].sum(axis=-1), 0, atol=1e-6)


def test_the_largest_map_of_a_gpu_is_a_setting(monkeypatch):
    array = jax.ShapeDtypeStruct((1, 64, 2, 8), "float32")

    def count_rows(limit):
        monkeypatch.setattr(xla, "LARGEST_GPU_MAP", limit)
        call = functools.partial(attention, variant=DotProduct(), implementation="xla")
        with devices.assumed(devices.local_machine()._replace(platform="cuda")):
            program = jax.make_jaxpr(lambda query: call(query, query, query))(array)
        return {
            shape[-2]
            for shape in iterate_shapes(program.jaxpr)
            if len(shape) > 1 and shape[-1] == 64
        }

    row = 2 * 64 * 4  # bytes of one query in the map of both heads
    assert 64 in count_rows(64 * row)
    assert 64 in count_rows(100 * row), "a map below the limit is not split"
    assert max(count_rows(32 * row)) == 32
    with xla.calls_at_once(2), xla.calls_at_once(2):
        assert max(count_rows(64 * row)) == 16
    with pytest.raises(ValueError, match="count"), xla.calls_at_once(0):
        pass
