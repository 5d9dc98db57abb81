"""Layers with rotary positions: values, meshes, caches, layers of Flax, the method."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType

from distattn_jax.attention import DotProduct, Rotary
from distattn_jax.models import METHODS, Sizes, Translator
from distattn_jax.modules import KeyValueCache, TransformerLayer, as_attention_fn
from tests import oracles
from tests.modules.cases import CLOSE, D, H, N, call, draw, flax_layer, layer

ROTARY = Rotary(base=100.0, share=0.7)  # W = 4


def place_heads(parameter):
    """Shard the axis of query heads, or of 2 key heads, over the axis `model` of the mesh."""
    return jax.device_put(
        parameter, jax.P(*("model" if n in (2, N) else None for n in parameter.shape))
    )


@nnx.jit
def decode(attend, x):
    return attend(x, decode=True)


@pytest.mark.usefixtures("eight_devices")
def test_a_variant_on_a_mesh_equals_the_oracle_with_grouped_queries_and_an_offset():
    attend = layer("distance_aware_sigmoid", rotary=ROTARY, num_key_value_heads=2)
    x, keys, offset = draw(2, 3, D), draw(2, 7, D, seed=1), np.asarray([4, 2])
    query, key, value = (
        np.einsum("btd,dnh->btnh", inputs, dense.kernel[...])
        for inputs, dense in ((x, attend.query), (keys, attend.key), (keys, attend.value))
    )
    query = oracles.rotate(query, offset[:, None] + np.arange(3), ROTARY.base, 4)
    key = oracles.rotate(key, [np.arange(7)] * 2, ROTARY.base, 4)
    variant = oracles.distance_aware(attend.variant.weight[...], (), "sigmoid", "early_multiply")
    values, *_ = oracles.attend(query, key, value, **variant, query_offset=offset, is_causal=True)
    wanted = np.einsum("btnh,nhd->btd", values, attend.out.kernel[...])

    mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    with jax.set_mesh(mesh):
        attend = jax.tree.map(place_heads, attend)
        x, keys, offset = jax.device_put((x, keys, offset), jax.P("data"))
        found = call(attend, x, keys, query_offset=offset, is_causal=True)
    assert found.sharding.spec[0] == "data"
    chex.assert_trees_all_close(jax.device_get(found), np.float32(wanted), **CLOSE)


def test_rotation_adds_no_parameters():
    rotated, plain = layer("dot_product", rotary=ROTARY), layer("dot_product")
    chex.assert_trees_all_equal(nnx.state(rotated), nnx.state(plain))


def test_a_cache_with_a_length_for_each_example_equals_the_causal_pass():
    block = TransformerLayer(D, N, rotary=Rotary(interleaved=True), rngs=nnx.Rngs(0))
    x, lengths = draw(2, 4, D), jnp.asarray([3, 1])

    @jax.jit
    def compute_both(block):
        key_value = block.attention.project_key_value(x[:, :3])
        cache = KeyValueCache.empty(2, 4, N, H, jnp.float32).append(*key_value, lengths)
        following = x[jnp.arange(2), lengths][:, None]
        return block(following, cache=cache).values[:, 0], block(x, is_causal=True).values

    step, whole = compute_both(block)
    chex.assert_trees_all_close(step, whole[jnp.arange(2), lengths], **CLOSE)


def test_our_layer_and_a_layer_of_flax_decode_with_rotary_positions():
    ours, x = layer("dot_product", rotary=ROTARY), draw(2, 3, D)
    theirs = flax_layer(attention_fn=as_attention_fn(DotProduct(), rotary=ROTARY, decode=True))
    nnx.update(ours, nnx.state(theirs, nnx.Param))
    whole = call(ours, x, is_causal=True)
    for attend in (ours, theirs):
        attend.init_cache(x.shape)
        steps = [decode(attend, x[:, i : i + 1]) for i in range(3)]
        chex.assert_trees_all_close(np.concatenate(steps, axis=1), whole, **CLOSE)


def test_the_method_rotates_self_attention_of_a_translator_only():
    sizes = Sizes(2, 4, 8, hidden_features=8, rotary=ROTARY)
    model = nnx.eval_shape(lambda: Translator(9, method="rotary", sizes=sizes, rngs=nnx.Rngs(0)))
    for layers in (model.encoder.layers, model.decoder.decoder.layers):
        assert [block.attention.rotary for block in layers] == [ROTARY]
    assert model.decoder.decoder.layers[0].cross_attention.rotary is None
    assert METHODS["rotary"].position_scale(sizes) is None
    others = [method for name, method in METHODS.items() if name != "rotary"]
    assert all(method.stack_arguments(sizes)["rotary"] is None for method in others)


def test_errors_name_the_invalid_argument():
    x, memory = draw(2, 3, D), draw(2, 7, D, seed=1)
    cross = r"rotary must be None for cross-attention.* got 3 queries and 7 keys"
    with pytest.raises(ValueError, match=cross):
        layer("dot_product", rotary=ROTARY)(x, memory)
    with pytest.raises(ValueError, match=cross):
        flax_layer(attention_fn=as_attention_fn(DotProduct(), rotary=ROTARY))(x, memory)
    with pytest.raises(ValueError, match=r"rotary must be None .* got in_kv_features=12"):
        nnx.eval_shape(lambda: layer("dot_product", rotary=ROTARY, in_kv_features=12))
    with pytest.raises(ValueError, match=r"Rotary\.share \(1\.0\) must rotate .* got 3"):
        nnx.eval_shape(lambda: layer("dot_product", rotary=Rotary(), qkv_features=12))
