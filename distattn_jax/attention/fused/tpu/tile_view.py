"""Scores, visibility and distances of one tile, with one row per key and one column per query."""

import functools
import operator

import jax
import jax.numpy as jnp
from jax.experimental.pallas import tpu as pltpu

from distattn_jax import hash
from distattn_jax.attention.fused.interpreter import is_interpreted
from distattn_jax.attention.fused.score_map import TileView, read_coefficients, read_lengths
from distattn_jax.attention.fused.tpu.distance_tiles import read_distances
from distattn_jax.attention.fused.tpu.kernel_body import BlockContext, Tile
from distattn_jax.attention.fused.tpu.position_tiles import read_positions
from distattn_jax.attention.fused.tpu.registers import lane_indices, sublane_indices, to_column
from distattn_jax.attention.fused.tpu.relation_tiles import read_relations


def view_tile(
    context: BlockContext, tile: Tile, products: jax.Array, *, for_gradient: bool = False
) -> TileView:
    """Return the scores of a tile, with their distances and visibility mask.

    All arrays of the result have the shape (keys, queries).

    Args:
      products: Products q · k, shape (keys, queries).
      for_gradient: If True, keep the intermediate results from which the gradient of the scores is
        computed.
    """
    scoring = context.score_map.scoring
    coefficients = read_coefficients(context.scalars)
    positions = scoring.read_positions(
        lambda: read_distances(context, tile),
        functools.partial(read_table, tile),
        is_far=tile.kind.is_far,
    )
    visible = view_visibility(context, tile)
    if scoring.has_positions:
        products += read_positions(context, tile)
    if scoring.has_relation_products:
        products += read_relations(context, tile, "relation_products")
    tile_scores = scoring.score(products, positions, coefficients, for_gradient=for_gradient)
    return TileView(scoring, tile_scores, positions, visible, coefficients)


def kept_by_dropout(context: BlockContext, tile: Tile) -> jax.Array:
    """Return a mask of shape (keys, queries) that is True for the entries that dropout keeps."""
    keys, queries = tile.shape
    query_word, key_word, *first, threshold = context.scalars["dropout_words"]
    first_query, first_key = (index.astype(jnp.int32) for index in first)
    query_hash, query_shift = hash.hash_indices(
        query_word, lane_indices((1, queries)) + (first_query + tile.query), shift=16
    )
    key_hash, key_shift = hash.hash_indices(
        key_word, sublane_indices((keys, 1)) + (first_key + tile.key), shift=8
    )
    return hash.is_kept(query_hash ^ key_hash, query_shift + key_shift, threshold)


def view_visibility(context: BlockContext, tile: Tile) -> jax.Array | None:
    """Return a mask of a tile that is True for visible entries, or None if all are visible.

    The mask has the shape (keys, queries), or broadcasts to it.

    Padded queries count as visible: the forward kernel sets their outputs to 0, and their logsumexp
    makes their weights 0 in all other kernels. If the rows of the score map are keys, padded keys
    and keys that the key mask hides also count as visible, because the kernels set the outputs of
    these keys to 0.
    """
    if not tile.kind.is_masked:
        return None
    conditions = []
    if not context.score_map.is_transposed:
        if context.score_map.has_key_mask:
            conditions.append(to_column(tile.load("key_mask")) > 0)
        else:
            keys = sublane_indices((tile.shape[0], 1))
            conditions.append(keys < read_lengths(context.scalars).key - tile.key)
    conditions += context.score_map.window.compare(lambda: _relative_positions(context, tile))
    if context.score_map.has_segments:
        segments = context.load("row_segments"), tile.load("column_segments")
        keys, queries = segments if context.score_map.is_transposed else segments[::-1]
        conditions.append(to_column(keys) == queries)
    if context.score_map.has_mask:
        conditions.append(tile.load("mask").astype(jnp.int32) != 0)
    return functools.reduce(operator.and_, conditions)


def _relative_positions(context: BlockContext, tile: Tile) -> jax.Array:
    """Return (position of query - position of key) for each entry of a tile.

    The result has the shape (keys, queries).
    """
    first = tile.query + read_lengths(context.scalars).offset - tile.key
    return lane_indices(tile.shape) - sublane_indices(tile.shape) + first


def read_table(tile: Tile, name: str) -> jax.Array:
    """Return one number for each entry of a tile, from the table of this name."""
    return expand_diagonals(tile.load(name), tile.shape)


def expand_diagonals(numbers: jax.Array, shape: tuple[int, int]) -> jax.Array:
    """Return a tile of shape (keys, queries) whose entry (j, i) is numbers[0, i - j + keys].

    Args:
      numbers: One number for each diagonal, shape (1, keys + queries).
      shape: Number of keys and number of queries of the tile.
    """
    keys, queries = shape
    if is_interpreted():  # The interpreter splits the rotation below into hundreds of operations.
        return numbers[0, lane_indices(shape) - sublane_indices(shape) + keys]
    rows = jnp.broadcast_to(numbers, (keys, keys + queries))
    # Row j is rotated by j to the right: its lane `keys + i` then contains numbers[keys + i - j].
    return pltpu.roll(rows, 0, 1, stride=1, stride_axis=0)[:, keys:]
