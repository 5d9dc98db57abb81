"""Bodies of the six kernels that compute attention and its gradients.

For query i and key j, the kernels compute

    forward           O_i = Σ_j A_ij V_j,    A_ij = 2^(e_ij - z_i)
    query_gradient    dQ_i = Σ_j dP_ij K_j,  dS_ij = A_ij (dO_i · V_j + g_j - D_i)
    key_gradient      dK_j = Σ_i dP_ij Q_i,  dV_j = Σ_i A_ij dO_i
    received          m_j = Σ_i A_ij         attention that key j receives
    attention_given   Σ_j A_ij g_j
    position_gradient dR[x] = Σ dP_ij p_i    over all i and j with i - j = x

e_ij are the scores to base 2, and z_i is the logsumexp of the scores of query i. dO is the
cotangent of O, g is the cotangent of m, dz is the cotangent of z, and
D_i = dO_i · O_i + Σ_j A_ij g_j - dz_i. dS is the gradient of the scores, from which the scoring
computes the gradient dP of the products q · k. With dropout, the sums with V and dO contain only
the kept weights.

The logsumexp of a query without a visible key is `EMPTY_LOGSUMEXP`, so that its weights are 0. If a
head skips tiles, the kernel adds the contribution of the skipped tiles, `skipped_sums`, before the
first visited tile: see `skipped_tiles`. In tiles whose scores are treated as 0, the kernels need no
products of queries and keys.

In relative position attention, the forward kernel also computes the relation weights, and the
kernel `query_gradient` also computes the gradient of the relation products: see `relations`. They
write the entries between the ends tile by tile, and sum the ends in their states.

In Transformer-XL attention, the products q · k include the products p · R of other queries p and of
position vectors R: see `position_tiles`. Only then is there a kernel `position_gradient`.
"""

from typing import Any

import jax
import jax.numpy as jnp

from distattn_jax.attention.fused.gpu import mosaic
from distattn_jax.attention.fused.gpu.position_tiles import (
    clear_buffers,
    gradient_by_diagonal,
    multiply_rows_and_columns,
    multiply_score_operands,
    scratch_buffers,
    wait_for_positions,
)
from distattn_jax.attention.fused.gpu.relation_tiles import name_ends, view_relations
from distattn_jax.attention.fused.gpu.tile_loop import KernelBody, Tile, WarpgroupContext
from distattn_jax.attention.fused.gpu.tile_view import (
    MASKED_SCORE,
    ScoreMap,
    TileView,
    kept_by_dropout,
    read_coefficients,
    read_lengths,
    view_tile,
    view_zero_scores,
)
from distattn_jax.attention.fused.operands import EMPTY_LOGSUMEXP
from distattn_jax.attention.fused.relations import AFTER, end_sides

Shape = tuple[int, int]  # rows and columns of a tile


def forward(score_map: ScoreMap, shape: Shape, width: int) -> KernelBody:
    """Return the body of the forward kernel, an online softmax.

    Inputs: `query` for the rows of the score map, `key` and `value` for its columns. If tiles are
    skipped, two more inputs describe the skipped keys: `value_sum`, the sum of their values, and
    `key_count`, their number.

    Outputs: `values`, the weighted sum of values of each query, and `logsumexp`, the base-2
    logsumexp of the scores of each query. For relation weights there are three more outputs:
    `band_scores`, the scores of the entries between the ends before the multiplication by
    `score_multiplier`, and the sums `weight_before` and `weight_after` of the end relations. A
    causal mask leaves no `weight_after`.

    Args:
      score_map: Scoring and masking of the score map, which has one row per query.
      shape: Number of rows and number of columns of a tile.
      width: Width of the values.
    """
    has_weights = score_map.scoring.has_relation_weights
    sides = end_sides(is_causal=score_map.window.is_causal) if has_weights else ()

    def initialize(context):
        total = mosaic.full((shape[0], width), 0.0)
        weight_sum = mosaic.full(shape[:1], 0.0)
        maximum = mosaic.full(shape[:1], MASKED_SCORE)
        if "value_sum" in context.skipped_sums:
            # All skipped scores are 0. Relative to a maximum of 0, each key has the weight 1.
            value_sum = mosaic.load_per_column_from_global(context.skipped_sums["value_sum"])
            key_count = context.skipped_sums["key_count"][0]
            total += mosaic.expand_per_column(value_sum, total.shape)
            weight_sum += key_count
            maximum = jnp.where(weight_sum > 0, 0.0, maximum)
        return maximum, weight_sum, total, [mosaic.full(shape[:1], 0.0) for _ in sides]

    def weigh_zero_scores(context, tile, maximum):
        """Do the same as `weigh` for a tile whose scores are treated as 0."""
        tile.skip("key")
        visible = view_zero_scores(score_map, context, tile)
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

    def weigh(context, tile, maximum):
        """Return the new maximum, the weights of a tile and their sum in each row."""
        if tile.section.is_zero:
            return weigh_zero_scores(context, tile, maximum)
        products = multiply_score_operands(
            score_map, context, tile, (context.resident["query"], tile.wait("key"))
        )
        tile.release("key")
        view = view_tile(score_map, context, tile, products)
        if has_weights:  # before the weights replace the scores in the registers
            view_relations(score_map, context, tile).write("band_scores", view.scores)
        new_maximum = jnp.maximum(maximum, view.scores.max(axis=1) * view.score_multiplier)
        weights = _weights(view, mosaic.expand_per_row(new_maximum, tile.shape))
        if view.visible is not None:
            weights = jnp.where(view.visible, weights, 0.0)
        return new_maximum, weights, mosaic.sum_rows(weights)

    def step(context, tile, state):
        maximum, weight_sum, total, ends = state
        new_maximum, weights, row_sum = weigh(context, tile, maximum)
        correction = jnp.exp2(maximum - new_maximum)
        weight_sum = weight_sum * correction + row_sum
        total *= mosaic.expand_per_row(correction, total.shape)
        weights = _drop(score_map, context, tile, weights)
        if has_weights:
            kept_sum = mosaic.sum_rows(weights) if score_map.has_dropout else row_sum
            ends = view_relations(score_map, context, tile).add_ends(
                [end * correction for end in ends], sides, weights, kept_sum
            )
        value = tile.wait("value")
        (total,) = mosaic.accumulate_products(
            (total,), ((weights, value),), scratch=context.operand_scratch
        )
        tile.release("value")
        return new_maximum, weight_sum, total, ends

    def finish(context, state):
        maximum, weight_sum, total, ends = state
        query_length = read_lengths(context).query
        is_valid = mosaic.row_indices(shape[0]) < query_length - context.row
        is_valid = is_valid & (weight_sum > 0)
        weight_sum = jnp.where(is_valid, weight_sum, 1.0)
        normaliser = jnp.where(is_valid, _dropout_scale(score_map, context) / weight_sum, 0.0)
        return {
            "values": total * mosaic.expand_per_row(normaliser, total.shape),
            "logsumexp": jnp.where(is_valid, maximum + jnp.log2(weight_sum), EMPTY_LOGSUMEXP),
            **name_ends("weight", sides, [end * normaliser for end in ends]),
        }

    return KernelBody(
        initialize,
        step,
        finish,
        scattered=("band_scores",) * has_weights,
        scratch=scratch_buffers(score_map),
    )


def query_gradient(
    score_map: ScoreMap, shape: Shape, width: int, dtype: Any, *, has_received: bool
) -> KernelBody:
    """Return the body of the kernel for the gradients of the queries and the coefficients.

    Inputs: `query`, `values_cotangent`, `logsumexp` and `negative_delta` for the rows of the score
    map. `key`, `value` and, if `has_received` is True, `received_cotangent` for its columns.

    Outputs: `query`, the gradient of the queries, and one output with one number per query for each
    of the scoring's `gradient_names`. For `DistanceScoring`, these are `slope`, `shift` and
    `log_height`. The caller sums each of them over the queries, to obtain the gradients of slope,
    shift and the logarithm of the height. For relation products there are two more outputs:
    `band_gradient`, the gradient of the scores of the entries between the ends, and
    `gradient_after`, its sum over the entries of relation 2k. A causal mask leaves no
    `gradient_after`. With position vectors there is one more output: `position_query`, the gradient
    of the queries that are multiplied by position vectors.

    Args:
      score_map: Scoring and masking of the score map, which has one row per query.
      shape: Number of rows and number of columns of a tile.
      width: Width of the queries.
      dtype: Dtype of the queries.
      has_received: True if the attention that each key receives has a cotangent.
    """
    has_products = score_map.scoring.has_relation_products
    has_positions = score_map.scoring.has_positions
    sides = (AFTER,) if has_products and not score_map.window.is_causal else ()

    def initialize(context):
        clear_buffers(context)
        ends = [mosaic.full(shape[:1], 0.0) for _ in sides]
        sums = [mosaic.full(shape[:1], 0.0) for _ in range(score_map.scoring.summed_gradients)]
        totals = [mosaic.full((shape[0], width), 0.0) for _ in range(1 + has_positions)]
        return tuple(totals), sums, ends

    def step(context, tile, state):
        totals, sums, ends = state
        key, value = tile.wait("key"), tile.wait("value")
        positions = wait_for_positions(score_map, context, tile)
        products, weight_gradient = multiply_rows_and_columns(
            score_map,
            context,
            tile,
            (context.resident["query"], key),
            (context.resident["values_cotangent"], value),
            positions=positions,
        )
        tile.release("value")
        view = view_tile(score_map, context, tile, products, for_gradient=True)
        logsumexp = mosaic.expand_per_row(context.vectors["logsumexp"], tile.shape)
        weights = _weights(view, logsumexp)
        score_gradient = _score_gradient(
            score_map,
            context,
            tile,
            weights,
            weight_gradient,
            per_column=tile.load_vector("received_cotangent") if has_received else None,
            per_row=context.vectors["negative_delta"],
        )
        if has_products:
            relations = view_relations(score_map, context, tile)
            ends = relations.add_ends(ends, sides, score_gradient)
            relations.write("band_gradient", score_gradient)
        product_gradient = view.product_gradient(score_gradient)
        gradients = view.coefficient_gradients(score_gradient, product_gradient)
        sums = [
            row_sum if gradient is None else row_sum + gradient.sum(axis=1)
            for row_sum, gradient in zip(sums, gradients, strict=True)
        ]
        operands = [((product_gradient, key),)]
        if positions is not None:
            lower, upper = gradient_by_diagonal(score_map, context, product_gradient)
            operands.append(((lower, positions.lower), (upper, positions.upper)))
        totals = mosaic.accumulate_products(totals, *operands, scratch=context.operand_scratch)
        tile.release("key")
        if positions is not None:
            positions.release()
        return totals, sums, ends

    def finish(context, state):
        (total, *_), sums, ends = state
        names = score_map.scoring.gradient_names
        # The gradient log_height follows from dQ: see `DistanceScoring.summed_gradients`.
        if len(sums) < len(names):
            query = mosaic.load_tile(context.resident["query"])
            sums = [*sums, (total * query).sum(axis=1)]
        multiplier = _gradient_multiplier(score_map, context)
        coefficients = {name: x * multiplier for name, x in zip(names, sums, strict=True)}
        totals = dict(zip(("query", "position_query"), state[0], strict=False))
        return {
            **{name: x * multiplier for name, x in totals.items()},
            **coefficients,
            **name_ends("gradient", sides, ends),
        }

    return KernelBody(
        initialize,
        step,
        finish,
        scattered=("band_gradient",) * has_products,
        scratch=scratch_buffers(score_map, gradient_dtype=dtype),
    )


def key_gradient(
    score_map: ScoreMap, shape: Shape, widths: tuple[int, int], *, has_received: bool
) -> KernelBody:
    """Return the body of the kernel for the gradients of keys and values.

    Inputs: `key`, `value` and, if `has_received` is True, `received_cotangent` for the rows of the
    score map. `query`, `values_cotangent`, `logsumexp` and `negative_delta` for its columns. If
    tiles are skipped, `skipped_sums["value"]` is their part of the gradient of the values.

    Outputs: `key`, the gradient of the keys, and `value`, the gradient of the values.

    Args:
      score_map: Scoring and masking of the score map, which has one row per key.
      shape: Number of rows and number of columns of a tile.
      widths: Width of the keys and width of the values.
      has_received: True if the attention that each key receives has a cotangent.
    """

    def initialize(context):
        key_total, value_total = (mosaic.full((shape[0], width), 0.0) for width in widths)
        if "value" in context.skipped_sums:
            skipped_sum = mosaic.load_per_column_from_global(context.skipped_sums["value"])
            value_total += mosaic.expand_per_column(skipped_sum, value_total.shape)
        return key_total, value_total

    def step_of_zero_scores(context, tile, state):
        """Add the gradient of the values. The gradient of the keys is 0."""
        key_total, value_total = state
        tile.skip("query")
        tile.skip("negative_delta")
        weights = _drop(score_map, context, tile, _weights_of_zero_scores(score_map, context, tile))
        (value_total,) = mosaic.accumulate_products(
            (value_total,),
            ((weights, tile.wait("values_cotangent")),),
            scratch=context.operand_scratch,
        )
        tile.release("values_cotangent")
        return key_total, value_total

    def step(context, tile, state):
        if tile.section.is_zero:
            return step_of_zero_scores(context, tile, state)
        query, values_cotangent = tile.wait("query"), tile.wait("values_cotangent")
        positions = wait_for_positions(score_map, context, tile)
        products, weight_gradient = multiply_rows_and_columns(
            score_map,
            context,
            tile,
            (context.resident["key"], query),
            (context.resident["value"], values_cotangent),
            positions=positions,
        )
        if positions is not None:
            positions.release()
        view = view_tile(score_map, context, tile, products, for_gradient=True)
        logsumexp = mosaic.expand_per_column(tile.load_vector("logsumexp"), tile.shape)
        weights = _weights(view, logsumexp)
        score_gradient = _score_gradient(
            score_map,
            context,
            tile,
            weights,
            weight_gradient,
            per_row=context.vectors["received_cotangent"] if has_received else None,
            per_column=tile.load_vector("negative_delta"),
        )
        product_gradient = view.product_gradient(score_gradient)
        dropped_weights = _drop(score_map, context, tile, weights)
        totals = mosaic.accumulate_products(
            state,
            ((product_gradient, query),),
            ((dropped_weights, values_cotangent),),
            scratch=context.operand_scratch,
        )
        tile.release("query")
        tile.release("values_cotangent")
        return totals

    def finish(context, state):
        key_total, value_total = state
        is_visible = _is_visible_key(score_map, context, shape[0])
        key_total = key_total * _gradient_multiplier(score_map, context)
        value_total = value_total * _dropout_scale(score_map, context)
        return {
            "key": jnp.where(mosaic.expand_per_row(is_visible, key_total.shape), key_total, 0.0),
            "value": jnp.where(
                mosaic.expand_per_row(is_visible, value_total.shape), value_total, 0.0
            ),
        }

    return KernelBody(initialize, step, finish, scratch=scratch_buffers(score_map))


def position_gradient(
    score_map: ScoreMap, shape: Shape, width: int, dtype: Any, *, has_received: bool
) -> KernelBody:
    """Return the body of the kernel for the gradient of the position vectors.

    Inputs: `lower_positions` and `upper_positions` for the diagonals of the score map. A warpgroup
    has one tile of diagonals from each of them. `key`, `value` and, if `has_received` is True,
    `received_cotangent` for its moving rows. `query`, `position_query`, `values_cotangent`,
    `logsumexp` and `negative_delta` for its columns.

    Outputs: `lower_positions` and `upper_positions`, two parts of the gradient. A position vector
    that occurs in both inputs has a part in each output.

    Args:
      score_map: Scoring and masking of the score map, which has one row per key.
      shape: Number of rows and number of columns of a tile.
      width: Width of the position vectors.
      dtype: Dtype of the position vectors.
      has_received: True if the attention that each key receives has a cotangent.
    """

    def initialize(context):
        clear_buffers(context)
        return tuple(mosaic.full((shape[0], width), 0.0) for _ in range(2))

    def step(context, tile, state):
        key, value = tile.wait("key"), tile.wait("value")
        positions: Any = wait_for_positions(score_map, context, tile)
        products, weight_gradient = multiply_rows_and_columns(
            score_map,
            context,
            tile,
            (key, tile.wait("query")),
            (value, tile.wait("values_cotangent")),
            positions=positions,
        )
        for name in ("key", "value", "query", "values_cotangent"):
            tile.release(name)
        view = view_tile(score_map, context, tile, products, for_gradient=True)
        logsumexp = mosaic.expand_per_column(tile.load_vector("logsumexp"), tile.shape)
        score_gradient = _score_gradient(
            score_map,
            context,
            tile,
            _weights(view, logsumexp),
            weight_gradient,
            per_row=tile.load_row_vector("received_cotangent") if has_received else None,
            per_column=tile.load_vector("negative_delta"),
        )
        product_gradient = view.product_gradient(score_gradient)
        lower, upper = gradient_by_diagonal(score_map, context, product_gradient)
        totals = mosaic.accumulate_products(
            state,
            ((lower, positions.query),),
            ((upper, positions.query),),
            scratch=context.operand_scratch,
        )
        positions.release()
        return totals

    def finish(context, state):
        multiplier = _gradient_multiplier(score_map, context)
        names = ("lower_positions", "upper_positions")
        return {name: x * multiplier for name, x in zip(names, state, strict=True)}

    buffers = scratch_buffers(score_map, gradient_dtype=dtype)
    return KernelBody(initialize, step, finish, scratch=buffers)


def received(score_map: ScoreMap, shape: Shape) -> KernelBody:
    """Return the body of the kernel for the attention that each key receives.

    Inputs: `key` for the rows of the score map, `query` and `logsumexp` for its columns. If tiles
    are skipped, `skipped_sums["received"]` is the attention received from the skipped queries.

    Output: `received`, the attention that each key receives, summed over all queries.

    Args:
      score_map: Scoring and masking of the score map, which has one row per key.
      shape: Number of rows and number of columns of a tile.
    """

    def initialize(context):
        sums = context.skipped_sums
        return mosaic.full(shape[:1], sums["received"][0] if sums else 0.0)

    def step(context, tile, state):
        if tile.section.is_zero:
            tile.skip("query")
            weights = _weights_of_zero_scores(score_map, context, tile)
            return state + mosaic.sum_rows(weights)
        products = multiply_score_operands(
            score_map, context, tile, (context.resident["key"], tile.wait("query"))
        )
        tile.release("query")
        view = view_tile(score_map, context, tile, products)
        logsumexp = mosaic.expand_per_column(tile.load_vector("logsumexp"), tile.shape)
        return state + _weights(view, logsumexp).sum(axis=1)

    def finish(context, state):
        is_visible = _is_visible_key(score_map, context, shape[0])
        return {"received": jnp.where(is_visible, state, 0.0)}

    return KernelBody(initialize, step, finish, scratch=scratch_buffers(score_map))


def attention_given(score_map: ScoreMap, shape: Shape) -> KernelBody:
    """Return the body of the kernel that computes Σ_j A_ij g_j for each query i.

    A are the attention weights, and g_j is the cotangent of the attention that key j receives.

    Inputs: `query` and `logsumexp` for the rows of the score map, `key` and `received_cotangent`
    for its columns. If tiles are skipped, `skipped_sums["attention_given"]` is the sum of g_j over
    the skipped keys.

    Output: `attention_given`, the sum Σ_j A_ij g_j of each query.

    Args:
      score_map: Scoring and masking of the score map, which has one row per query.
      shape: Number of rows and number of columns of a tile.
    """

    def initialize(context):
        if "attention_given" not in context.skipped_sums:
            return mosaic.full(shape[:1], 0.0)
        weight = jnp.exp2(-context.vectors["logsumexp"])
        return weight * context.skipped_sums["attention_given"][0]

    def step_of_zero_scores(context, tile, state):
        tile.skip("key")
        visible = view_zero_scores(score_map, context, tile)
        cotangent = mosaic.expand_per_column(tile.load_vector("received_cotangent"), tile.shape)
        weight = jnp.exp2(-context.vectors["logsumexp"])
        given = cotangent * mosaic.expand_per_row(weight, tile.shape)
        given = given if visible is None else jnp.where(visible, given, 0.0)
        return state + mosaic.sum_rows(given)

    def step(context, tile, state):
        if tile.section.is_zero:
            return step_of_zero_scores(context, tile, state)
        products = multiply_score_operands(
            score_map, context, tile, (context.resident["query"], tile.wait("key"))
        )
        tile.release("key")
        view = view_tile(score_map, context, tile, products)
        logsumexp = mosaic.expand_per_row(context.vectors["logsumexp"], tile.shape)
        weights = _weights(view, logsumexp)
        cotangent = mosaic.expand_per_column(tile.load_vector("received_cotangent"), tile.shape)
        return state + (weights * cotangent).sum(axis=1)

    def finish(context, state):
        return {"attention_given": state}

    return KernelBody(initialize, step, finish, scratch=scratch_buffers(score_map))


def _weights(view: TileView, logarithm: jax.Array) -> jax.Array:
    """Return 2^(score - logarithm), where `logarithm` is a maximum or a logsumexp."""
    return jnp.exp2(view.scores * view.score_multiplier - logarithm)


def _weights_of_zero_scores(
    score_map: ScoreMap, context: WarpgroupContext, tile: Tile
) -> jax.Array:
    """Return 2^-logsumexp for each visible entry, in a tile whose columns are queries."""
    visible = view_zero_scores(score_map, context, tile)
    logsumexp = mosaic.expand_per_column(tile.load_vector("logsumexp"), tile.shape)
    weights = jnp.exp2(-logsumexp)
    return weights if visible is None else jnp.where(visible, weights, 0.0)


def _score_gradient(
    score_map: ScoreMap,
    context: WarpgroupContext,
    tile: Tile,
    weights: jax.Array,
    weight_gradient: jax.Array,
    *,
    per_row: jax.Array | None,
    per_column: jax.Array | None,
) -> jax.Array:
    """Return the gradient of the scores of a tile, A (dO · V + g - D) as in the module docstring.

    Args:
      score_map: Scoring and masking of the map.
      context: Data of the warpgroup.
      tile: Position of the tile.
      weights: Weights A.
      weight_gradient: Products dO · V.
      per_row: Per-row vector that is added: -D if rows are queries, g if rows are keys. None adds
        nothing.
      per_column: Per-column vector that is added: -D if columns are queries, g if columns are keys.
        None adds nothing.
    """
    weight_gradient = _drop(score_map, context, tile, weight_gradient)
    if score_map.has_dropout:
        weight_gradient *= _dropout_scale(score_map, context)
    if per_row is not None:
        weight_gradient += mosaic.expand_per_row(per_row, tile.shape)
    if per_column is not None:
        weight_gradient += mosaic.expand_per_column(per_column, tile.shape)
    return weights * weight_gradient


def _drop(
    score_map: ScoreMap,
    context: WarpgroupContext,
    tile: Tile,
    entries: jax.Array,
) -> jax.Array:
    """Set the entries that dropout drops to 0. The caller scales the result by `_dropout_scale`."""
    if not score_map.has_dropout:
        return entries
    return jnp.where(kept_by_dropout(score_map, context, tile), entries, 0.0)


def _dropout_scale(score_map: ScoreMap, context: WarpgroupContext) -> Any:
    """Return 1 / (1 - dropout rate), or 1 without dropout."""
    return context.scalars["dropout_scale"][0] if score_map.has_dropout else 1.0


def _gradient_multiplier(score_map: ScoreMap, context: WarpgroupContext) -> Any:
    """Return the factor by which a kernel multiplies the gradients after the last tile."""
    scoring: Any = score_map.scoring
    return scoring.gradient_multiplier(read_coefficients(context))


def _is_visible_key(score_map: ScoreMap, context: WarpgroupContext, rows: int) -> jax.Array:
    """Return a mask that is True for each row whose key is neither masked nor padding."""
    if score_map.has_key_mask:
        return context.vectors["key_mask"] > 0
    return mosaic.row_indices(rows) < read_lengths(context).key - context.row
