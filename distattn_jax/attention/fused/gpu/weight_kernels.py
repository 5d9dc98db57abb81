"""Bodies of the kernels `forward`, `received` and `attention_given`, which sum weights of tiles.

The module `kernels` of the package `fused` has their equations. The logsumexp of a query without a
visible key is `EMPTY_LOGSUMEXP`, so that all weights of this query are 0.

Some heads treat all products q · k beyond a distance as 0: see `skipped_tiles`. If a kernel skips
the tiles with such products, it adds their contribution from a precomputed sum, `skipped_sums`,
before the first tile. If it visits these tiles, their scores are 0, or a bias that it reads from a
table.

In relative position attention, the forward kernel also computes the relation weights: see
`relations`. Each relation from 1 to 2k - 1 belongs to one key of a query. The kernel writes the
scores of these relations to global memory, tile by tile. The end relations 0 and 2k belong to many
keys of a query. The kernel sums the weights of these keys in the list `ends`, which is part of its
state (see `KernelBody`). It has one sum for each query and end relation.

In Transformer-XL attention, the kernels add products p · R to the products q · k, where R are
position vectors and p are separate queries: see `position_tiles`.
"""

import jax.numpy as jnp

from distattn_jax.attention.fused.gpu import (
    dropout_tiles,
    mosaic,
    registers,
    relation_rows,
    tile_weights,
)
from distattn_jax.attention.fused.gpu.kernel_body import KernelBody
from distattn_jax.attention.fused.gpu.position_tiles import multiply_score_operands, scratch_buffers
from distattn_jax.attention.fused.gpu.relation_tiles import RelationTile, name_ends
from distattn_jax.attention.fused.gpu.tile_view import (
    view_bias,
    view_tile,
    view_visibility,
    weigh_bias,
)
from distattn_jax.attention.fused.gpu.tile_weights import Shape
from distattn_jax.attention.fused.kernel_calls import KernelCall
from distattn_jax.attention.fused.operands import EMPTY_LOGSUMEXP
from distattn_jax.attention.fused.relations import end_sides
from distattn_jax.attention.fused.score_map import read_dropout_scale, read_lengths
from distattn_jax.attention.fused.scoring import MASKED_SCORE


def forward(call: KernelCall, shape: Shape) -> KernelBody:
    """Return the body of the forward kernel, an online softmax.

    The score map is the matrix of all scores. Its rows are queries, and its columns are keys.

    Input for the rows: `query`. Inputs for the columns: `key` and `value`. If tiles are skipped,
    `skipped_sums["value_sum"]` is the sum of the values of the skipped keys, and
    `skipped_sums["key_count"]` is the number of these keys.

    Outputs: `values` is the attention output, the weighted sum of values for each query.
    `logsumexp` is the logsumexp of the scores of each query, to base 2.

    A relation is a clipped relative position, numbered from 0 to 2k: see the module `relations`. A
    scoring with relation weights has three more outputs. `band_scores` is the score of each query
    and each relation from 1 to 2k - 1, before the multiplication by `Scoring.score_multiplier`.
    `weight_before` is, for each query, the sum of the weights of all keys in relation 0.
    `weight_after` is the same sum for relation 2k. Under a causal mask, no key has relation 2k, and
    there is no `weight_after`. If the kernels multiply the tables of relations, there is no
    `band_scores`, and `values` contains the vectors that are added to the values: see
    `relation_rows`.

    Args:
      shape: Number of rows and number of columns of a tile.
    """
    score_map, values_type = call.score_map, call.output_types["values"]
    width, dtype = values_type.shape[-1], values_type.dtype
    has_weights = score_map.scoring.has_relation_weights
    multiplies_tables = score_map.scoring.multiplies_tables
    has_bias = score_map.scoring.distinctions.zero_scores
    sides = end_sides(is_causal=score_map.window.is_causal) if has_weights else ()

    def initialize(context):
        total = mosaic.full((shape[0], width), 0.0)
        weight_sum = mosaic.full(shape[:1], 0.0)
        # The maximum of heads with small scores is 0 from the beginning.
        initial_maximum = context.scalars.get("initial_maximum", (MASKED_SCORE,))
        maximum = mosaic.full(shape[:1], initial_maximum[0])
        if "value_sum" in context.skipped_sums:
            # All skipped scores are 0. Relative to a maximum of 0, each key has the weight 1.
            value_sum = mosaic.load_per_column_from_global(context.skipped_sums["value_sum"])
            key_count = context.skipped_sums["key_count"][0]
            total += mosaic.expand_per_column(value_sum, total.shape)
            weight_sum += key_count
            maximum = jnp.where(weight_sum > 0, 0.0, maximum)
        ends = [mosaic.full(shape[:1], 0.0) for _ in sides]
        return maximum, weight_sum, total, ends, relation_rows.multiply_query(context)

    def write_scores(context, tile, scores):
        """Write the scores of the relations 1 to 2k - 1 of a band tile."""
        if multiplies_tables:
            kept_factors = dropout_tiles.kept_factors(context, tile)
            if kept_factors is not None:  # The weights of dropped entries are 0.
                scores = jnp.where(kept_factors > 0, scores, MASKED_SCORE)
        name = relation_rows.PRODUCTS if multiplies_tables else "band_scores"
        RelationTile(context, tile).write(name, scores)

    def weigh_zeros(context, tile, maximum):
        """Return the results of `weigh` for a tile whose scores are treated as 0.

        These are the new running maximum of each row, the weights of the tile, and their row sums.
        The rows are queries.
        """
        tile.skip("key")
        visible = view_visibility(context, tile)
        if visible is None:
            new_maximum = jnp.maximum(maximum, 0.0)
            weight = jnp.exp2(-new_maximum)
            return new_maximum, mosaic.expand_per_row(weight, tile.shape), weight * tile.shape[1]
        is_visible = jnp.where(visible, mosaic.full(tile.shape, 1.0), 0.0)
        count = mosaic.sum_rows(is_visible)
        new_maximum = jnp.where(count > 0, jnp.maximum(maximum, 0.0), maximum)
        weight = jnp.where(count > 0, jnp.exp2(-new_maximum), 0.0)
        weights = is_visible * mosaic.expand_per_row(weight, tile.shape)
        return new_maximum, weights, weight * count

    def view_scores(context, tile):
        if tile.kind.is_zero:
            tile.skip("key")
            return view_bias(context, tile)
        products = multiply_score_operands(
            context, tile, (context.resident["query"], tile.wait("key"))
        )
        tile.release("key")
        return view_tile(context, tile, products)

    def raise_maximum(context, maximum, view):
        """Return the running maximum of each row after a tile.

        In a head with small scores, the maximum stays 0.
        """
        largest = view.scores.max(axis=1) * view.score_multiplier
        if "initial_maximum" in context.scalars:
            is_small = context.scalars["initial_maximum"][0] == 0
            largest = jnp.where(is_small, MASKED_SCORE, largest)
        return jnp.maximum(maximum, largest)

    def weigh(context, tile, maximum):
        """Return the new running maximum of each row, the weights of a tile, and their row sums.

        The rows are queries. The weights are relative to the new maximum m of their row:
        2^(score - m).

        Args:
          maximum: Running maximum of each row before the tile.
        """
        if tile.kind.is_zero and not has_bias:
            return weigh_zeros(context, tile, maximum)
        view = view_scores(context, tile)
        # before the weights replace the scores in the registers
        if has_weights and not tile.kind.is_far:
            write_scores(context, tile, view.scores)
        new_maximum = maximum
        if tile.kind.has_small_scores and tile.kind.is_zero:
            weights = registers.share_diagonals(jnp.exp2(view.tile_scores.scores))
        elif tile.kind.has_small_scores:  # The maximum is 0.
            weights = tile_weights.compute_weights(view, None)
        else:
            new_maximum = raise_maximum(context, maximum, view)
            weights = tile_weights.compute_weights(
                view, mosaic.expand_per_row(new_maximum, tile.shape), rounds_scores=True
            )
        if view.visible is not None:
            weights = jnp.where(view.visible, weights, 0.0)
        may_be_small = tile.kind.has_small_scores or tile.kind.is_masked
        if has_bias and may_be_small and "initial_maximum" in context.scalars:
            # Relative to a maximum, the largest weight is 1, and is not rounded. Relative to 0, it
            # is rounded. Its share of the sum is exact again if the sum is that of rounded weights.
            # The gradient of a bias is often a small sum of large numbers, which needs this.
            weights = weights.astype(dtype)
            return new_maximum, weights, mosaic.sum_rows(registers.widen(weights))
        return new_maximum, weights, mosaic.sum_rows(weights)

    def step(context, tile, state):
        maximum, weight_sum, total, ends, vectors = state
        context = relation_rows.add_vectors(context, vectors)
        new_maximum, weights, row_sum = weigh(context, tile, maximum)
        if not tile.kind.has_small_scores:
            correction = jnp.exp2(maximum - new_maximum)
            weight_sum *= correction
            total *= mosaic.expand_per_row(correction, total.shape)
            ends = [end * correction for end in ends]
        weight_sum += row_sum
        if not has_weights:  # Dropout is faster for numbers of 16 bits, which the product needs.
            weights = weights.astype(dtype)
        weights = dropout_tiles.drop(context, tile, weights)
        if has_weights:
            kept_sum = mosaic.sum_rows(weights) if score_map.has_dropout else row_sum
            ends = RelationTile(context, tile).add_ends(ends, sides, weights, kept_sum)
        value = tile.wait("value")
        (total,) = context.products.accumulate((total,), ((weights, value),))
        tile.release("value")
        return new_maximum, weight_sum, total, ends, vectors

    def finish(context, state):
        maximum, weight_sum, total, ends, _ = state
        query_length = read_lengths(context.scalars).query
        is_valid = mosaic.row_indices(shape[0]) < query_length - context.row
        is_valid = is_valid & (weight_sum > 0)
        weight_sum = jnp.where(is_valid, weight_sum, 1.0)
        normaliser = jnp.where(is_valid, read_dropout_scale(context.scalars) / weight_sum, 0.0)
        values = total * mosaic.expand_per_row(normaliser, total.shape)
        logsumexp = jnp.where(is_valid, maximum + jnp.log2(weight_sum), EMPTY_LOGSUMEXP)
        ends = [end * normaliser for end in ends]
        if has_weights and multiplies_tables:
            values = relation_rows.add_relation_values(context, values, logsumexp, ends)
        return {"values": values, "logsumexp": logsumexp, **name_ends("weight", sides, ends)}

    return KernelBody(
        initialize,
        step,
        finish,
        scattered=("band_scores",) * (has_weights and not multiplies_tables),
        scratch={
            **scratch_buffers(score_map, call.resident["query"]),
            **relation_rows.scratch_buffers(score_map.scoring),
        },
    )


def received(call: KernelCall, shape: Shape) -> KernelBody:
    """Return the body of the kernel for the attention that each key receives.

    The score map is the matrix of all scores. Its rows are keys, and its columns are queries.

    Input for the rows: `key`. Inputs for the columns: `query` and `logsumexp`. If tiles are
    skipped, `skipped_sums["received"]` is the attention that each key receives from the skipped
    queries.

    Output: `received`, the sum of the attention weights of all queries, for each key.

    Args:
      shape: Number of rows and number of columns of a tile.
    """
    score_map = call.score_map

    def initialize(context):
        sums = context.skipped_sums
        return mosaic.full(shape[:1], sums["received"][0] if sums else 0.0)

    def step(context, tile, state):
        if tile.kind.is_zero:
            tile.skip("query")
            weights = tile_weights.weigh_zero_scores(context, tile)
            return state + mosaic.sum_rows(weights)
        products = multiply_score_operands(
            context, tile, (context.resident["key"], tile.wait("query"))
        )
        tile.release("query")
        view = view_tile(context, tile, products)
        logsumexp = mosaic.expand_per_column(tile.load_vector("logsumexp"), tile.shape)
        return state + tile_weights.compute_weights(view, logsumexp).sum(axis=1)

    def finish(context, state):
        is_visible = tile_weights.is_visible_key(context, shape[0])
        return {"received": jnp.where(is_visible, state, 0.0)}

    buffers = scratch_buffers(score_map, call.streamed["query"])
    return KernelBody(initialize, step, finish, scratch=buffers, ends_with_product=False)


def attention_given(call: KernelCall, shape: Shape) -> KernelBody:
    """Return the body of the kernel that computes Σ_j A_ij g_j for each query i.

    A_ij is the attention weight of query i and key j. g_j is the cotangent of the attention that
    key j receives. The score map is the matrix of all scores. Its rows are queries, and its columns
    are keys.

    Inputs for the rows: `query` and `logsumexp`. Inputs for the columns: `key` and
    `received_cotangent`, which is g. If tiles are skipped, `skipped_sums["attention_given"]` is the
    sum of g_j over the skipped keys.

    Output: `attention_given`, the sum Σ_j A_ij g_j for each query i.

    Args:
      shape: Number of rows and number of columns of a tile.
    """
    score_map = call.score_map

    def initialize(context):
        if "attention_given" not in context.skipped_sums:
            return mosaic.full(shape[:1], 0.0)
        weight = jnp.exp2(-context.vectors["logsumexp"])
        return weight * context.skipped_sums["attention_given"][0]

    def step_of_zero_scores(context, tile, state):
        tile.skip("key")
        visible = view_visibility(context, tile)
        cotangent = mosaic.expand_per_column(tile.load_vector("received_cotangent"), tile.shape)
        weight = jnp.exp2(-context.vectors["logsumexp"])
        given = cotangent * mosaic.expand_per_row(weight, tile.shape)
        bias_weights = weigh_bias(context, tile)
        given = given if bias_weights is None else given * bias_weights
        given = given if visible is None else jnp.where(visible, given, 0.0)
        return state + mosaic.sum_rows(given)

    def step(context, tile, state):
        if tile.kind.is_zero:
            return step_of_zero_scores(context, tile, state)
        products = multiply_score_operands(
            context, tile, (context.resident["query"], tile.wait("key"))
        )
        tile.release("key")
        view = view_tile(context, tile, products)
        logsumexp = mosaic.expand_per_row(context.vectors["logsumexp"], tile.shape)
        cotangent = mosaic.expand_per_column(tile.load_vector("received_cotangent"), tile.shape)
        return state + (tile_weights.compute_weights(view, logsumexp) * cotangent).sum(axis=1)

    def finish(context, state):
        return {"attention_given": state}

    buffers = scratch_buffers(score_map, call.resident["query"])
    return KernelBody(initialize, step, finish, scratch=buffers, ends_with_product=False)
