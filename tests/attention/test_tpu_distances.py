"""Distances of a tile on a TPU, and reciprocals that are estimated for 16-bit inputs."""

import functools

import chex
import jax
import jax.numpy as jnp
import pytest

from distattn_jax.attention.fused.distance_functions import (
    LINEAR,
    SIGMOID,
    Coefficients,
    FunctionCotangent,
)
from distattn_jax.attention.fused.score_map import ScoreMap
from distattn_jax.attention.fused.scoring import DistanceScoring
from distattn_jax.attention.fused.tile_runs import TileKind
from distattn_jax.attention.fused.tpu.distance_tiles import view_distances
from distattn_jax.attention.fused.tpu.kernel_body import BlockContext, Tile
from distattn_jax.attention.fused.visible_columns import Window

SHAPE = (128, 24)  # keys and queries of the tile
OFFSET = 3


def make_distances(query, key, function, *, is_16_bit):
    """Return the distances of the tile that begins with a query and a key."""
    lengths = (jnp.int32(256), jnp.int32(256), jnp.int32(OFFSET))
    scoring = DistanceScoring(1.0, function, is_additive=False)
    flags = dict.fromkeys(("has_key_mask", "has_segments", "has_mask", "has_dropout"), False)
    score_map = ScoreMap(scoring, Window(), **flags, is_transposed=False, is_16_bit=is_16_bit)
    context = BlockContext(
        score_map,
        start=jnp.int32(query),
        load=lambda name: jnp.zeros(0),
        scalars={"lengths": lengths},
        is_first=jnp.bool_(True),
        **{name: {} for name in ("skipped_sums", "scratch", "kept", "sums")},
    )
    tile = Tile(jnp.int32(query), jnp.int32(key), TileKind(), SHAPE, lambda name: jnp.zeros(0))
    expected = query + OFFSET + jnp.arange(SHAPE[1])[None] - key - jnp.arange(SHAPE[0])[:, None]
    return view_distances(context, tile), jnp.abs(expected).astype(jnp.float32)


@pytest.mark.parametrize("is_16_bit", [True, False])
@pytest.mark.parametrize(("query", "key"), [(200, 16), (16, 16), (16, 64)])
@pytest.mark.parametrize(("slope", "shift"), [(-0.3, 2.0), (0.3, -12.0), (4.0, 0.0), (-40.0, 1.0)])
def test_functions_of_the_distance_equal_their_formulas(query, key, is_16_bit, slope, shift):
    coefficients = Coefficients(*map(jnp.float32, (slope, shift, 1.0, 0.0, 0.0)))
    cotangent = FunctionCotangent(lambda: jnp.ones(SHAPE), lambda: jnp.ones(SHAPE))
    for function in (SIGMOID, LINEAR):
        distances, expected = make_distances(query, key, function, is_16_bit=is_16_bit)
        chex.assert_trees_all_equal(distances.entries(), expected)
        line = slope * expected + shift
        value = 1 / (1 + jnp.exp(-line)) if function is SIGMOID else line
        actual = jax.jit(functools.partial(function.evaluate, distances))(coefficients)
        tolerance = 1e-4 if is_16_bit else 1e-5  # The interpreter estimates reciprocals coarsely.
        smallest = 1e-25 if function is SIGMOID else tolerance * abs(slope)
        chex.assert_trees_all_close(actual, value, rtol=tolerance, atol=smallest)
        gradients = function.gradients(cotangent, distances, actual, coefficients)
        chex.assert_tree_all_finite(gradients)
