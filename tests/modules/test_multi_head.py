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
from distattn_jax.modules import Encoder, SegmentMemory, TransformerLayer, as_attention_fn
from distattn_jax.sharding import Layout, shardings
from tests.modules.cases import CLOSE, MAKERS, D, H, N, call, draw, flax_layer, layer, place_heads
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


@pytest.mark.parametrize(("precision", "is_rounded"), [("BF16_BF16_F32", True), (None, False)])
def test_the_precision_is_passed_on_to_the_attention(precision, is_rounded):
    attend, x = layer(precision=precision), draw(2, 5, D)
    program = jax.make_jaxpr(attend)(x)
    assert ("bf16[" in str(program)) == is_rounded
    assert program.out_avals[0].dtype == jnp.float32


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


# -- fewer heads for keys and values than for queries


@pytest.mark.parametrize("name", ["distance_aware", "relative_position"])
def test_grouped_queries_equal_repeated_key_heads(name):
    grouped, repeated, x = layer(name, num_key_value_heads=2), layer(name), draw(2, 5, D)
    chex.assert_shape((grouped.key.kernel[...], grouped.value.kernel[...]), (D, 2, H))
    repeated.query, repeated.out, repeated.variant = grouped.query, grouped.out, grouped.variant
    for part in ("key", "value"):
        kernel = getattr(grouped, part).kernel[...]
        getattr(repeated, part).kernel[...] = jnp.repeat(kernel, N // 2, axis=1)
    expected = call(repeated, x, is_causal=True, received=True)
    chex.assert_trees_all_close(call(grouped, x, is_causal=True, received=True), expected, **CLOSE)


def test_the_cache_has_the_heads_of_the_keys():
    attend, x = layer(num_key_value_heads=1), np.asarray(draw(2, 4, D))
    whole = call(attend, x, is_causal=True)
    attend.init_cache((2, 4, D))
    chex.assert_shape(attend.cached_key[...], (2, 4, 1, H))
    decode = nnx.jit(lambda attend, x: attend(x, decode=True))
    parts = [decode(attend, x[:, :2]), decode(attend, x[:, 2:])]
    chex.assert_trees_all_close(np.concatenate(parts, axis=1), whole, **CLOSE)


def test_the_layer_of_flax_may_have_grouped_queries():
    x, arguments = draw(2, 5, D), {"num_kv_heads": 2}
    expected = call(flax_layer(**arguments), x)
    ours = flax_layer(attention_fn=as_attention_fn(DotProduct()), **arguments)
    chex.assert_trees_all_close(call(ours, x), expected, **CLOSE)


def test_keys_without_a_projection_are_split_into_their_heads():
    attend = layer("dot_product", num_key_value_heads=2, in_kv_features=2 * H, project_key=False)
    projected = layer("dot_product", num_key_value_heads=2, in_kv_features=2 * H)
    nnx.update(projected, nnx.state(attend, nnx.Param))
    projected.key.kernel[...] = jnp.eye(2 * H).reshape(2 * H, 2, H)
    x, keys = draw(2, 5, D), draw(2, 7, 2 * H, seed=1)
    chex.assert_trees_all_close(call(attend, x, keys), call(projected, x, keys), **CLOSE)


@pytest.mark.usefixtures("eight_devices")
@pytest.mark.parametrize(("heads", "spec"), [(2, "model"), (1, None)])
def test_key_heads_that_a_mesh_cannot_divide_are_replicated(heads, spec):
    variant = MAKERS["distance_aware"](rngs=nnx.Rngs(0))
    block = TransformerLayer(D, N, variant=variant, num_key_value_heads=heads, rngs=nnx.Rngs(0))
    x = draw(4, 5, D)
    alone = call(block, x).values
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    graph, state = nnx.split(block)
    params = nnx.to_pure_dict(state)
    with jax.set_mesh(mesh):
        nnx.replace_by_pure_dict(state, jax.device_put(params, shardings(params, mesh, Layout())))
        x = jax.device_put(x, NamedSharding(mesh, PartitionSpec("data", None, None)))
        together = call(nnx.merge(graph, state), x).values
    assert state["attention"]["query"]["kernel"][...].sharding.spec[1] == "model"
    assert state["attention"]["value"]["kernel"][...].sharding.spec[1] == spec
    chex.assert_trees_all_close(jax.device_get(together), alone, **CLOSE)


# -- packed sequences, local windows and scales


def test_packed_sequences_equal_separate_sequences():
    model = Encoder(1, D, N, variant=MAKERS["transformer_xl"], rngs=nnx.Rngs(0))
    x = draw(1, 6, D)
    segments = jnp.asarray([[1, 1, 1, 2, 2, 2]])
    packed = call(model, x, segments=segments).values
    separate = call(model, x.reshape(2, 3, D)).values
    chex.assert_trees_all_close(packed.reshape(2, 3, D), separate, **CLOSE)


@pytest.mark.parametrize("batch", [(), (2, 3)])
def test_keys_of_self_attention_have_the_segments_of_the_queries(batch):
    attend, x = layer(), draw(*batch, 6, D)
    segments = jnp.broadcast_to(jnp.asarray([0, 0, 0, 1, 1, 1]), (*batch, 6))
    actual = call(attend, x, query_segments=segments)
    expected = [call(attend, x[..., :3, :]), call(attend, x[..., 3:, :])]
    chex.assert_trees_all_close(actual, np.concatenate(expected, axis=-2), **CLOSE)
    with pytest.raises(ValueError, match="key_segments must be given"):
        attend(x, x, query_segments=segments)


def test_a_window_limits_the_distance_of_visible_keys():
    x = np.asarray(draw(2, 6, D))
    windowed = layer(local_window_size=(1, 0), scale=0.5)
    distance = np.arange(6)[:, None] - np.arange(6)[None, :]
    mask = ((distance >= 0) & (distance <= 1))[None, None]
    expected = call(layer(scale=0.5), x, mask=mask)
    chex.assert_trees_all_close(call(windowed, x), expected, **CLOSE)
    windowed.init_cache((2, 6, D))
    decode = nnx.jit(lambda attend, x: attend(x, decode=True))
    parts = [decode(windowed, x[:, :3]), decode(windowed, x[:, 3:])]
    chex.assert_trees_all_close(np.concatenate(parts, axis=1), expected, **CLOSE)
    attention_fn = as_attention_fn(windowed.variant, local_window_size=(1, 0), scale=0.5)
    attend = flax_layer(attention_fn=attention_fn)
    for part in ("query", "key", "value", "out"):
        setattr(attend, part, getattr(windowed, part))
    chex.assert_trees_all_close(call(attend, x), expected, **CLOSE)


def test_a_scale_multiplies_the_queries():
    attend, scaled, x = layer("dot_product"), layer("dot_product", scale=3.0), draw(2, 5, D)
    assert not jnp.allclose(call(attend, x), call(scaled, x))
    factor = 3.0 * attend.head_dim**0.5
    attend.query.kernel[...] *= factor
    chex.assert_trees_all_close(call(attend, x), call(scaled, x), **CLOSE)


def test_segments_with_a_memory_are_rejected():
    model, x = Encoder(1, D, N, rngs=nnx.Rngs(0)), draw(2, 3, D)
    with pytest.raises(ValueError, match="segments must be None with a memory"):
        model(x, segments=jnp.ones((2, 3), int), memory=SegmentMemory.empty(1, 2, 4, D))


# -- errors


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
    for heads in (0, 3, 8):
        with pytest.raises(ValueError, match=rf"num_key_value_heads must .*\(4\); got {heads}"):
            layer(num_key_value_heads=heads)
    with pytest.raises(ValueError, match=r"num_kv_heads is not supported.*num_key_value_heads"):
        layer(num_kv_heads=2)
    with pytest.raises(ValueError, match=r"project_key=False requires .* got 24 and 12"):
        layer(num_key_value_heads=2, project_key=False)


def test_all_exported_names_exist():
    for name in modules.__all__:
        assert hasattr(modules, name)
