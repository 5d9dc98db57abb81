"""Bodies of the kernels `query_gradient`, `key_gradient` and `position_gradient`.

The module `kernels` of the package `fused` has their equations. The logsumexp of a query without a
visible key is `EMPTY_LOGSUMEXP`, so that all weights of this query are 0.

Some heads treat all products q · k beyond a distance as 0: see `skipped_tiles`. Such products add
nothing to the gradients of queries and keys: `query_gradient` skips their tiles, unless their
scores are a bias, whose gradient it computes. The tiles add to the gradient of the values, which
`key_gradient` computes. If `key_gradient` skips the tiles, it adds their contribution from a
precomputed sum, `skipped_sums`, before the first tile. If it visits the tiles, it needs no products
q · k for them.

In relative position attention, the kernel `query_gradient` also computes the gradient of the
relation products: see `relations`. Each relation from 1 to 2k - 1 belongs to one key of a query.
The kernel writes the gradients of these relations to global memory, tile by tile. Relation 2k
belongs to many keys of a query. The kernel sums the gradients of these keys in the list `ends`,
which is part of its state (see `KernelBody`). The gradient of relation 0 is 0, because the relation
products of relation 0 are always 0.

In Transformer-XL attention, the kernels add products p · R to the products q · k, where R are
position vectors and p are separate queries: see `position_tiles`. Only this variant has a kernel
`position_gradient`.
"""

import functools
from typing import Any

import jax.numpy as jnp

from distattn_jax.attention.fused.gpu import (
    diagonal_sums,
    dropout_tiles,
    mosaic,
    position_tiles,
    registers,
    relation_rows,
    tile_weights,
)
from distattn_jax.attention.fused.gpu.kernel_arrays import BIAS_WEIGHTS
from distattn_jax.attention.fused.gpu.kernel_body import KernelBody
from distattn_jax.attention.fused.gpu.relation_tiles import RelationTile, name_ends
from distattn_jax.attention.fused.gpu.tile_view import view_tile, view_visibility
from distattn_jax.attention.fused.gpu.tile_weights import Shape
from distattn_jax.attention.fused.kernel_calls import RELATION_MATRICES, KernelCall
from distattn_jax.attention.fused.relations import AFTER
from distattn_jax.attention.fused.score_map import compute_gradient_multiplier, read_dropout_scale
from distattn_jax.attention.fused.scoring import BIAS_TABLE, Scoring


def query_gradient(call: KernelCall, shape: Shape) -> KernelBody:
    """Return the body of the kernel for the gradients of the queries and the coefficients.

    The score map is the matrix of all scores. Its rows are queries, and its columns are keys.

    Inputs for the rows: `query`, `values_cotangent` (the cotangent dO of the attention output O),
    `logsumexp`, and either `negative_delta` or one or both of `values` (the output O) and
    `other_delta`. If both of these are present, the kernel computes D_i = dO_i · O_i +
    other_delta_i for each query i: see `BackwardOperands`. If `other_delta` is absent, D_i = dO_i ·
    O_i. If `values` is absent, D is `other_delta`.

    Inputs for the columns: `key`, `value` and, if the received attention has a cotangent,
    `received_cotangent`.

    Outputs: `query` is the gradient of the queries. `negative_delta` is -D_i for each query i,
    unless it is an input.
    There is one output for each name in `Scoring.gradient_names`. It has one number per query. The
    caller sums these numbers over the queries to obtain the gradient of a coefficient. For
    `DistanceScoring`, the names are `slope`, `shift` and `log_height` (the logarithm of the
    height).

    A relation is a clipped relative position, numbered from 0 to 2k: see the module `relations`. A
    scoring with relation products has two more outputs. `band_gradient` is the gradient of the
    score of each query and each relation from 1 to 2k - 1. `gradient_after` has one number per
    query: the sum of the gradients of all scores in relation 2k. Under a causal mask, no key has
    relation 2k, and there is no `gradient_after`. If the kernels multiply the tables of relations,
    the outputs `relation_weights`, `relation_gradient` and the vectors of the end relations replace
    these two: see `relation_rows`. A scoring with position vectors has one more output:
    `position_query`, the gradient of `Operands.position_query`. Each name in `Scoring.table_names`
    is an output: the gradient of this table, in several parts (see `KernelBody.summed`), to be
    multiplied by `Scoring.gradient_multiplier`.

    Args:
      shape: Number of rows and number of columns of a tile.
    """
    score_map, has_received = call.score_map, call.has_received_cotangent
    query_type = call.output_types["query"]
    width, dtype = query_type.shape[-1], query_type.dtype
    has_products = score_map.scoring.has_relation_products
    multiplies_tables = score_map.scoring.multiplies_tables
    has_positions, table_names = score_map.scoring.has_positions, score_map.scoring.table_names
    computes_delta = "negative_delta" in call.output_types
    sides = (AFTER,) if has_products and not score_map.window.is_causal else ()

    def initialize(context):
        position_tiles.clear_buffers(context)
        if table_names:
            diagonal_sums.clear_buffer(context)
        ends = [mosaic.full(shape[:1], 0.0) for _ in sides]
        partial_sum = shape[0], registers.COLUMN_GROUP
        sums = [mosaic.full(partial_sum, 0.0) for _ in range(score_map.scoring.summed_gradients)]
        totals = [mosaic.full((shape[0], width), 0.0) for _ in range(1 + has_positions)]
        if "negative_delta" in context.vectors:
            return tuple(totals), sums, ends, {}, context.vectors["negative_delta"]
        delta = context.vectors.get("other_delta", mosaic.full(shape[:1], 0.0))
        if "values" in context.resident:
            values, cotangent = (
                mosaic.load_tile(context.resident[name]) for name in ("values", "values_cotangent")
            )
            delta += mosaic.sum_rows(values * cotangent)
        vectors = relation_rows.multiply_query(context)
        if multiplies_tables:
            cotangent_vectors, first = relation_rows.multiply_cotangent(context)
            vectors |= cotangent_vectors
            delta -= first
        return tuple(totals), sums, ends, vectors, -delta

    def scale_gradient(context, score_gradient):
        """Return the gradient of the scores, given its result from `compute_score_gradient`."""
        if not score_map.has_dropout:
            return score_gradient
        return score_gradient * dropout_tiles.gradient_unit(context.scalars)

    def step_of_bias(context, tile, negative_delta):
        """Add the gradient of the bias in a tile whose products q · k are treated as 0."""
        table_sums = diagonal_sums.read(context, tile, (BIAS_TABLE,))
        bias_weights = diagonal_sums.read_factors(context, tile, BIAS_WEIGHTS)
        tile.skip("key")
        per_row = negative_delta
        per_column = tile.load_vector("received_cotangent") if has_received else None
        initial = None
        if not score_map.has_dropout:
            initial = (tile_weights.add_vectors(None, per_row, per_column, tile.shape),)
            per_row = per_column = None
        (weight_gradient,) = context.products.multiply_transposed(
            (context.resident["values_cotangent"], tile.wait("value")), initial=initial
        )
        tile.release("value")
        weights = mosaic.expand_per_row(jnp.exp2(-context.vectors["logsumexp"]), tile.shape)
        visible = view_visibility(context, tile)
        gradient = tile_weights.compute_score_gradient(
            context,
            tile,
            weights if visible is None else jnp.where(visible, weights, 0.0),
            weight_gradient,
            per_row=per_row,
            per_column=per_column,
            kept_factors=dropout_tiles.kept_factors(context, tile),
        )
        # All entries of a diagonal have the factor 2^bias. Their sum is multiplied by it.
        gradients = {BIAS_TABLE: scale_gradient(context, gradient)}
        diagonal_sums.add(context, tile, table_sums, gradients, bias_weights)
        mosaic.wait_for_threads()  # The tile may have loaded no vector: see `make_tile`.

    def step(context, tile, state):
        totals, sums, ends, vectors, negative_delta = state
        if tile.kind.is_zero:
            step_of_bias(context, tile, negative_delta)
            return state
        context = relation_rows.add_vectors(context, vectors)
        table_sums = diagonal_sums.read(context, tile, table_names)
        key, value = tile.wait("key"), tile.wait("value")
        positions = position_tiles.wait_for_positions(context, tile)
        per_row = negative_delta
        per_column = tile.load_vector("received_cotangent") if has_received else None
        initial_gradient = None
        if positions is None and not score_map.has_dropout:
            # The accumulator of dO · V starts at g - D, which saves an addition.
            initial_gradient = tile_weights.add_vectors(None, per_row, per_column, tile.shape)
            per_row = per_column = None
        products, weight_gradient = position_tiles.multiply_rows_and_columns(
            context,
            tile,
            (context.resident["query"], key),
            (context.resident["values_cotangent"], value),
            positions=positions,
            initial_gradient=initial_gradient,
        )
        tile.release("value")
        view = view_tile(context, tile, products, for_gradient=True, needs_weights=False)
        logsumexp = context.vectors["logsumexp"]
        if view.tile_scores.log_derivative is not None:
            logsumexp -= view.tile_scores.log_derivative
        weights = tile_weights.compute_weights(view, mosaic.expand_per_row(logsumexp, tile.shape))
        score_gradient = tile_weights.compute_score_gradient(
            context,
            tile,
            weights,
            weight_gradient,
            per_row=per_row,
            per_column=per_column,
            factor=view.far_derivative,
            kept_factors=dropout_tiles.kept_factors(context, tile),
        )
        relations = RelationTile(context, tile)
        if has_products:
            ends = relations.add_ends(ends, sides, score_gradient)
        if multiplies_tables and not tile.kind.is_far:
            dropped = dropout_tiles.drop(context, tile, weights)
            relations.write(relation_rows.COTANGENT, dropped)
            relations.write(relation_rows.PRODUCTS, score_gradient)
        elif has_products and not multiplies_tables:
            relations.write("band_gradient", scale_gradient(context, score_gradient))
        if table_names:
            table_gradients = score_map.scoring.table_gradients(
                scale_gradient(context, score_gradient), view.tile_scores
            )
            diagonal_sums.add(context, tile, table_sums, table_gradients)
        product_gradient = view.product_gradient(score_gradient, has_far_derivative=True)
        gradients = view.coefficient_gradients(score_gradient, product_gradient)
        are_diagonals_summed = score_map.scoring.function is not None and not tile.kind.is_far
        sum_columns = functools.partial(
            registers.sum_columns, are_diagonals_summed=are_diagonals_summed
        )
        sums = [
            total if gradient is None else total + sum_columns(gradient)
            for total, gradient in zip(sums, gradients, strict=True)
        ]
        operands = [((product_gradient, key),)]
        if positions is not None:
            lower, upper = position_tiles.gradient_by_diagonal(context, product_gradient, dtype)
            operands.append(((lower, positions.lower), (upper, positions.upper)))
        totals = context.products.accumulate(totals, *operands)
        tile.release("key")
        if positions is not None:
            positions.release()
        return totals, sums, ends, vectors, negative_delta

    def finish(context, state):
        (total, *others), sums, ends, vectors, negative_delta = state
        sums = [mosaic.sum_rows(x) for x in sums]
        names = score_map.scoring.gradient_names
        # The gradient log_height follows from dQ: see `DistanceScoring.summed_gradients`.
        if len(sums) < len(names):
            query = mosaic.load_tile(context.resident["query"])
            sums = [*sums, (total * query).sum(axis=1)]
        unit = dropout_tiles.gradient_unit(context.scalars)
        multiplier = compute_gradient_multiplier(score_map, context.scalars) * unit
        coefficients = {name: x * multiplier for name, x in zip(names, sums, strict=True)}
        outputs = name_ends("gradient", sides, [end * unit for end in ends])
        if multiplies_tables:
            total = relation_rows.write_gradients(context, total, ends, unit)
            outputs = vectors
        totals = dict(zip(("query", "position_query"), (total, *others), strict=False))
        delta = {"negative_delta": negative_delta} if computes_delta else {}
        return {
            **{name: x * multiplier for name, x in totals.items()},
            **delta,
            **coefficients,
            **outputs,
        }

    scattered: tuple[str, ...] = ("band_gradient",) * has_products
    if multiplies_tables:
        scattered = (relation_rows.WEIGHTS, relation_rows.GRADIENT)
    scratch = {
        **position_tiles.scratch_buffers(score_map, query_type, sorts_gradient=True),
        **relation_rows.scratch_buffers(score_map.scoring, has_cotangent=True),
        **(diagonal_sums.scratch_buffers(shape[1]) if table_names else {}),
    }
    return KernelBody(
        initialize,
        step,
        finish,
        scattered=scattered,
        summed=table_names,
        scratch=scratch,
        # The sums along diagonals need a barrier after each tile: see `diagonal_sums.add`.
        ends_with_product=not table_names,
    )


def key_gradient(call: KernelCall, shape: Shape) -> KernelBody:
    """Return the body of the kernel for the gradients of keys and values.

    The score map is the matrix of all scores. Its rows are keys, and its columns are queries.

    Inputs for the rows: `key`, `value` and, if the received attention has a cotangent,
    `received_cotangent`. Inputs for the columns: `query`, `values_cotangent` (the cotangent dO of
    the attention output), `logsumexp` and `negative_delta`. If tiles are skipped,
    `skipped_sums["value"]` is the contribution of the skipped tiles to the gradient of the values.

    Outputs: `key` is the gradient of the keys, and `value` is the gradient of the values. The
    output `key` may be narrower than the input `key`: see `Plan.trained_key_width`.

    Args:
      shape: Number of rows and number of columns of a tile.
    """
    score_map, has_received = call.score_map, call.has_received_cotangent
    widths = [call.output_types[name].shape[-1] for name in ("key", "value")]
    multiplies_tables = score_map.scoring.multiplies_tables
    values_dtype = call.streamed["values_cotangent"].dtype

    def initialize(context):
        key_total, value_total = (mosaic.full((shape[0], width), 0.0) for width in widths)
        if "value" in context.skipped_sums:
            skipped_sum = mosaic.load_per_column_from_global(context.skipped_sums["value"])
            value_total += mosaic.expand_per_column(skipped_sum, value_total.shape)
        return key_total, value_total

    def step_of_zero_scores(context, tile, state):
        """Return the state after a tile whose products q · k are treated as 0.

        The state consists of the sums for the gradients of the keys and of the values. The tile
        adds only to the second sum.
        """
        key_total, value_total = state
        tile.skip("query")
        weights = tile_weights.weigh_zero_scores(context, tile)
        if score_map.has_dropout:
            kept_weights = (weights * dropout_tiles.KEPT).astype(values_dtype)
            weights = dropout_tiles.drop(context, tile, kept_weights)
        (value_total,) = context.products.accumulate(
            (value_total,),
            ((weights, tile.wait("values_cotangent")),),
        )
        tile.release("values_cotangent")
        return key_total, value_total

    def replace_band(context, relations, name, entries, inside):
        """Replace the entries of a band tile by those that `query_gradient` has written.

        The entries are weights or gradients of scores, in units of `dropout_tiles.gradient_unit`.
        """
        if inside is None or not score_map.has_dropout:
            return relations.replace_band(name, entries, inside)
        unit = dropout_tiles.gradient_unit(context.scalars)
        return relations.replace_band(name, entries * unit, inside) * (1 / unit)

    def step(context, tile, state):
        if tile.kind.is_zero:
            return step_of_zero_scores(context, tile, state)
        if multiplies_tables:
            relations = RelationTile(context, tile)
            band_weights, band_gradient = map(relations.load_band, RELATION_MATRICES)
        query, values_cotangent = tile.wait("query"), tile.wait("values_cotangent")
        positions = position_tiles.wait_for_positions(context, tile)
        products, weight_gradient = position_tiles.multiply_rows_and_columns(
            context,
            tile,
            (context.resident["key"], query),
            (context.resident["value"], values_cotangent),
            positions=positions,
        )
        if positions is not None:
            positions.release()
        view = view_tile(context, tile, products, for_gradient=True)
        logsumexp = mosaic.expand_per_column(tile.load_vector("logsumexp"), tile.shape)
        weights = tile_weights.compute_weights(view, logsumexp)
        kept_factors = dropout_tiles.kept_factors(context, tile)
        score_gradient = tile_weights.compute_score_gradient(
            context,
            tile,
            weights,
            weight_gradient,
            per_row=context.vectors["received_cotangent"] if has_received else None,
            per_column=tile.load_vector("negative_delta"),
            factor=view.far_derivative,
            kept_factors=kept_factors,
        )
        kept_weights = weights if kept_factors is None else weights * kept_factors
        if multiplies_tables:
            score_gradient = replace_band(
                context, relations, relation_rows.GRADIENT, score_gradient, band_gradient
            )
            kept_weights = replace_band(
                context, relations, relation_rows.WEIGHTS, kept_weights, band_weights
            )
        product_gradient = view.product_gradient(score_gradient, has_far_derivative=True)
        if widths[0] < query.shape[-1]:
            query = query.at[:, : widths[0]]
        totals = context.products.accumulate(
            state,
            ((product_gradient, query),),
            ((kept_weights, values_cotangent),),
        )
        tile.release("query")
        tile.release("values_cotangent")
        return totals

    def finish(context, state):
        key_total, value_total = state
        is_visible = tile_weights.is_visible_key(context, shape[0])
        unit = dropout_tiles.gradient_unit(context.scalars)
        key_total = key_total * (compute_gradient_multiplier(score_map, context.scalars) * unit)
        if score_map.has_dropout:
            value_total *= read_dropout_scale(context.scalars) / dropout_tiles.KEPT
        return {
            "key": jnp.where(mosaic.expand_per_row(is_visible, key_total.shape), key_total, 0.0),
            "value": jnp.where(
                mosaic.expand_per_row(is_visible, value_total.shape), value_total, 0.0
            ),
        }

    return KernelBody(
        initialize,
        step,
        finish,
        scratch=position_tiles.scratch_buffers(score_map, call.streamed["query"]),
        late_vectors=late_vectors(score_map.scoring),
    )


def late_vectors(scoring: Scoring) -> tuple[str, ...]:
    """Return the names of the late vectors of the kernel `key_gradient`: see `KernelBody`.

    A kernel waits for a late vector when it loads the vector. The compiler does not move
    instructions across this wait. The kernel therefore computes all weights of a tile before it
    loads the vector -D (`negative_delta`). This order is faster for a dot-product scoring. For
    other scorings, there are no late vectors, and the result is empty.
    """
    return ("logsumexp", "negative_delta") if scoring.is_dot_product else ()


def position_gradient(call: KernelCall, shape: Shape) -> KernelBody:
    """Return the body of the kernel for the gradient of the position vectors.

    The score map is the matrix of all scores. Its rows are keys, and its columns are queries. There
    is one position vector for each diagonal of the score map. A thread block computes a block of
    diagonals, so that its rows move from tile to tile: see `ScoreMap.has_moving_rows`.

    Inputs for the diagonals: `lower_positions` and `upper_positions`. Vector d of `upper_positions`
    is also vector d + 64 of `lower_positions`. A warpgroup keeps 64 vectors of each array, at the
    same indices, and thus the position vectors of 128 consecutive diagonals. Inputs for the rows:
    `key`, `value` and, if the received attention has a cotangent, `received_cotangent`. Inputs for
    the columns: `query`, `position_query`, `values_cotangent` (the cotangent of the attention
    output), `logsumexp` and `negative_delta`.

    Outputs: `lower_positions` and `upper_positions`, the gradients of the two inputs with these
    names. A position vector occurs in both inputs, so that its gradient is the sum of its two
    gradients in these outputs.

    Args:
      shape: Number of rows and number of columns of a tile.
    """
    score_map, has_received = call.score_map, call.has_received_cotangent
    *_, width = call.streamed["query"].shape
    dtype = call.streamed["query"].dtype

    def initialize(context):
        position_tiles.clear_buffers(context)
        return tuple(mosaic.full((shape[0], width), 0.0) for _ in range(2))

    def step(context, tile, state):
        key, value = tile.wait("key"), tile.wait("value")
        positions: Any = position_tiles.wait_for_positions(context, tile)
        products, weight_gradient = position_tiles.multiply_rows_and_columns(
            context,
            tile,
            (key, tile.wait("query")),
            (value, tile.wait("values_cotangent")),
            positions=positions,
        )
        for name in ("key", "value", "query", "values_cotangent"):
            tile.release(name)
        view = view_tile(context, tile, products, for_gradient=True)
        logsumexp = mosaic.expand_per_column(tile.load_vector("logsumexp"), tile.shape)
        score_gradient = tile_weights.compute_score_gradient(
            context,
            tile,
            tile_weights.compute_weights(view, logsumexp),
            weight_gradient,
            per_row=tile.load_row_vector("received_cotangent") if has_received else None,
            per_column=tile.load_vector("negative_delta"),
            kept_factors=dropout_tiles.kept_factors(context, tile),
        )
        product_gradient = view.product_gradient(score_gradient)
        lower, upper = position_tiles.gradient_by_diagonal(context, product_gradient, dtype)
        totals = context.products.accumulate(
            state,
            ((lower, positions.query),),
            ((upper, positions.query),),
        )
        positions.release()
        return totals

    def finish(context, state):
        multiplier = compute_gradient_multiplier(score_map, context.scalars)
        multiplier *= dropout_tiles.gradient_unit(context.scalars)
        names = ("lower_positions", "upper_positions")
        return {name: x * multiplier for name, x in zip(names, state, strict=True)}

    buffers = position_tiles.scratch_buffers(score_map, call.streamed["query"], sorts_gradient=True)
    return KernelBody(initialize, step, finish, scratch=buffers)
