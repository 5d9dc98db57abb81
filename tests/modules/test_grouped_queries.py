"""Multi-head attention with fewer heads for keys and values than for queries."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from distattn_jax.attention import DotProduct
from distattn_jax.modules import TransformerLayer, as_attention_fn
from distattn_jax.sharding import Layout, shardings
from tests.modules.cases import CLOSE, MAKERS, D, H, N, call, draw, flax_layer, layer


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


def test_errors_name_the_invalid_argument():
    for heads in (0, 3, 8):
        with pytest.raises(ValueError, match=rf"num_key_value_heads must .*\(4\); got {heads}"):
            layer(num_key_value_heads=heads)
    with pytest.raises(ValueError, match=r"num_kv_heads is not supported.*num_key_value_heads"):
        layer(num_kv_heads=2)
    with pytest.raises(ValueError, match=r"project_key=False requires .* got 24 and 12"):
        layer(num_key_value_heads=2, project_key=False)
