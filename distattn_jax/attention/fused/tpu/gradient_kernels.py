"""Bodies of the kernels `query_gradient` and `key_gradient`.

The module `fused.kernels` has their equations. The logsumexp of a query without a visible key is
`EMPTY_LOGSUMEXP`, so that its weights are 0. If a head skips tiles, the kernel `key_gradient` adds
the contribution of the skipped tiles, `skipped_sums`: see `skipped_tiles`. In tiles whose products
q · k are treated as 0, the scores are 0 or a bias. Only the bias and the values have gradients.

Arrays in VMEM are transposed: queries have the shape (H, queries). A tile has the shape
(keys, queries).
"""

import jax
import jax.numpy as jnp

from distattn_jax.attention.fused.kernel_calls import KernelCall
from distattn_jax.attention.fused.score_map import compute_gradient_multiplier, read_dropout_scale
from distattn_jax.attention.fused.scoring import BIAS_TABLE
from distattn_jax.attention.fused.tpu import diagonal_sums, relation_tiles, tile_weights
from distattn_jax.attention.fused.tpu.kernel_body import BlockContext, KernelBody, Shape, Tile
from distattn_jax.attention.fused.tpu.position_tiles import add_gradients
from distattn_jax.attention.fused.tpu.registers import multiply
from distattn_jax.attention.fused.tpu.tile_view import view_tile


def query_gradient(call: KernelCall, shape: Shape) -> KernelBody:
    """Return the body of the kernel for the gradients of the queries and the coefficients.

    Inputs: `query`, `values_cotangent`, `logsumexp` and `negative_delta` of the block; `key` and
    `value` of each tile and, if the received attention has a cotangent, `received_cotangent`.

    Outputs: `query` is the gradient of the queries. Each name in `Scoring.gradient_names` is an
    output with one number per query. The caller sums each of these outputs over the queries, to
    obtain the gradients of the coefficients.

    A scoring with relation products also has the output `relation_products_gradient`. A scoring
    with position vectors has two more outputs: `position_query`, the gradient of the queries that
    are multiplied by position vectors, and `positions`, the gradient of the position vectors. The
    caller must still multiply `positions` by the scale. Each name in `Scoring.table_names` is an
    output: the gradient of this table, to be multiplied by `Scoring.gradient_multiplier`.

    Args:
      shape: Number of keys and number of queries of a tile.
    """
    score_map, queries, has_received = call.score_map, shape[1], call.has_received_cotangent
    width = call.resident["query"].shape[-1]
    origin = call.schedule.blocks * queries  # number of queries with their padding
    names = score_map.scoring.gradient_names
    summed = names[: score_map.scoring.summed_gradients]

    def compute_score_gradient(
        context: BlockContext, tile: Tile, weights: jax.Array, weight_gradient: jax.Array
    ) -> jax.Array:
        return tile_weights.compute_score_gradient(
            context,
            tile,
            weights,
            weight_gradient,
            per_query=context.load("negative_delta"),
            per_key=tile.load("received_cotangent") if has_received else None,
        )

    def step(context: BlockContext, tile: Tile) -> None:
        weight_gradient = multiply(tile.load("value"), context.load("values_cotangent"), (0, 0))
        logsumexp = context.load("logsumexp")
        if tile.kind.is_zero:
            weights = tile_weights.weigh_zero_products(context, tile, logsumexp)
            score_gradient = compute_score_gradient(context, tile, weights, weight_gradient)
            diagonal_sums.add(context.sums[BIAS_TABLE], tile, score_gradient, origin)
            return
        key = tile.load("key")
        products = multiply(key, context.load("query"), (0, 0))
        if score_map.scoring.has_relation_weights:
            weight_gradient += relation_tiles.read_relations(context, tile, "relation_cotangent")
        view = view_tile(context, tile, products, for_gradient=True)
        weights = tile_weights.compute_weights(view, logsumexp)
        score_gradient = compute_score_gradient(context, tile, weights, weight_gradient)
        relation_tiles.add_gradient(context, tile, score_gradient)
        product_gradient = view.product_gradient(score_gradient)
        if score_map.scoring.has_positions:
            add_gradients(context, tile, product_gradient, origin)
        table_gradients = score_map.scoring.table_gradients(score_gradient, view.tile_scores)
        for name, entries in table_gradients.items():
            diagonal_sums.add(context.sums[name], tile, entries, origin)
        gradients = view.coefficient_gradients(score_gradient, product_gradient)
        for name, gradient in zip(summed, gradients, strict=True):
            if gradient is not None:
                context.scratch[name][...] += gradient.sum(axis=0, keepdims=True)
        context.scratch["query"][...] += multiply(key, product_gradient.astype(key.dtype), (1, 0))

    def finish(context: BlockContext) -> dict[str, jax.Array]:
        total = context.scratch["query"][...]
        sums = [context.scratch[name][...] for name in summed]
        # The gradient log_height follows from dQ: see `DistanceScoring.summed_gradients`.
        if len(sums) < len(names):
            query = context.load("query").astype(jnp.float32)
            sums.append((total * query).sum(axis=0, keepdims=True))
        multiplier = compute_gradient_multiplier(score_map, context.scalars)
        coefficients = {name: x * multiplier for name, x in zip(names, sums, strict=True)}
        others = relation_tiles.finish_gradient(context, multiplier)
        if score_map.scoring.has_positions:
            others["position_query"] = context.scratch["position_query"][...] * multiplier
        return {"query": total * multiplier, **coefficients, **others}

    scratch: dict[str, tuple[int, ...]] = {
        "query": (width, queries),
        **dict.fromkeys(summed, (1, queries)),
        **relation_tiles.gradient_scratch(score_map, queries),
    }
    summed_outputs = score_map.scoring.table_names
    if score_map.scoring.has_positions:
        scratch["position_query"] = (width, queries)
        summed_outputs = ("positions",)
    return KernelBody(scratch, tile_weights.fill_with_zeros, step, finish, summed_outputs)


def key_gradient(call: KernelCall, shape: Shape) -> KernelBody:
    """Return the body of the kernel for the gradients of keys and values.

    Inputs: `key` and `value` of the block and, if the received attention has a cotangent,
    `received_cotangent`; `query`, `values_cotangent`, `logsumexp` and `negative_delta` of each
    tile. If tiles are skipped, `skipped_sums["value"]` is the contribution of the skipped tiles to
    the gradient of the values.

    Outputs: `key`, the gradient of the keys, and `value`, the gradient of the values.

    Args:
      shape: Number of keys and number of queries of a tile.
    """
    score_map, keys, has_received = call.score_map, shape[0], call.has_received_cotangent

    def initialize(context: BlockContext) -> None:
        tile_weights.fill_with_zeros(context)
        if "value" in context.skipped_sums:
            total = context.scratch["value"]
            total[...] = jnp.broadcast_to(context.skipped_sums["value"], total.shape)

    def add_value_gradient(context: BlockContext, tile: Tile, weights: jax.Array) -> None:
        cotangent = tile.load("values_cotangent")
        weights = tile_weights.drop(context, tile, weights).astype(cotangent.dtype)
        context.scratch["value"][...] += multiply(cotangent, weights, (1, 1))

    def step(context: BlockContext, tile: Tile) -> None:
        logsumexp = tile.load("logsumexp")
        if tile.kind.is_zero:  # The gradient of the keys is 0.
            weights = tile_weights.weigh_zero_products(context, tile, logsumexp)
            add_value_gradient(context, tile, weights)
            return
        query = tile.load("query")
        products = multiply(context.load("key"), query, (0, 0))
        weight_gradient = multiply(context.load("value"), tile.load("values_cotangent"), (0, 0))
        if score_map.scoring.has_relation_weights:
            weight_gradient += relation_tiles.read_relations(context, tile, "relation_cotangent")
        view = view_tile(context, tile, products, for_gradient=True)
        weights = tile_weights.compute_weights(view, logsumexp)
        score_gradient = tile_weights.compute_score_gradient(
            context,
            tile,
            weights,
            weight_gradient,
            per_query=tile.load("negative_delta"),
            per_key=context.load("received_cotangent") if has_received else None,
        )
        product_gradient = view.product_gradient(score_gradient).astype(query.dtype)
        context.scratch["key"][...] += multiply(query, product_gradient, (1, 1))
        add_value_gradient(context, tile, weights)

    def finish(context: BlockContext) -> dict[str, jax.Array]:
        is_visible = tile_weights.is_visible_key(context, keys)
        key = context.scratch["key"][...]
        key *= compute_gradient_multiplier(score_map, context.scalars)
        value = context.scratch["value"][...] * read_dropout_scale(context.scalars)
        return {"key": jnp.where(is_visible, key, 0.0), "value": jnp.where(is_visible, value, 0.0)}

    scratch = {name: (call.output_types[name].shape[-1], keys) for name in ("key", "value")}
    return KernelBody(scratch, initialize, step, finish)
