"""Packed sequences, local windows and scales in layers."""

import chex
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from distattn_jax.modules import Encoder, SegmentMemory, as_attention_fn
from tests.modules.cases import CLOSE, MAKERS, D, N, call, draw, flax_layer, layer


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
