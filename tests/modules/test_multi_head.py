"""Multi-head attention against `nnx.MultiHeadAttention`, and its additional features."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from distattn_jax import modules
from distattn_jax.attention import Attended
from distattn_jax.modules import MultiHeadAttention
from tests.modules.cases import CLOSE, ONE_OF_EACH, D, N, call, draw


def layer(name="distance_aware", **arguments):
    rngs = nnx.Rngs(0)
    variant = None if ONE_OF_EACH[name] is None else ONE_OF_EACH[name](rngs=rngs)
    return MultiHeadAttention(N, D, variant=variant, rngs=rngs, **arguments)


def flax_layer(**arguments):
    return nnx.MultiHeadAttention(N, D, decode=False, rngs=nnx.Rngs(0), **arguments)


CALLS = {
    "self-attention": ((draw(2, 5, D),), {}),
    "cross-attention": ((draw(2, 5, D), draw(2, 7, D, seed=1)), {}),
    "other values": ((draw(2, 5, D), draw(2, 7, D, seed=1), draw(2, 7, D, seed=2)), {}),
    "causal": ((draw(2, 5, D),), {"is_causal": True}),
    "float mask": (
        (draw(2, 5, D),),
        {"mask": nnx.make_causal_mask(jnp.ones((2, 5)))},
    ),
    "no batch": ((draw(5, D),), {}),
    "two batch axes": (
        (draw(2, 3, 5, D),),
        {"mask": nnx.make_causal_mask(jnp.ones((2, 3, 5)))},
    ),
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


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_decoding_with_a_cache_equals_the_causal_pass(name):
    attend, x = layer(name), draw(2, 6, D)
    whole = call(attend, x, is_causal=True)
    attend.init_cache((2, 8, D))

    @nnx.jit
    def step(attend, x):
        return attend(x, decode=True)

    parts = [step(attend, x[:, :3])]  # three tokens at once, then one by one
    parts += [step(attend, x[:, i : i + 1]) for i in range(3, 6)]
    chex.assert_trees_all_close(jnp.concatenate(parts, axis=1), whole, **CLOSE)


def test_decoding_equals_the_layer_of_flax():
    ours, other, x = layer("dot_product", decode=True), flax_layer(), draw(2, 4, D)
    nnx.update(ours, nnx.state(other, nnx.Param))
    for attend in (ours, other):
        attend.init_cache((2, 4, D))
    for i in range(3):
        token = x[:, i : i + 1]
        chex.assert_trees_all_close(ours(token), other(token, decode=True), **CLOSE)


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
    ("kind", "project_out"),
    [(AxisType.Explicit, True), (AxisType.Explicit, False), (AxisType.Auto, True)],
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

    def place(path, leaf):
        heads = leaf.shape.index(N) if "out" not in str(path[0]) or leaf.ndim == 3 else None
        spec = ["model" if axis == heads else None for axis in range(leaf.ndim)]
        return jax.device_put(leaf, NamedSharding(mesh, PartitionSpec(*spec)))

    with jax.set_mesh(mesh):
        placed = jax.tree_util.tree_map_with_path(place, attend)
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
    with pytest.raises(ValueError, match=r"call init_cache\(input_shape\) first"):
        layer()(x, decode=True)
    attend = layer()
    attend.init_cache((2, 4, D))
    with pytest.raises(ValueError, match=r"The cache holds .* got keys of shape"):
        attend(x, decode=True)
    with pytest.raises(ValueError, match=r"query_offset must be 0 when decoding.*got 1"):
        attend(x, decode=True, query_offset=1)


def test_all_exported_names_exist():
    for name in modules.__all__:
        assert hasattr(modules, name)
