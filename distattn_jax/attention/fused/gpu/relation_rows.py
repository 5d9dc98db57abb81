"""Kernels that multiply the tables of relations themselves, for `Scoring.multiplies_tables`.

The module `relations` of the package `fused` defines relations, P, W, G and the end relations 0 and
2k. The tables have one vector for each of the relations 1 to 2k. A warpgroup keeps one row of P for
each of its queries in shared memory, and one row of G in the backward pass. The columns of such a
buffer are the relations 1 to 2k, padded to a multiple of 16. Before the first tile, the kernels
`forward` and `query_gradient` fill the buffer of P, and `query_gradient` also that of G:

    P = Q A_Kᵀ,    G = dO A_Vᵀ

Each relation from 1 to 2k - 1 of a query belongs to one key. A band tile reads the numbers of its
entries, and then overwrites them with results: `forward` writes scores over P, `query_gradient`
writes the gradient dS of the scores over P, and weights over G. After the last tile, the kernels
read the buffers, and multiply once more:

    forward           O += W A_V
    query_gradient    dQ += dS A_K

`query_gradient` also writes W and dS to global memory, in 16 bits. W has `FIRST_COLUMNS` further
columns. The first of them is for the weights of relation 0. The gradients of the tables are matrix
products of W with dO, and of dS with Q. The kernel `key_gradient` reads the weights and gradients
of band tiles from global memory, and needs neither P nor G.

The vector of relation 0 is treated separately. For keys, it was subtracted from the other vectors
(see `relations`). For values, it is the input `first_value`. Without dropout, the weights of a
query sum to 1. Adding one number to the gradients of all its weights then changes no gradient of a
score. The kernels therefore subtract G[i, 0] from G, and far tiles of relation 0 need no number of
G.
"""

from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.numpy as jnp

from distattn_jax.attention.fused.gpu import mosaic
from distattn_jax.attention.fused.gpu.kernel_body import WarpgroupContext
from distattn_jax.attention.fused.relations import MAX_PRECISE_DISTANCE
from distattn_jax.attention.fused.score_map import read_dropout_scale, read_lengths
from distattn_jax.attention.fused.scoring import Scoring

ROWS = 64  # of a warpgroup
CHUNK = 64  # columns of a buffer that are in registers at the same time
PADDING = 8  # columns of a buffer: neighbouring rows then begin in different banks
PRODUCTS, COTANGENT = "relation_products", "relation_cotangent"  # names of buffers
WEIGHTS, GRADIENT = "relation_weights", "relation_gradient"  # names of arrays in global memory
FIRST_COLUMNS = 8  # further columns of WEIGHTS: the weights of relation 0, and zeros

Vectors = dict[str, jax.Array]


def count_columns(clip_distance: int) -> int:
    """Return the number of columns of the buffers: 2k, rounded up to a multiple of 16."""
    return 2 * clip_distance + -2 * clip_distance % 16


def scratch_buffers(scoring: Scoring, *, has_cotangent: bool = False) -> dict[str, Any]:
    """Return the buffers in shared memory that a kernel needs, as in `KernelBody.scratch`.

    The result is empty if the kernels do not multiply tables.

    Args:
      has_cotangent: True for the kernel `query_gradient`, which has a second buffer.
    """
    if not scoring.multiplies_tables:
        return {}
    shape = (ROWS, count_columns(scoring.clip_distance) + PADDING)
    buffers = {PRODUCTS: (shape, "float32")}
    if has_cotangent:
        is_precise = scoring.clip_distance <= MAX_PRECISE_DISTANCE
        buffers[COTANGENT] = (shape, "float32" if is_precise else "bfloat16")
    return buffers


def multiply_query(context: WarpgroupContext) -> Vectors:
    """Write P to its buffer. Return the numbers of relation 2k, one for each query.

    The result is a dict from name to vector, for `add_vectors`. It is empty if there is no table of
    vectors for keys, and under a causal mask.
    """
    if "key_table" not in context.tables:
        return {}
    after = _fill(context, context.resident["query"], "key_table", PRODUCTS, None)
    return {f"{PRODUCTS}_after": after} if _has_after(context) else {}


def multiply_cotangent(context: WarpgroupContext) -> tuple[Vectors, jax.Array]:
    """Write G to its buffer. Return the vectors of the end relations, and a vector to add to -D.

    Each vector has one number for each query. The first result is a dict for `add_vectors`. It has
    relation 0 only with dropout, and relation 2k only without a causal mask. Without dropout,
    G[i, 0] is subtracted from all numbers of query i, and is the second result. With dropout, the
    second result is 0.
    """
    if "value_table" not in context.tables:
        return {}, mosaic.full((ROWS,), 0.0)
    cotangent = mosaic.load_tile(context.resident["values_cotangent"])
    first_value = mosaic.expand_per_column(_load_first_value(context), cotangent.shape)
    first = mosaic.sum_rows(cotangent * first_value)
    is_shifted = not context.score_map.has_dropout
    after = _fill(
        context,
        context.resident["values_cotangent"],
        "value_table",
        COTANGENT,
        first if is_shifted else None,
    )
    vectors = {} if is_shifted else {f"{COTANGENT}_before": first}
    vectors |= {f"{COTANGENT}_after": after} if _has_after(context) else {}
    return vectors, first if is_shifted else mosaic.full((ROWS,), 0.0)


def add_vectors(context: WarpgroupContext, vectors: Vectors) -> WarpgroupContext:
    """Return `context` with more vectors in `WarpgroupContext.vectors`."""
    return context._replace(vectors={**context.vectors, **vectors})


def add_relation_values(
    context: WarpgroupContext,
    values: jax.Array,
    logsumexp: jax.Array,
    ends: list[jax.Array],
) -> jax.Array:
    """Return `values` plus the vectors of all relations, weighted by W.

    The weights W come from the scores in the buffer of P. Relations 0 and 2k use `ends` instead.

    Args:
      values: Normalised sum of values for each query.
      logsumexp: Logsumexp of the scores of each query, to base 2.
      ends: Final weights of relation 0 and, unless the mask is causal, of relation 2k.
    """
    multiplier = context.score_map.scoring.score_multiplier(None)
    mosaic.wait_for_threads()  # The scores of other threads must have arrived.
    scale = read_dropout_scale(context.scalars)

    def weigh(scores):
        logarithm = mosaic.expand_per_row(logsumexp, scores.shape)
        return jnp.exp2(scores * multiplier - logarithm) * scale

    for start, count in _chunks(context):
        weights = _read_chunk(context, PRODUCTS, start, count, ends[1:], weigh)
        (values,) = context.products.accumulate(
            (values,),
            ((weights, context.tables["value_table"].at[pl.ds(start, count)]),),
        )
    first_value = mosaic.expand_per_column(_load_first_value(context), values.shape)
    return values + mosaic.expand_per_row(ends[0], values.shape) * first_value


def write_gradients(
    context: WarpgroupContext, total: jax.Array, ends: list[jax.Array], unit: Any
) -> jax.Array:
    """Write W and dS to global memory, and return `total` plus dS A_K.

    Args:
      total: Sum of dS_ij k_j over the keys, for each query i.
      ends: Sum of dS over the keys in relation 2k. Empty under a causal mask, and if there is no
        table of vectors for keys.
      unit: Unit of all numbers dS in the kernel (see `dropout_tiles.gradient_unit`). The numbers in
        global memory have the unit 1.
    """
    mosaic.wait_for_threads()  # The numbers of other threads must have arrived.
    scale = read_dropout_scale(context.scalars)
    weight_ends = [context.vectors[name] for name in ("weight_after",) if name in context.vectors]
    weight_rows, gradient_rows = (
        context.global_rows(name, context.row, ROWS) for name in (WEIGHTS, GRADIENT)
    )
    for start, count in _chunks(context):
        columns = pl.ds(start, count)
        weights = _read_chunk(
            context, COTANGENT, start, count, weight_ends, lambda weights: weights * scale
        )
        mosaic.store_rows(weight_rows.at[:, columns], weights)
        gradient = _read_chunk(context, PRODUCTS, start, count, ends, lambda gradient: gradient)
        mosaic.store_rows(gradient_rows.at[:, columns], gradient * unit)
        if "key_table" in context.tables:
            (total,) = context.products.accumulate(
                (total,),
                ((gradient, context.tables["key_table"].at[columns]),),
            )
    if "weight_before" in context.vectors:
        shape = (ROWS, FIRST_COLUMNS)
        column_tile = mosaic.expand_per_column(mosaic.column_indices(FIRST_COLUMNS), shape)
        before = mosaic.expand_per_row(context.vectors["weight_before"], shape)
        before = jnp.where(column_tile == 0, before, 0.0)
        start = count_columns(context.score_map.scoring.clip_distance)
        mosaic.store_rows(weight_rows.at[:, pl.ds(start, FIRST_COLUMNS)], before)
    return total


def _fill(
    context: WarpgroupContext, rows: Any, table: str, buffer: str, shift: jax.Array | None
) -> jax.Array:
    """Write the products of each row with the vectors of a table to a buffer.

    Return the products with the vector of relation 2k, one number per row.

    Args:
      rows: Matrix in shared memory, one row for each query of the warpgroup.
      table: Name of the table.
      buffer: Name of the buffer.
      shift: Number to subtract from all products of a row. None means 0.
    """
    operand = mosaic.load_operand(rows)
    last = 2 * context.score_map.scoring.clip_distance - 1
    after = mosaic.full((ROWS,), 0.0)
    for start, count in _chunks(context):
        (products,) = context.products.multiply_transposed(
            (operand, context.tables[table].at[pl.ds(start, count)])
        )
        if shift is not None:
            products -= mosaic.expand_per_row(shift, products.shape)
        if start <= last < start + count and _has_after(context):
            columns = mosaic.expand_per_column(mosaic.column_indices(count), products.shape)
            after = mosaic.sum_rows(jnp.where(columns == last - start, products, 0.0))
        mosaic.store_rows(context.scratch[buffer].at[:, pl.ds(start, count)], products)
    mosaic.wait_for_threads()  # Other threads read these numbers.
    return after


def _read_chunk(
    context: WarpgroupContext,
    buffer: str,
    start: int,
    count: int,
    ends: list[jax.Array],
    convert: Any,
) -> jax.Array:
    """Return `convert` of some columns of a buffer, which has one row for each query.

    The result is 0 in padding columns, and for a key in no visited tile. The column of relation 2k
    comes from `ends`, without `convert`.

    Args:
      buffer: Name of the buffer.
      start: First column.
      count: Number of columns.
      ends: Numbers of relation 2k, one for each query. Empty if all of them are 0.
      convert: Function from a tile to a tile.
    """
    tile = mosaic.load_rows(context.scratch[buffer].at[:, pl.ds(start, count)])
    distance = context.score_map.scoring.clip_distance
    columns = mosaic.expand_per_column(mosaic.column_indices(count), tile.shape)
    rows = mosaic.expand_per_row(mosaic.row_indices(ROWS), tile.shape)
    # Column c belongs to relation r = c + 1. Relation r of query i has the key i + offset + r - k.
    # `keys`, `first` and `end` are counted from `first_key`.
    first_key = context.row + read_lengths(context.scalars).offset + start + 1 - distance
    assert context.visited_columns is not None, "kernels with tables know the visited columns"
    first, end = (bound - first_key for bound in context.visited_columns)
    keys, last = rows + columns, 2 * distance - 1 - start
    is_visited = (keys >= first) & (keys < end) & (columns < last)
    tile = jnp.where(is_visited, convert(tile), 0.0)
    if ends and last < count:
        end_tile = mosaic.expand_per_row(ends[0], tile.shape)
        tile = jnp.where(columns == last, end_tile, tile)
    return tile


def _chunks(context: WarpgroupContext) -> list[tuple[int, int]]:
    """Return the first column and the number of columns of each chunk of a buffer."""
    columns = count_columns(context.score_map.scoring.clip_distance)
    return [(start, min(CHUNK, columns - start)) for start in range(0, columns, CHUNK)]


def _has_after(context: WarpgroupContext) -> bool:
    """Return True if a visible key can have relation 2k."""
    return not context.score_map.window.is_causal


def _load_first_value(context: WarpgroupContext) -> jax.Array:
    """Load the vector of relation 0 that is added to values, one number per column."""
    return mosaic.load_per_column_from_global(context.global_rows("first_value", 0, 1).at[0])
