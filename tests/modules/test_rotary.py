"""Layers with rotary positions: values, caches, packed sequences, meshes, layers of Flax."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from distattn_jax.attention import DotProduct, Rotary
from distattn_jax.models import METHODS, Sizes, Translator
from distattn_jax.modules import (
    KeyValueCache,
    MultiHeadAttention,
    TransformerLayer,
    as_attention_fn,
)
from tests import oracles
from tests.modules.cases import CLOSE, D, H, N, call, draw, flax_layer, layer, place_heads

ROTARY = Rotary(base=100.0, share=0.7)  # W = 4


@nnx.jit
def decode(attend, x):
    return attend(x, decode=True)


def test_attention_equals_the_oracle_with_grouped_queries_and_an_offset():
    attend = layer("dot_product", rotary=ROTARY, num_key_value_heads=2)
    x, keys, offset = draw(2, 3, D), draw(2, 7, D, seed=1), np.asarray([4, 2])
    found = call(attend, x, keys, query_offset=offset, is_causal=True)
    query = oracles.rotate(attend.query(x), offset[:, None] + np.arange(3), 100.0, 4)
    key = oracles.rotate(attend.key(keys), [np.arange(7)] * 2, 100.0, 4)
    values, *_ = oracles.attend(
        query,
        key,
        attend.value(keys),
        **oracles.dot_product(),
        query_offset=offset,
        is_causal=True,
    )
    chex.assert_trees_all_close(found, attend.out(jnp.float32(values)), **CLOSE)


def test_rotation_adds_no_parameters_and_works_with_any_variant():
    for name in ("dot_product", "relative_position"):
        rotated, plain = layer(name, rotary=ROTARY), layer(name)
        chex.assert_trees_all_equal(nnx.state(rotated), nnx.state(plain))
        x = draw(2, 5, D)
        assert not np.allclose(call(rotated, x), call(plain, x), atol=1e-3)


@pytest.mark.usefixtures("eight_devices")
def test_decoding_on_a_mesh_equals_the_causal_pass_on_one_device():
    attend, x = layer("dot_product", rotary=ROTARY), draw(4, 4, D)
    whole = call(attend, x, is_causal=True)
    explicit = (AxisType.Explicit,) * 2
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=explicit)
    with jax.set_mesh(mesh):
        placed = jax.tree_util.tree_map_with_path(place_heads(mesh), attend)
        x = jax.device_put(x, NamedSharding(mesh, PartitionSpec("data", None, None)))
        placed.init_cache(x.shape)
        parts = [decode(placed, x[:, :3]), decode(placed, x[:, 3:])]
    assert placed.cached_key[...].sharding.spec[:3] == ("data", None, "model")
    chex.assert_trees_all_close(np.concatenate(jax.device_get(parts), axis=1), whole, **CLOSE)


def test_a_cache_with_a_length_for_each_example_equals_the_causal_pass():
    block = TransformerLayer(D, N, rotary=Rotary(interleaved=True), rngs=nnx.Rngs(0))
    x = draw(2, 5, D)
    whole = call(block, x, is_causal=True).values

    @jax.jit
    def continue_from(block, lengths):
        cache = KeyValueCache.empty(2, 8, N, H, jnp.float32)
        cache = block(x[:, :3], cache=cache, lengths=lengths).cache
        following = jax.vmap(lambda row, i: row[i])(x, cache.lengths)
        return block(following[:, None], cache=cache).values[:, 0]

    lengths = np.asarray([3, 1])
    chex.assert_trees_all_close(continue_from(block, lengths), whole[[0, 1], lengths], **CLOSE)


def test_packed_sequences_equal_separate_sequences():
    attend, x = layer("dot_product", rotary=ROTARY), draw(2, 6, D)
    packed = call(attend, x, query_segments=np.asarray([[0, 0, 0, 1, 1, 1]] * 2))
    separate = call(attend, x.reshape(4, 3, D))
    chex.assert_trees_all_close(packed.reshape(4, 3, D), separate, **CLOSE)


def test_a_layer_of_flax_decodes_with_rotary_positions():
    ours, x = layer("dot_product", rotary=ROTARY), draw(2, 3, D)
    theirs = flax_layer(attention_fn=as_attention_fn(DotProduct(), rotary=ROTARY, decode=True))
    nnx.update(ours, nnx.state(theirs, nnx.Param))
    whole = call(ours, x, is_causal=True)
    mask = nnx.make_causal_mask(x[..., 0])
    chex.assert_trees_all_close(call(theirs, x, mask=mask), whole, **CLOSE)
    theirs.init_cache(x.shape)
    steps = [decode(theirs, x[:, i : i + 1]) for i in range(3)]
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
        layer("dot_product", rotary=ROTARY, in_kv_features=12)
    with pytest.raises(ValueError, match=r"Rotary\.share \(1\.0\) must rotate .* got 3"):
        MultiHeadAttention(8, D, rotary=Rotary(), rngs=nnx.Rngs(0))
