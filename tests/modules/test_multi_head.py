"""Multi-head attention against `nnx.MultiHeadAttention`, and its additional features."""

import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from distattn_jax import modules
from distattn_jax.attention import Attended, DotProduct
from tests.modules.cases import CLOSE, D, N, call, draw, flax_layer, layer, place_heads
from tests.unchecked import as_users_have_it

CALLS = {
    "self-attention": ((draw(2, 5, D),), {}),
    "cross-attention": ((draw(2, 5, D), draw(2, 7, D, seed=1)), {}),
    "other values": ((draw(2, 5, D), draw(2, 7, D, seed=1), draw(2, 7, D, seed=2)), {}),
    "causal": ((draw(2, 5, D),), {"is_causal": True}),
    "float mask": ((draw(2, 5, D),), {"mask": nnx.make_causal_mask(jnp.ones((2, 5)))}),
    "no batch": ((draw(5, D),), {}),
    "two batch axes": ((draw(2, 3, 5, D),), {"mask": nnx.make_causal_mask(jnp.ones((2, 3, 5)))}),
}


@pytest.mark.parametrize(("arrays", "arguments"), CALLS.values(), ids=CALLS)
def test_dot_product_equals_the_layer_of_flax(arrays, arguments):
    ours = layer("dot_product")
    chex.assert_trees_all_equal_shapes(
        nnx.state(ours, nnx.Param), nnx.state(flax_layer(), nnx.Param)
    )
    nnx.update(ours, nnx.state(flax_layer(), nnx.Param))
    expected = call(flax_layer(), *arrays, **arguments)
    chex.assert_trees_all_close(call(ours, *arrays, **arguments), expected, **CLOSE)


@pytest.mark.parametrize(
    "arguments",
    [{"normalize_qk": True}, {"use_bias": False}, {"qkv_features": 8, "out_features": 6}],
    ids=lambda arguments: next(iter(arguments)),
)
def test_arguments_of_the_layer_of_flax_are_supported(arguments):
    ours, x = layer("dot_product", **arguments), draw(2, 5, D)
    nnx.update(ours, nnx.state(flax_layer(**arguments), nnx.Param))
    chex.assert_trees_all_close(call(ours, x), call(flax_layer(**arguments), x), **CLOSE)


@pytest.mark.parametrize("dtype", ["bool", "int32", "float32"])
def test_masks_of_zeros_and_ones_are_boolean_masks(dtype):
    attend, x = layer("dot_product"), draw(2, 5, D)
    mask = jnp.tril(jnp.ones((2, 1, 5, 5), dtype))
    expected = call(attend, x, is_causal=True)
    chex.assert_trees_all_close(call(attend, x, mask=mask), expected, **CLOSE)
    chex.assert_trees_all_close(attend(x, mask=mask), expected, **CLOSE)
    closed_over = jax.jit(lambda attend, x: attend(x, mask=mask))
    chex.assert_trees_all_close(closed_over(attend, x), expected, **CLOSE)


def test_a_mask_of_other_numbers_is_rejected():
    attend, x = layer("dot_product"), draw(2, 5, D)
    for number in (-jnp.inf, -1e9, 0.5, jnp.nan):
        mask = jnp.zeros((2, 1, 1, 5)).at[..., 2].set(number)
        with pytest.raises(ValueError, match=r"mask must be True or 1 .* `mask == 0`"):
            attend(x, mask=mask)


@pytest.mark.parametrize(
    ("batch", "shape"),
    [((5,), (5, 5)), ((5,), (1, 5, 5)), ((5,), (4, 1, 1, 5)), ((2, 3), (3, 1, 5, 5)), ((), (5, 5))],
)
def test_a_mask_without_all_axes_is_rejected(batch, shape):
    x = draw(*batch, 5, D)
    with pytest.raises(ValueError, match="mask must have the axes of the attention weights"):
        layer("dot_product")(x, mask=jnp.ones(shape, bool))


@pytest.mark.parametrize(
    ("batch", "shape"), [((), (1, 5, 5)), ((), (1, 1, 5, 5)), ((2, 3), (2, 1, 1, 5, 5))]
)
def test_the_batch_axes_of_a_mask_may_have_size_one(batch, shape):
    attend, x = layer(), draw(*batch, 5, D)
    causal = jnp.tril(jnp.ones((5, 5), bool))
    mask = jnp.broadcast_to(causal.reshape(*(1,) * (len(shape) - 2), 5, 5), shape)
    expected = call(attend, x, is_causal=True)
    chex.assert_trees_all_close(call(attend, x, mask=mask), expected, **CLOSE)


def test_the_precision_applies_to_all_products():
    attend, x = layer(precision="high"), draw(2, 5, D)
    program = str(jax.make_jaxpr(attend)(x))
    assert set(re.findall(r"precision=(.*)", program)) == {"(Precision.HIGH, Precision.HIGH)"}


def test_received_and_weights_are_returned_on_request():
    attend, x = layer(), draw(2, 5, D)
    assert isinstance(call(attend, x), jax.Array)
    attended = call(attend, x, received=True, weights=True)
    assert isinstance(attended, Attended)
    chex.assert_shape(attended.values, (2, 5, D))
    chex.assert_shape(attended.received, (2, N, 5))
    chex.assert_shape(attended.weights, (2, N, 5, 5))
    chex.assert_trees_all_close(attended.values, call(attend, x), **CLOSE)
    assert call(attend, x, received=True).weights is None


def test_lengths_hide_padding():
    attend, x = layer(), draw(2, 5, D)
    lengths = jnp.asarray([5, 3])
    padded = call(attend, x, query_lengths=lengths, key_lengths=lengths)
    chex.assert_trees_all_close(padded[1, :3], call(attend, x[1:, :3])[0], **CLOSE)


def test_dropout_is_applied_only_with_random_number_generators():
    attend, x = layer(dropout_rate=0.5), draw(2, 5, D)
    expected = attend(x)
    chex.assert_trees_all_close(attend(x, rngs=nnx.Rngs(0), deterministic=True), expected)
    dropped = attend(x, rngs=nnx.Rngs(0))
    assert not np.allclose(dropped, expected)
    chex.assert_trees_all_close(attend(x, rngs=nnx.Rngs(0)), dropped)
    chex.assert_trees_all_close(attend(x, rngs=nnx.Rngs(0), dropout_rate=0.0), expected)
    with pytest.raises(ValueError, match="rngs must be passed to the call"):
        attend(x, deterministic=False)


def test_sown_weights_equal_the_returned_weights():
    attend, x = layer(), draw(2, 5, D)
    _, captured = nnx.capture(attend, nnx.Intermediate)(x, sow_weights=True)
    (weights,) = jax.tree.leaves(captured)
    chex.assert_trees_all_close(weights, attend(x, weights=True).weights, **CLOSE)


def test_without_projections_keys_and_outputs_have_no_parameters():
    attend = layer("adapted", project_key=False, project_out=False)
    paths = {path[0] for path, _ in nnx.to_flat_state(nnx.state(attend, nnx.Param))}
    assert paths == {"query", "value", "variant"}
    x = draw(2, 5, D)
    identity = layer("adapted")
    nnx.update(identity, nnx.state(attend, nnx.Param))
    eye = jnp.eye(D).reshape(D, N, D // N)
    identity.key.kernel[...], identity.out.kernel[...] = eye, jnp.eye(D).reshape(N, D // N, D)
    chex.assert_trees_all_close(call(attend, x), call(identity, x), **CLOSE)


@pytest.mark.usefixtures("eight_devices")
@pytest.mark.parametrize(
    ("kind", "project_out"), [(AxisType.Explicit, False), (AxisType.Auto, True)]
)
def test_sharded_heads_equal_one_device(kind, project_out):
    attend, x = layer(project_out=project_out, project_key=project_out), draw(4, 5, D)

    def value_and_gradient(attend, x):
        def loss(attend):
            values = attend(x, rngs=nnx.Rngs(0), dropout_rate=0.1)
            return jnp.sin(values).sum(), values

        return jax.value_and_grad(loss, has_aux=True)(attend)

    alone = jax.jit(value_and_gradient)(attend, x)
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(kind, kind))

    with jax.set_mesh(mesh):
        placed = jax.tree_util.tree_map_with_path(place_heads(mesh), attend)
        x = jax.device_put(x, NamedSharding(mesh, PartitionSpec("data", None, None)))
        together = jax.jit(value_and_gradient)(placed, x)
    assert len(together[0][1].sharding.device_set) == 8
    chex.assert_trees_all_close(jax.device_get(together), alone, **CLOSE)


def test_errors_name_the_invalid_argument():
    x = draw(2, 5, D)
    with pytest.raises(ValueError, match="attention_fn is not supported"):
        layer(attention_fn=nnx.dot_product_attention)
    with pytest.raises(ValueError, match=r"project_key=False requires .* got 24 and 8"):
        layer("dot_product", qkv_features=8, project_key=False)
    with pytest.raises(ValueError, match="inputs_k must be given with inputs_v"):
        layer()(x, None, x)
    with pytest.raises(TypeError, match=r"variant must be None or a module .* got DotProduct"):
        as_users_have_it(modules.multi_head).MultiHeadAttention(
            N, D, variant=DotProduct(), rngs=nnx.Rngs(0)
        )


def test_all_exported_names_exist():
    for name in modules.__all__:
        assert hasattr(modules, name)
