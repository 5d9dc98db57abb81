"""Argument `precision` of `attention`: rounding to 16 bits, settings of JAX, errors."""

import functools
import re

import chex
import jax
import jax.numpy as jnp
import pytest

from distattn_jax.attention import PRECISIONS, DotProduct, attention, devices
from distattn_jax.attention.precision import set_precision, validate_precision
from tests.attention.cases import VARIANTS, Sizes, inputs, needs_kernels

ROUNDED = {"BF16_BF16_F32": "bfloat16", "F16_F16_F32": "float16"}


@pytest.mark.parametrize(
    ("precision", "implementation"), [("BF16_BF16_F32", "xla"), ("F16_F16_F32", "reference")]
)
def test_rounding_is_the_same_as_16_bit_inputs(precision, implementation):
    sizes = Sizes()
    variant, _ = VARIANTS["distance_aware"](sizes, "float32")
    qkv = inputs(sizes, "float32")
    options = {
        "mask": jnp.ones((1, 1, 5, 7), bool).at[..., 2].set(False),
        "dropout_rate": 0.25,
        "dropout_key": jax.random.key(1),
        **{"received": True, "weights": True, "logsumexp": True, "is_causal": True},
        **{"query_offset": jnp.asarray([1, 2]), "implementation": implementation},
    }
    attend = functools.partial(attention, variant=variant, **options)

    @jax.jit
    def both(*qkv):
        rounded = [x.astype(ROUNDED[precision]) for x in qkv]
        return attend(*qkv, precision=precision), attend(*rounded)

    actual, expected = both(*qkv)
    chex.assert_type(jax.tree.leaves(actual), jnp.float32)
    chex.assert_trees_all_equal(
        actual, expected._replace(values=expected.values.astype(jnp.float32))
    )


@pytest.mark.parametrize(
    "dtypes", [("float64",) * 3, ("bfloat16",) * 3, ("float32", *["bfloat16"] * 2)]
)
def test_outputs_keep_their_dtypes(dtypes):
    with jax.enable_x64(True):
        qkv = [jax.ShapeDtypeStruct((2, 5, 3, 4), dtype) for dtype in dtypes]
        attend = functools.partial(
            attention, variant=DotProduct(), received=True, logsumexp=True, implementation="xla"
        )
        expected = jax.eval_shape(attend, *qkv)
        actual = jax.eval_shape(functools.partial(attend, precision="BF16_BF16_F32"), *qkv)
        chex.assert_trees_all_equal_shapes_and_dtypes(actual, expected)


def test_inputs_are_rounded_under_every_transformation():
    def loss(query, key, value):
        attend = functools.partial(attention, precision="BF16_BF16_F32", implementation="xla")
        return attend(query[None], key[None], value[None], DotProduct()).values.sum()

    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    specs = {"in_specs": jax.P("data"), "out_specs": jax.P("data")}
    sharded = jax.shard_map(jax.vmap(jax.grad(loss, (0, 1, 2))), mesh=mesh, **specs)
    arrays = inputs(Sizes(), "float32")
    program, outputs = jax.make_jaxpr(jax.jit(sharded), return_shape=True)(*arrays)
    chex.assert_trees_all_equal_shapes_and_dtypes(list(outputs), arrays)
    assert len(re.findall(r"bf16\[.*= convert_element_type\[", str(program))) >= 3


@pytest.mark.parametrize(
    "precision", [None, "high", jax.lax.Precision.HIGH, ("high", "tensorfloat32")]
)
def test_other_precisions_are_settings_of_jax(precision):
    x = jnp.ones((1, 5, 2, 4))
    program = jax.make_jaxpr(lambda x: attention(x, x, x, DotProduct(), precision=precision))(x)
    level = "HIGHEST" if precision is None else "HIGH"  # the tests set the default to highest
    found = set(re.findall(r"precision=(.*)", str(program)))
    assert found == {f"(Precision.{level}, Precision.{level})"}


@needs_kernels
def test_precision_of_32_bit_products_does_not_reach_kernels_for_16_bit_inputs():
    x = jax.ShapeDtypeStruct((1, 128, 1, 16), jnp.bfloat16)

    def attend(x):
        options = {"precision": "TF32_TF32_F32", "implementation": "pallas"}
        return attention(x, x, x, DotProduct(), **options)

    with devices.assumed(
        devices.Machine("tpu", [], ["TPU v5e"], devices.local_machine().jax_version)
    ):
        traced = jax.jit(attend).trace(x)
    assert "tpu_custom_call" in traced.lower(lowering_platforms=("tpu",)).as_text()


@pytest.mark.parametrize(
    "precision", ["exact", "bf16_bf16_f32", 3, (), ("high", "highest"), jnp.bfloat16]
)
def test_an_unknown_precision_is_rejected_with_the_choices(precision):
    x = jnp.ones((1, 5, 2, 4))
    with pytest.raises(ValueError, match=r"precision must be one .*highest, BF16_BF16_F32.* got "):
        attention(x, x, x, DotProduct(), precision=precision)


def test_all_listed_precisions_are_accepted():
    for name in PRECISIONS:
        assert validate_precision(name) == name
        with set_precision(name):
            pass
