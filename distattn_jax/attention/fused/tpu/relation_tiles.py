"""Arrays by relation in the TPU kernels: inputs, relation weights, and gradients.

The module `fused.relations` defines relations and has the equations. An array by relation has one
row per relation and one column per query. Two inputs have this form: the relation products P, and
the cotangent G of the relation weights.

The kernels convert each of these inputs to a band, which is a stack of squares of 128 keys and 128
queries: see `bands`. A program that owns a block of queries converts its inputs once. A program
that owns a block of keys converts them for each tile of queries that is not far.

The relation weights W are sums of unnormalised weights 2^(score - reference). The reference of a
query is a number that keeps these powers in range. It may change from tile to tile: see
`weight_kernels.forward`. The buffer `relation_reference` stores the reference of each query for
each square of the band, so that the last step can normalise all weights.
"""

from typing import Any

import jax
import jax.numpy as jnp

from distattn_jax.attention.fused.relations import AFTER, BEFORE, end_sides
from distattn_jax.attention.fused.score_map import ScoreMap, read_lengths
from distattn_jax.attention.fused.tpu.bands import (
    LAST,
    SQUARES,
    collapse_band,
    compute_shifts,
    expand_band,
    find_square,
)
from distattn_jax.attention.fused.tpu.kernel_body import BlockContext, KernelBody, Tile
from distattn_jax.attention.fused.tpu.registers import LANES

ENDS = {BEFORE: "relation_weights_before", AFTER: "relation_weights_after"}
GRADIENT = "relation_products_gradient"


def expand_inputs(
    body: KernelBody, names: list[str], queries: int, is_streamed: bool
) -> KernelBody:
    """Return a copy of a kernel body that first converts inputs by relation to bands.

    Such an input has one row per relation and one column per query. A band holds the same numbers
    as squares of 128 keys and 128 queries (see `bands`), and `read_relations` reads it. After the
    conversion, the new body runs the given body.

    Args:
      names: Names of these inputs.
      queries: Number of queries of a tile.
      is_streamed: True if the inputs change with each tile, because the kernel owns a block of keys
        and visits tiles of queries.
    """
    shape = (queries // LANES, SQUARES, LANES, LANES)
    bands = {_band_name(name): shape for name in names}

    def initialize(context: BlockContext) -> None:
        own = {name: ref for name, ref in context.scratch.items() if name not in bands}
        body.initialize(context._replace(scratch=own))
        if not is_streamed:
            for name in names:
                _expand(context, name, context.load(name))

    def step(context: BlockContext, tile: Tile) -> None:
        for name in names if is_streamed else ():
            if tile.kind.is_far:
                _expand_end(context, tile, name)
            else:
                _expand(context, name, tile.load(name))
        body.step(context, tile)

    return body._replace(scratch={**body.scratch, **bands}, initialize=initialize, step=step)


def read_relations(context: BlockContext, tile: Tile, name: str) -> jax.Array:
    """Return, for each entry of a tile, the number of an input that belongs to its relation.

    The input has one row per relation and one column per query. For query i and key j, the result
    contains input[r, i], where r is the relation of i and j. The result has the shape
    (keys, queries). In a far tile, all keys have the same relation, so that the shape is
    (1, queries).

    Args:
      name: Name of the input.
    """
    band = context.scratch[_band_name(name)]
    if tile.kind.is_far:
        index = _far_square(tile)
        groups = range(tile.shape[1] // LANES)
        return jnp.concatenate([band[group, index, :1] for group in groups], axis=1)
    rows: dict[int, list[jax.Array]] = {}
    for key, query, square in _list_squares(context, tile):
        rows.setdefault(key, []).append(band[query // LANES, square])
    return jnp.concatenate([jnp.concatenate(row, axis=1) for row in rows.values()], axis=0)


def weight_scratch(score_map: ScoreMap, queries: int) -> dict[str, tuple[int, ...]]:
    """Return a dict from name to shape of the buffers for the relation weights.

    The relation weights are sums of attention weights for each query and relation. The dict is
    empty if the scoring has no relation weights.

    Args:
      score_map: Scoring and window of the kernel.
      queries: Number of queries of a block.
    """
    if not score_map.scoring.has_relation_weights:
        return {}
    groups = queries // LANES
    return {
        "relation_weights": (groups, SQUARES, LANES, LANES),
        "relation_reference": (groups, SQUARES, 1, LANES),
        **{ENDS[side]: (1, queries) for side in _sides(score_map)},
    }


def scale_weights(context: BlockContext, correction: jax.Array) -> None:
    """Multiply the sums of the weights of the first and the last relation by `correction`.

    The forward kernel calls this function when the reference of a query changes. The reference is
    the number that the kernel subtracts from all scores of the query before it computes powers of
    2. Nothing happens if the scoring has no relation weights.

    Args:
      correction: Factor for each query, shape (1, queries).
    """
    if context.score_map.scoring.has_relation_weights:
        for side in _sides(context.score_map):
            context.scratch[ENDS[side]][...] *= correction


def add_weights(
    context: BlockContext, tile: Tile, weights: jax.Array, reference: jax.Array
) -> None:
    """Add the weights of a tile to the sums of weights for each query and relation.

    Args:
      weights: Weights 2^(score - reference) after dropout, shape (keys, queries).
      reference: Number that the forward kernel subtracts from all scores of a query, shape
        (1, queries).
    """
    weights = weights.astype(jnp.float32)
    ends = {side: context.scratch[ENDS[side]] for side in _sides(context.score_map)}
    if tile.kind.is_far:
        ends[tile.kind.side][...] += weights.sum(axis=0, keepdims=True)
        return
    for key, query, square in _list_squares(context, tile):
        columns = slice(query, query + LANES)
        entries = weights[key : key + LANES, columns]
        context.scratch["relation_weights"][query // LANES, square] = entries
        context.scratch["relation_reference"][query // LANES, square] = reference[:, columns]
        total = entries.sum(axis=0, keepdims=True)
        for side, end in ends.items():
            is_end = square == (0 if side == BEFORE else LAST)
            end[:, columns] += jnp.where(is_end, total, 0.0)


def finish_weights(
    context: BlockContext, *, reference: jax.Array, normaliser: jax.Array
) -> dict[str, jax.Array]:
    """Return {"relation_weights": W}, or an empty dict if the scoring has no relation weights.

    W has one row per relation and one column per query of the block.

    Args:
      reference: Number that the kernel subtracted from the scores of each query in the last tile,
        shape (1, queries).
      normaliser: Factor that converts 2^(score - reference) to attention weights, shape
        (1, queries).
    """
    if not context.score_map.scoring.has_relation_weights:
        return {}
    scratch = context.scratch
    groups = []
    for group in range(scratch["relation_weights"].shape[0]):
        columns = slice(group * LANES, (group + 1) * LANES)
        # A square that was not visited has weights of 0. The minimum keeps its factor finite.
        squares = [
            scratch["relation_weights"][group, i]
            * jnp.exp2(
                jnp.minimum(scratch["relation_reference"][group, i] - reference[:, columns], 0.0)
            )
            for i in range(1, LAST)
        ]
        zero = jnp.zeros((1, LANES), jnp.float32)
        before, after = (
            scratch[name][:, columns] if name in scratch else zero for name in ENDS.values()
        )
        weights = _collapse(context, squares, (before, after))
        groups.append(weights * normaliser[:, columns])
    return {"relation_weights": jnp.concatenate(groups, axis=1)}


def gradient_scratch(score_map: ScoreMap, queries: int) -> dict[str, tuple[int, ...]]:
    """Return {name: shape} of the buffer for the gradient of the relation products.

    The buffer is a band (see `bands`). The dict is empty if the scoring has no relation products.

    Args:
      score_map: Scoring of the kernel.
      queries: Number of queries of a block.
    """
    if not score_map.scoring.has_relation_products:
        return {}
    return {GRADIENT: (queries // LANES, SQUARES, LANES, LANES)}


def add_gradient(context: BlockContext, tile: Tile, score_gradient: jax.Array) -> None:
    """Add a tile to the buffer for the gradient of the relation products.

    The buffer is a band: squares of 128 keys and 128 queries (see `bands`). `finish_gradient` sums
    its entries by relation. Nothing happens if the scoring has no relation products.

    Args:
      score_gradient: Gradient of the scores of the tile, shape (keys, queries).
    """
    if not context.score_map.scoring.has_relation_products:
        return
    band = context.scratch[GRADIENT]
    if tile.kind.is_far and tile.kind.side == BEFORE:
        return  # The products of relation 0 are 0.
    for key, query, square in _list_squares(context, tile):
        index = _far_square(tile) if tile.kind.is_far else square
        band[query // LANES, index] += score_gradient[key : key + LANES, query : query + LANES]


def finish_gradient(context: BlockContext, multiplier: Any) -> dict[str, jax.Array]:
    """Return {name: gradient}, the gradient of the relation products.

    It has one row per relation and one column per query. The dict is empty if the scoring has no
    relation products.

    Args:
      multiplier: Factor by which the gradient is multiplied.
    """
    if not context.score_map.scoring.has_relation_products:
        return {}
    band = context.scratch[GRADIENT]
    groups = []
    for group in range(band.shape[0]):
        ends = [band[group, i].sum(axis=0, keepdims=True) for i in (0, LAST)]
        squares = [band[group, i] for i in range(1, LAST)]
        groups.append(_collapse(context, squares, (ends[0], ends[1])) * multiplier)
    return {GRADIENT: jnp.concatenate(groups, axis=1)}


def _list_squares(context: BlockContext, tile: Tile) -> list[tuple[int, int, jax.Array]]:
    """Divide a tile into squares of 128 keys and 128 queries.

    Return a triple for each square: its first key, its first query, and its index in the band from
    0 to 5 (see `bands`). Keys and queries are counted from the first key and the first query of the
    tile.
    """
    offset = read_lengths(context.scalars).offset
    return [
        (key, query, find_square(tile.query + query, tile.key + key, offset))
        for key in range(0, tile.shape[0], LANES)
        for query in range(0, tile.shape[1], LANES)
    ]


def _expand(context: BlockContext, name: str, array: jax.Array) -> None:
    """Convert an input to bands, one for each group of 128 queries, and store them in VMEM.

    A band holds the numbers of the input as squares of 128 keys and 128 queries: see `bands`.

    Args:
      name: Name of the input.
      array: Input with one row per relation and one column per query.
    """
    band, clip_distance = context.scratch[_band_name(name)], context.score_map.scoring.clip_distance
    shifts = compute_shifts(read_lengths(context.scalars).offset, clip_distance)
    for group in range(band.shape[0]):
        part = array[:, group * LANES : (group + 1) * LANES]
        squares = expand_band(part, shifts, clip_distance)
        for i in range(1, LAST):
            band[group, i] = squares[(i - 1) * LANES : i * LANES]
        for i, row in ((0, 0), (LAST, 2 * clip_distance)):
            band[group, i] = jnp.broadcast_to(part[row : row + 1], (LANES, LANES))


def _expand_end(context: BlockContext, tile: Tile, name: str) -> None:
    """Copy one row of an input into the band, for a far tile.

    All entries of a far tile have the same relation, 0 or 2k. The row of this relation has one
    number per query. It is copied to the first row of square 0 of the band for relation 0, or of
    the last square for relation 2k (see `bands`). `read_relations` reads it there.

    Args:
      tile: Far tile.
      name: Name of an input with one row per relation and one column per query.
    """
    band, square = context.scratch[_band_name(name)], _far_square(tile)
    row = 0 if square == 0 else 2 * context.score_map.scoring.clip_distance
    numbers = tile.load(name)[row : row + 1]
    for group in range(band.shape[0]):
        band[group, square, :1] = numbers[:, group * LANES : (group + 1) * LANES]


def _far_square(tile: Tile) -> int:
    """Return the index of the square in a band that stands for every square of a far tile.

    The index is 0 if all entries of the tile have relation 0, and 5 if all of them have the last
    relation, 2k: see `bands`.
    """
    return 0 if tile.kind.side == BEFORE else LAST


def _collapse(
    context: BlockContext, squares: list[jax.Array], ends: tuple[jax.Array, jax.Array]
) -> jax.Array:
    """Sum the entries of a band by relation, for 128 queries: see `collapse_band`.

    The result has one row per relation and one column per query.

    Args:
      squares: Squares 1 to 4 of the band (see `bands`), each of 128 keys and 128 queries.
      ends: Sums over all other squares: first for relation 0, then for relation 2k. Each has shape
        (1, 128).
    """
    clip_distance = context.score_map.scoring.clip_distance
    shifts = compute_shifts(read_lengths(context.scalars).offset, clip_distance)
    return collapse_band(jnp.concatenate(squares, axis=0), shifts, clip_distance, ends)


def _band_name(name: str) -> str:
    """Return the name of the buffer that holds the band of an input."""
    return f"{name}_band"


def _sides(score_map: ScoreMap) -> tuple[int, ...]:
    """Return the sides on which visible keys can be far from their query: see `end_sides`."""
    return end_sides(is_causal=score_map.window.is_causal)
