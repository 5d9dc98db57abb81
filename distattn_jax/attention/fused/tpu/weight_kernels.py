"""Bodies of the kernels `forward`, `received` and `attention_given`, which sum weights of tiles.

The module `kernels` of the package `fused` has their equations. The logsumexp of a query without a
visible key is `EMPTY_LOGSUMEXP`, so that its weights are 0. If a head skips tiles, a kernel adds
the contribution of the skipped tiles, `skipped_sums`: see `skipped_tiles`. In tiles whose scores
are treated as 0, the kernels need no products of queries and keys.

Arrays in VMEM are transposed: queries have shape (H, queries), and a tile has shape
(keys, queries).
"""

import jax
import jax.numpy as jnp

from distattn_jax.attention.fused.operands import EMPTY_LOGSUMEXP
from distattn_jax.attention.fused.score_map import (
    MASKED_SCORE,
    ScoreMap,
    read_dropout_scale,
    read_lengths,
)
from distattn_jax.attention.fused.tpu.kernel_body import BlockContext, KernelBody, Tile
from distattn_jax.attention.fused.tpu.products import multiply
from distattn_jax.attention.fused.tpu.registers import LANES, lane_indices, to_column
from distattn_jax.attention.fused.tpu.relation_tiles import (
    add_weights,
    finish_weights,
    weight_scratch,
)
from distattn_jax.attention.fused.tpu.tile_view import view_tile, view_visibility
from distattn_jax.attention.fused.tpu.tile_weights import (
    compute_weights,
    drop,
    fill_with_zeros,
    is_visible_key,
    weigh_zero_scores,
    zero_masked,
)


def forward(score_map: ScoreMap, queries: int, width: int) -> KernelBody:
    """Return the body of the forward kernel, an online softmax.

    Inputs: resident `query`, streamed `key_rows` and `value`. If tiles are skipped, two more inputs
    describe the skipped keys: `value_sum`, the sum of their values, and `key_count`, their number.

    Outputs: `values`, the weighted sum of values of each query, `logsumexp`, the base-2 logsumexp
    of the scores of each query, and `relation_weights` if the scoring has relation weights.

    Args:
      score_map: Scoring and masking of the score map, which has one row per query.
      queries: Number of queries of a block.
      width: Width of the values.
    """

    def initialize(context: BlockContext) -> None:
        fill_with_zeros(context)
        maximum = context.scratch["maximum"]
        maximum[...] = jnp.full_like(maximum, MASKED_SCORE)
        if "value_sum" in context.skipped_sums:
            # All skipped scores are 0. Relative to a maximum of 0, each key has the weight 1.
            total, weight_sum = context.scratch["total"], context.scratch["weight_sum"]
            total[...] = jnp.broadcast_to(context.skipped_sums["value_sum"], total.shape)
            weight_sum[...] = jnp.broadcast_to(context.skipped_sums["key_count"], weight_sum.shape)
            maximum[...] = jnp.where(weight_sum[...] > 0, 0.0, MASKED_SCORE)

    def weigh(context: BlockContext, tile: Tile, maximum: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the new maximum of each query, and the weights relative to this maximum."""
        if tile.section.is_zero:
            visible = view_visibility(score_map, context, tile)
            largest = jnp.zeros_like(maximum)
            if visible is not None:
                largest = jnp.where(visible, 0.0, MASKED_SCORE).max(axis=0, keepdims=True)
            new_maximum = jnp.maximum(maximum, largest)
            weights = jnp.broadcast_to(jnp.exp2(-new_maximum), tile.shape)
            return new_maximum, zero_masked(weights, visible)
        products = multiply(tile.load("key_rows"), context.load("query"), (1, 0))
        view = view_tile(score_map, context, tile, products)
        # Multiply the maximum instead of all scores, so that each score is stored once in VMEM.
        largest = view.scores.max(axis=0, keepdims=True) * view.score_multiplier
        new_maximum = jnp.maximum(maximum, largest)
        return new_maximum, compute_weights(view, new_maximum)

    def step(context: BlockContext, tile: Tile) -> None:
        total, weight_sum, maximum = (
            context.scratch[name] for name in ("total", "weight_sum", "maximum")
        )
        new_maximum, weights = weigh(context, tile, maximum[...])
        correction = jnp.exp2(maximum[...] - new_maximum)
        maximum[...] = new_maximum
        weight_sum[...] = weight_sum[...] * correction + weights.sum(axis=0, keepdims=True)
        value = tile.load("value")
        weights = drop(score_map, context, tile, weights)
        if score_map.scoring.has_relation_weights:
            add_weights(
                score_map, context, tile, weights, correction=correction, maximum=new_maximum
            )
        weights = weights.astype(value.dtype)
        total[...] = total[...] * correction + multiply(value, weights, (1, 0))

    def finish(context: BlockContext) -> dict[str, jax.Array]:
        total, weight_sum, maximum = (
            context.scratch[name][...] for name in ("total", "weight_sum", "maximum")
        )
        query_length = read_lengths(context.scalars).query
        is_valid = lane_indices((1, queries)) < query_length - context.start
        is_valid &= weight_sum > 0
        weight_sum = jnp.where(is_valid, weight_sum, 1.0)
        normaliser = jnp.where(is_valid, read_dropout_scale(context.scalars) / weight_sum, 0.0)
        logsumexp = jnp.where(is_valid, maximum + jnp.log2(weight_sum), EMPTY_LOGSUMEXP)
        weights = finish_weights(score_map, context, maximum=maximum, normaliser=normaliser)
        return {"values": total * normaliser, "logsumexp": logsumexp, **weights}

    scratch = {
        "total": (width, queries),
        **dict.fromkeys(("weight_sum", "maximum"), (1, queries)),
        **weight_scratch(score_map, queries),
    }
    return KernelBody(scratch, initialize, step, finish)


def received(score_map: ScoreMap, keys: int) -> KernelBody:
    """Return the body of the kernel for the attention that each key receives.

    Inputs: resident `key`, streamed `query` and `logsumexp`. If tiles are skipped,
    `skipped_sums["received"]` is the attention received from the skipped queries.

    Output: `received`, the attention that each key receives, summed over all queries.

    Args:
      score_map: Scoring and masking of the score map, which has one row per key.
      keys: Number of keys of a block.
    """

    def weigh(context: BlockContext, tile: Tile) -> jax.Array:
        logsumexp = tile.load("logsumexp")
        if tile.section.is_zero:
            return weigh_zero_scores(score_map, context, tile, logsumexp)
        products = multiply(context.load("key"), tile.load("query"), (0, 0))
        return compute_weights(view_tile(score_map, context, tile, products), logsumexp)

    def step(context: BlockContext, tile: Tile) -> None:
        weights = weigh(context, tile)
        # Add the groups of lanes. One sum over lanes, which is slow, follows after the last tile.
        for first in range(0, tile.shape[1], LANES):
            context.scratch["received"][...] += weights[:, first : first + LANES]

    def finish(context: BlockContext) -> dict[str, jax.Array]:
        total = jnp.transpose(context.scratch["received"][...]).sum(axis=0, keepdims=True)
        if "received" in context.skipped_sums:
            total += context.skipped_sums["received"]
        return {"received": jnp.where(is_visible_key(score_map, context, keys), total, 0.0)}

    return KernelBody({"received": (keys, LANES)}, fill_with_zeros, step, finish)


def attention_given(score_map: ScoreMap, queries: int) -> KernelBody:
    """Return the body of the kernel that computes Σ_j A_ij g_j for each query i.

    A are the attention weights, and g_j is the cotangent of the attention that key j receives.

    Inputs: resident `query` and `logsumexp`, streamed `key_rows` and `received_cotangent`. If tiles
    are skipped, `skipped_sums["attention_given"]` is the sum of g_j over the skipped keys.

    Output: `attention_given`, the sum Σ_j A_ij g_j of each query.

    Args:
      score_map: Scoring and masking of the score map, which has one row per query.
      queries: Number of queries of a block.
    """

    def initialize(context: BlockContext) -> None:
        fill_with_zeros(context)
        if "attention_given" in context.skipped_sums:  # Each key has the weight 2^-logsumexp.
            weight = jnp.exp2(-context.load("logsumexp"))
            total = context.scratch["attention_given"]
            total[...] = weight * context.skipped_sums["attention_given"]

    def weigh(context: BlockContext, tile: Tile) -> jax.Array:
        logsumexp = context.load("logsumexp")
        if tile.section.is_zero:
            return weigh_zero_scores(score_map, context, tile, logsumexp)
        products = multiply(tile.load("key_rows"), context.load("query"), (1, 0))
        return compute_weights(view_tile(score_map, context, tile, products), logsumexp)

    def step(context: BlockContext, tile: Tile) -> None:
        given = weigh(context, tile) * to_column(tile.load("received_cotangent"))
        context.scratch["attention_given"][...] += given.sum(axis=0, keepdims=True)

    def finish(context: BlockContext) -> dict[str, jax.Array]:
        return {"attention_given": context.scratch["attention_given"][...]}

    return KernelBody({"attention_given": (1, queries)}, initialize, step, finish)
