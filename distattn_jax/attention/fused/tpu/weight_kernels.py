"""Bodies of the kernels `forward`, `received` and `attention_given`, which sum weights of tiles.

The module `fused.kernels` has their equations. The logsumexp of a query without a visible key is
`EMPTY_LOGSUMEXP`, so that its weights are 0. If a head skips tiles, a kernel adds the contribution
of the skipped tiles, `skipped_sums`: see `skipped_tiles`. In tiles whose products q · k are treated
as 0, the scores are 0 or a bias.

Arrays in VMEM, except `key_rows`, are transposed: queries have the shape (H, queries). A tile has
the shape (keys, queries).
"""

import jax
import jax.experimental.pallas as pl
import jax.numpy as jnp
from jax.experimental.pallas import tpu as pltpu

from distattn_jax.attention.fused.kernel_calls import KernelCall
from distattn_jax.attention.fused.operands import EMPTY_LOGSUMEXP
from distattn_jax.attention.fused.score_map import TileView, read_dropout_scale, read_lengths
from distattn_jax.attention.fused.scoring import MASKED_SCORE
from distattn_jax.attention.fused.tpu import relation_tiles, tile_weights
from distattn_jax.attention.fused.tpu.kernel_body import BlockContext, KernelBody, Shape, Tile
from distattn_jax.attention.fused.tpu.registers import LANES, lane_indices, multiply, to_column
from distattn_jax.attention.fused.tpu.tile_view import view_tile, view_visibility

# Limits of the sums of weights in the forward kernel, far from the limits 2^-126 and 2^128 of
# float32. A weight becomes 0 only if it is at least 2^62 times smaller than the sum.
SMALLEST_SUM, LARGEST_SUM = 2.0**-64, 2.0**64


def forward(call: KernelCall, shape: Shape) -> KernelBody:
    """Return the body of the forward kernel, an online softmax.

    The unnormalised weights of a query are powers 2^(score - reference). The usual reference is the
    maximum of the scores, which is known only when all products of a tile have been computed. This
    kernel starts with the reference 0, so that it can compute each power as soon as the product is
    known. If the sum of the weights of a query leaves the range from 2^-64 to 2^64, the maximum
    becomes the reference of the query, and the tile is computed again.

    Inputs: `query` of the block, and `key_rows` and `value` of each tile. If tiles are skipped,
    `skipped_sums["value_sum"]` is the sum of the values of the skipped keys, and
    `skipped_sums["key_count"]` is the number of these keys.

    Outputs: `values` is the weighted sum of values for each query, shape (E, queries). `logsumexp`
    is the base-2 logsumexp of the scores of each query. A scoring with relation weights also has
    the output `relation_weights`.

    Args:
      shape: Number of keys and number of queries of a tile.
    """
    score_map, queries = call.score_map, shape[1]
    width, dtype = call.streamed["value"].shape[-1], call.streamed["value"].dtype

    def initialize(context: BlockContext) -> None:
        buffers = {name: x for name, x in context.scratch.items() if name != "weights"}
        tile_weights.fill_with_zeros(context._replace(scratch=buffers))
        if "value_sum" in context.skipped_sums:
            # All skipped scores are 0. Relative to a reference of 0, each key has the weight 1.
            for name, sums in (("total", "value_sum"), ("weight_sum", "key_count")):
                buffer = context.scratch[name]
                buffer[...] = jnp.broadcast_to(context.skipped_sums[sums], buffer.shape)

    def view(context: BlockContext, tile: Tile) -> TileView:
        products = multiply(tile.load("key_rows"), context.load("query"), (1, 0))
        return view_tile(context, tile, products)

    def find_maximum(context: BlockContext, tile: Tile) -> jax.Array:
        if not tile.kind.is_zero:
            tile_view = view(context, tile)
            return tile_view.scores.max(axis=0, keepdims=True) * tile_view.score_multiplier
        bias = jnp.broadcast_to(tile_weights.read_bias(context, tile), tile.shape)
        visible = view_visibility(context, tile)
        bias = bias if visible is None else jnp.where(visible, bias, MASKED_SCORE)
        return bias.max(axis=0, keepdims=True)

    def store_weights(context: BlockContext, tile: Tile) -> jax.Array:
        """Compute the unnormalised weights of a tile, and return the sum of each query.

        The result has the shape (1, queries), and contains the weights before dropout. The weights
        after dropout are stored in the buffer "weights".
        """
        reference = context.scratch["reference"][...]
        if tile.kind.is_zero:
            weights = tile_weights.weigh_zero_products(context, tile, reference)
        else:
            weights = tile_weights.compute_weights(view(context, tile), reference)
        context.scratch["weights"][...] = tile_weights.drop(context, tile, weights).astype(dtype)
        return weights.sum(axis=0, keepdims=True)

    def change_reference(context: BlockContext, tile: Tile, is_safe: jax.Array) -> None:
        reference, weight_sum = context.scratch["reference"], context.scratch["weight_sum"]
        changed = jnp.where(is_safe, reference[...], find_maximum(context, tile))
        # While a query has no weights, the reference may fall. The minimum keeps the power finite.
        correction = jnp.exp2(jnp.minimum(reference[...] - changed, 0.0))
        context.scratch["total"][...] *= correction
        weight_sum[...] *= correction
        relation_tiles.scale_weights(context, correction)
        reference[...] = changed

    def step(context: BlockContext, tile: Tile) -> None:
        total, weight_sum, tile_sum = (
            context.scratch[name] for name in ("total", "weight_sum", "tile_sum")
        )
        tile_sum[...] = store_weights(context, tile)
        is_safe = weight_sum[...] + tile_sum[...] >= SMALLEST_SUM
        visible = view_visibility(context, tile)
        if visible is not None:  # Queries without a visible key have no weights.
            is_safe |= jnp.where(visible, 1.0, 0.0).max(axis=0, keepdims=True) == 0
        is_safe &= tile_sum[...] <= LARGEST_SUM

        @pl.when(jnp.where(is_safe, 0.0, 1.0).max() > 0)
        def _() -> None:
            change_reference(context, tile, is_safe)
            tile_sum[...] = store_weights(context, tile)

        weight_sum[...] += tile_sum[...]
        weights = context.scratch["weights"][...]
        if score_map.scoring.has_relation_weights:
            relation_tiles.add_weights(context, tile, weights, context.scratch["reference"][...])
        total[...] += multiply(tile.load("value"), weights, (1, 0))

    def finish(context: BlockContext) -> dict[str, jax.Array]:
        total, weight_sum, reference = (
            context.scratch[name][...] for name in ("total", "weight_sum", "reference")
        )
        query_length = read_lengths(context.scalars).query
        is_valid = lane_indices((1, queries)) < query_length - context.start
        is_valid &= weight_sum > 0
        weight_sum = jnp.where(is_valid, weight_sum, 1.0)
        normaliser = jnp.where(is_valid, read_dropout_scale(context.scalars) / weight_sum, 0.0)
        logsumexp = jnp.where(is_valid, reference + jnp.log2(weight_sum), EMPTY_LOGSUMEXP)
        weights = relation_tiles.finish_weights(context, reference=reference, normaliser=normaliser)
        return {"values": total * normaliser, "logsumexp": logsumexp, **weights}

    scratch = {
        "total": (width, queries),
        "weights": pltpu.VMEM(shape, dtype),
        **dict.fromkeys(("weight_sum", "tile_sum", "reference"), (1, queries)),
        **relation_tiles.weight_scratch(score_map, queries),
    }
    return KernelBody(scratch, initialize, step, finish)


def received(call: KernelCall, shape: Shape) -> KernelBody:
    """Return the body of the kernel for the attention that each key receives.

    Inputs: `key` of the block, and `query` and `logsumexp` of each tile. If tiles are skipped,
    `skipped_sums["received"]` is the attention received from the skipped queries.

    Output: `received`, the attention that each key receives, summed over all queries.

    Args:
      shape: Number of keys and number of queries of a tile.
    """
    keys = shape[0]

    def weigh(context: BlockContext, tile: Tile) -> jax.Array:
        logsumexp = tile.load("logsumexp")
        if tile.kind.is_zero:
            return tile_weights.weigh_zero_products(context, tile, logsumexp)
        products = multiply(context.load("key"), tile.load("query"), (0, 0))
        return tile_weights.compute_weights(view_tile(context, tile, products), logsumexp)

    def step(context: BlockContext, tile: Tile) -> None:
        weights = weigh(context, tile)
        # Add the groups of lanes. One sum over lanes, which is slow, follows after the last tile.
        for first in range(0, tile.shape[1], LANES):
            context.scratch["received"][...] += weights[:, first : first + LANES]

    def finish(context: BlockContext) -> dict[str, jax.Array]:
        total = jnp.transpose(context.scratch["received"][...]).sum(axis=0, keepdims=True)
        if "received" in context.skipped_sums:
            total += context.skipped_sums["received"]
        return {"received": jnp.where(tile_weights.is_visible_key(context, keys), total, 0.0)}

    return KernelBody({"received": (keys, LANES)}, tile_weights.fill_with_zeros, step, finish)


def attention_given(call: KernelCall, shape: Shape) -> KernelBody:
    """Return the body of the kernel that computes Σ_j A_ij g_j for each query i.

    A are the attention weights, and g_j is the cotangent of the attention that key j receives.

    Inputs: `query` and `logsumexp` of the block, and `key_rows` and `received_cotangent` of each
    tile. If tiles are skipped, `skipped_sums["attention_given"]` is the sum of g_j over the skipped
    keys.

    Output: `attention_given`, the sum Σ_j A_ij g_j of each query.

    Args:
      shape: Number of keys and number of queries of a tile.
    """
    queries = shape[1]

    def initialize(context: BlockContext) -> None:
        tile_weights.fill_with_zeros(context)
        if "attention_given" in context.skipped_sums:  # Each key has the weight 2^-logsumexp.
            weight = jnp.exp2(-context.load("logsumexp"))
            total = context.scratch["attention_given"]
            total[...] = weight * context.skipped_sums["attention_given"]

    def weigh(context: BlockContext, tile: Tile) -> jax.Array:
        logsumexp = context.load("logsumexp")
        if tile.kind.is_zero:
            return tile_weights.weigh_zero_products(context, tile, logsumexp)
        products = multiply(tile.load("key_rows"), context.load("query"), (1, 0))
        return tile_weights.compute_weights(view_tile(context, tile, products), logsumexp)

    def step(context: BlockContext, tile: Tile) -> None:
        given = weigh(context, tile) * to_column(tile.load("received_cotangent"))
        context.scratch["attention_given"][...] += given.sum(axis=0, keepdims=True)

    def finish(context: BlockContext) -> dict[str, jax.Array]:
        return {"attention_given": context.scratch["attention_given"][...]}

    return KernelBody({"attention_given": (1, queries)}, initialize, step, finish)
