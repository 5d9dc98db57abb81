"""Decoding with the caches of multi-head attention and of decoders."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from distattn_jax.modules import KeyValueCache
from tests.modules.cases import CLOSE, D, call, draw, flax_layer, layer, place_heads


@functools.partial(nnx.jit, static_argnames="received")
def decode(attend, x, **arguments):
    """Append inputs to the cache of a layer and attend to the whole cache."""
    return attend(x, decode=True, **arguments)


@pytest.mark.parametrize("name", ["relative_position", "transformer_xl"])
def test_decoding_with_a_cache_equals_the_causal_pass(name):
    attend, x = layer(name), np.asarray(draw(2, 6, D))
    whole = call(attend, x, is_causal=True)
    attend.init_cache((2, 8, D))
    parts = [decode(attend, x[:, :3])]  # three tokens at once, then one by one
    parts += [decode(attend, x[:, i : i + 1]) for i in range(3, 6)]
    chex.assert_trees_all_close(np.concatenate(parts, axis=1), whole, **CLOSE)


def test_decoding_equals_the_layer_of_flax():
    ours, other, x = layer("dot_product"), flax_layer(), draw(2, 4, D)
    nnx.update(ours, nnx.state(other, nnx.Param))
    for attend in (ours, other):
        attend.init_cache((2, 4, D))
    for i in range(3):
        token = x[:, i : i + 1]
        chex.assert_trees_all_close(decode(ours, token), decode(other, token), **CLOSE)


def test_decoding_works_with_64_bit_types():
    with jax.enable_x64(True):
        attend = layer(param_dtype=jnp.float64)
        x = draw(2, 4, D).astype(jnp.float64)
        whole = call(attend, x, is_causal=True)
        attend.init_cache((2, 4, D))
        parts = [decode(attend, x[:, :2]), decode(attend, x[:, 2:])]
        chex.assert_trees_all_close(np.concatenate(parts, axis=1), whole, rtol=1e-12)


def test_a_cache_that_overflows_is_an_error_or_nan():
    attend, x = layer("dot_product", decode=True), draw(2, 3, D)
    attend.init_cache((2, 4, D))
    assert np.isfinite(decode(attend, x, received=True).values).all()
    with pytest.raises(ValueError, match=r"room for 4 keys, of which 3 are filled; got 3 more"):
        attend(x)
    assert attend.cache_index[...] == 3  # The failed call changed nothing.
    assert np.isfinite(attend(x[:, :1])).all()
    attended = decode(attend, x, received=True)
    assert np.isnan(attended.values).all()
    assert np.isnan(attended.received).all()


def test_the_cache_has_the_dtype_of_the_computation():
    for arguments, expected in (
        ({}, "float32"),
        ({"dtype": jnp.bfloat16}, "bfloat16"),
        ({"param_dtype": jnp.bfloat16}, "float32"),
    ):
        attend = layer("dot_product", **arguments)
        attend.init_cache((2, 4, D))
        assert attend.cached_key.dtype == attend.cached_value.dtype == expected


@pytest.mark.usefixtures("eight_devices")
@pytest.mark.parametrize("kind", [AxisType.Explicit, AxisType.Auto])
def test_decoding_on_a_mesh_equals_one_device(kind):
    attend, x = layer(), draw(4, 4, D)
    whole = call(attend, x, is_causal=True)
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(kind, kind))
    with jax.set_mesh(mesh):
        placed = jax.tree_util.tree_map_with_path(place_heads(mesh), attend)
        x = jax.device_put(x, NamedSharding(mesh, PartitionSpec("data", None, None)))
        placed.init_cache(x.shape)
        parts = [decode(placed, x[:, :2]), decode(placed, x[:, 2:])]
    assert placed.cached_key[...].sharding.spec[:3] == ("data", None, "model")
    chex.assert_trees_all_close(np.concatenate(jax.device_get(parts), axis=1), whole, **CLOSE)


def test_errors_name_the_invalid_argument():
    x = draw(2, 5, D)
    with pytest.raises(ValueError, match=r"call init_cache\(input_shape\) first"):
        layer()(x, decode=True)
    attend = layer()
    attend.init_cache((2, 4, D))
    with pytest.raises(ValueError, match=r"The cache holds .* got keys of shape"):
        attend(x, decode=True)
    with pytest.raises(ValueError, match=r"query_offset must be 0 when decoding.*got 1"):
        attend(x, decode=True, query_offset=1)


# -- cache with a length for each example


def make_tokens(*numbers):
    """Return keys of shape (B, T, 1, 1) that contain these numbers."""
    return jnp.asarray(numbers, jnp.float32)[..., None, None]


def test_every_example_has_its_own_number_of_tokens():
    cache = KeyValueCache.empty(2, 4, 1, 1, jnp.float32)
    cache = cache.append(
        make_tokens([1, 2], [3, 0]), make_tokens([5, 6], [7, 0]), jnp.array([2, 1])
    )
    np.testing.assert_array_equal(cache.lengths, [2, 1])
    cache = cache.append(make_tokens([8], [9]), make_tokens([8], [9]))
    np.testing.assert_array_equal(cache.lengths, [3, 2])
    np.testing.assert_array_equal(cache.key[..., 0, 0], [[1, 2, 8, 0], [3, 9, 0, 0]])
    np.testing.assert_array_equal(cache.value[..., 0, 0], [[5, 6, 8, 0], [7, 9, 0, 0]])


def test_an_example_that_overflows_is_nan():
    cache = KeyValueCache.empty(2, 2, 1, 1, jnp.float32)
    cache = cache.append(
        make_tokens([1, 2], [3, 0]), make_tokens([1, 2], [3, 0]), jnp.array([2, 1])
    )
    cache = cache.append(make_tokens([4], [5]), make_tokens([4], [5]))
    assert jnp.isnan(cache.key[0]).all()
    np.testing.assert_array_equal(cache.key[1, :, 0, 0], [3, 5])


def test_more_tokens_than_room_are_refused():
    cache = KeyValueCache.empty(1, 2, 1, 1, jnp.float32)
    with pytest.raises(ValueError, match="key must have at most 2 tokens"):
        cache.append(make_tokens([1, 2, 3]), make_tokens([1, 2, 3]))
