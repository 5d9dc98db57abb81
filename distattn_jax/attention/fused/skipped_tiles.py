"""Prefix sums that replace the tiles that a kernel skips.

A head may treat all scores beyond its radius as 0 (see `saturation`). Each key beyond the radius
then has the weight 2^-z_i for query i, where z_i is the logsumexp of query i to base 2. The kernel
`query_gradient` skips such tiles, because their gradients of queries and coefficients are 0. All
other kernels skip these tiles if they can add these sums over the queries i or keys j of the
skipped tiles:

    forward           Σ_j V_j, and the number of keys
    key gradient      Σ_i 2^-z_i dO_i
    received          Σ_i 2^-z_i
    attention given   Σ_j g_j

dO is the cotangent of the values. g_j is the cotangent of the attention that key j receives.
The sums must contain visible keys only. Lengths, a mask of keys and a causal mask allow this. A
mask of pairs, segments and windows do not. With dropout, `forward` and `key_gradient` have no such
sums either, because each query drops different keys. Where there are no sums, the kernels visit the
tiles as ZERO tiles (see `tile_runs`).

Each function `sums_for_...` returns a dict of sums of shape (B, N, blocks, W). The dict is empty if
there are no sums. `schedule` contains the tiles that each block visits, and `tile_columns` is the
number of keys, or of queries, in such a tile.
"""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from distattn_jax.attention.fused.kernels import Plan
from distattn_jax.attention.fused.operands import Operands
from distattn_jax.attention.fused.tile_runs import TileSchedule
from distattn_jax.attention.fused.visible_columns import Window

Sums = dict[str, Array]


def has_sums(plan: Plan, operands: Operands, *, drops_weights: bool) -> bool:
    """Return True if a kernel adds sums over the tiles beyond the radius and skips these tiles.

    Args:
      drops_weights: True if dropout applies to the weights that the kernel sums.
    """
    is_restricted = (
        operands.mask is not None
        or operands.query_segments is not None
        or plan.window not in (Window(), Window(right=0))
        or (drops_weights and operands.dropout_words is not None)
    )
    return operands.is_zero_beyond_radius is not None and not is_restricted


def sums_for_forward(
    plan: Plan, operands: Operands, schedule: TileSchedule, tile_columns: int
) -> Sums:
    """Return the sums over skipped keys that the kernel `forward` adds.

    `value_sum` is the sum of the values of the keys that a block of queries skips. `key_count` is
    the number of these keys.
    """
    if not has_sums(plan, operands, drops_weights=True):
        return {}
    value = _zero_masked_keys(operands, operands.value)
    return {
        "value_sum": _sum_skipped_keys(plan, operands, value, schedule, tile_columns),
        "key_count": _count_skipped_keys(plan, operands, schedule, tile_columns),
    }


def sums_for_key_gradient(
    plan: Plan,
    operands: Operands,
    schedule: TileSchedule,
    tile_columns: int,
    *,
    logsumexp: Float[Array, "B N _"],
    values_cotangent: Float[Array, "B T N E"],
) -> Sums:
    """Return the sums over skipped queries that the kernel `key_gradient` adds.

    `value` is the sum of (2^-logsumexp times the cotangent of the values) over the queries that a
    block of keys skips.
    """
    if not has_sums(plan, operands, drops_weights=True):
        return {}
    rows = values_cotangent * _as_matrix(jnp.exp2(-logsumexp), values_cotangent)
    return {"value": _sum_skipped_queries(plan, operands, rows, schedule, tile_columns)}


def sums_for_received(
    plan: Plan,
    operands: Operands,
    schedule: TileSchedule,
    tile_columns: int,
    *,
    logsumexp: Float[Array, "B N _"],
) -> Sums:
    """Return the sums over skipped queries that the kernel `received` adds.

    `received` is the sum of 2^-logsumexp over the queries that a block of keys skips.
    """
    if not has_sums(plan, operands, drops_weights=False):
        return {}
    rows = _as_matrix(jnp.exp2(-logsumexp), operands.query)
    return {"received": _sum_skipped_queries(plan, operands, rows, schedule, tile_columns)}


def sums_for_attention_given(
    plan: Plan,
    operands: Operands,
    schedule: TileSchedule,
    tile_columns: int,
    *,
    received_cotangent: Float[Array, "B N _"],
) -> Sums:
    """Return the sums over skipped keys that the kernel `attention_given` adds.

    `attention_given` is the sum of the cotangent of the received attention over the keys that a
    block of queries skips.
    """
    if not has_sums(plan, operands, drops_weights=False):
        return {}
    rows = _zero_masked_keys(operands, _as_matrix(received_cotangent, operands.key))
    return {"attention_given": _sum_skipped_keys(plan, operands, rows, schedule, tile_columns)}


def _sum_skipped_keys(
    plan: Plan,
    operands: Operands,
    x: Float[Array, "B S K W"],
    schedule: TileSchedule,
    tile_columns: int,
) -> Float[Array, "B N blocks W"]:
    """Sum the rows of x over the keys that each block of queries skips.

    Under a causal mask, keys after the last visited tile are masked and add nothing to the sum.
    """
    is_zero: Any = operands.is_zero_beyond_radius
    after = not plan.window.is_causal
    return sum_skipped_rows(x, schedule, is_zero, tile_columns, before=True, after=after)


def _count_skipped_keys(
    plan: Plan, operands: Operands, schedule: TileSchedule, tile_columns: int
) -> Float[Array, "B N blocks 1"]:
    """Return the number of visible keys that each block of queries skips."""
    is_zero: Any = operands.is_zero_beyond_radius
    if operands.key_mask is not None:
        ones = _zero_masked_keys(operands, jnp.ones_like(operands.value[..., :1]))
        return _sum_skipped_keys(plan, operands, ones, schedule, tile_columns)
    keys = operands.key_lengths[:, None, None]
    count = jnp.minimum(schedule.start * tile_columns, keys)
    if not plan.window.is_causal:
        count += keys - jnp.minimum(schedule.end * tile_columns, keys)
    return jnp.where(is_zero[:, :, None], count, 0).astype(jnp.float32)[..., None]


def _sum_skipped_queries(
    plan: Plan,
    operands: Operands,
    x: Float[Array, "B T N W"],
    schedule: TileSchedule,
    tile_columns: int,
) -> Float[Array, "B N blocks W"]:
    """Sum the rows of x over the queries that each block of keys skips.

    Under a causal mask, queries before the first visited tile cannot attend to the keys of the
    block and add nothing to the sum.
    """
    is_zero: Any = operands.is_zero_beyond_radius
    before = not plan.window.is_causal
    return sum_skipped_rows(x, schedule, is_zero, tile_columns, before=before, after=True)


def sum_skipped_rows(
    x: Float[Array, "B L K W"],
    schedule: TileSchedule,
    is_zero_beyond_radius: Bool[Array, "B N"],
    tile_columns: int,
    *,
    before: bool,
    after: bool,
) -> Float[Array, "B N blocks W"]:
    """Sum the rows of x over the tiles that each block skips.

    Args:
      x: Vectors of width W, one for each key if the blocks are blocks of queries, or one for each
        query if the blocks are blocks of keys. Keys may have fewer heads K than queries.
      schedule: Tiles that each block visits.
      is_zero_beyond_radius: True for heads that skip tiles. The sums of all other heads are 0.
      tile_columns: Number of rows of x in a tile.
      before: If True, include the tiles before the first visited tile.
      after: If True, include the tiles after the last visited tile.
    """
    group_size = schedule.start.shape[1] // x.shape[2]
    prefix_sums = jnp.repeat(_prefix_sums(x, tile_columns), group_size, axis=1)

    def sum_until(tile: Array) -> Array:
        return jnp.take_along_axis(prefix_sums, tile[..., None], axis=2)

    total = jnp.zeros((*schedule.start.shape, x.shape[-1]), jnp.float32)
    if before:
        total += sum_until(schedule.start)
    if after:
        total += prefix_sums[:, :, -1:] - sum_until(schedule.end)
    return jnp.where(is_zero_beyond_radius[:, :, None, None], total, 0)


def _prefix_sums(x: Float[Array, "B L N W"], tile_columns: int) -> Float[Array, "B N tiles W"]:
    """Return, for each tile of `tile_columns` rows, the sum of all rows before the tile.

    The last entry of the result follows the entries of all tiles and is the sum of all rows.
    """
    length = x.shape[1]
    padded = jnp.pad(x.astype(jnp.float32), ((0, 0), (0, -length % tile_columns), (0, 0), (0, 0)))
    tiles = padded.reshape(x.shape[0], -1, tile_columns, *x.shape[2:]).sum(axis=2)
    sums = jnp.pad(jnp.cumsum(tiles, axis=1), ((0, 0), (1, 0), (0, 0), (0, 0)))
    return jnp.moveaxis(sums, 1, 2)


def _zero_masked_keys(operands: Operands, x: Float[Array, "B S K W"]) -> Float[Array, "B S _ W"]:
    """Set the rows of padded and masked keys to 0.

    The result has N heads if the query heads have different key masks, otherwise as many as x.
    """
    if operands.key_mask is None:
        is_key = jnp.arange(x.shape[1])[None, :] < operands.key_lengths[:, None]
        return jnp.where(is_key[:, :, None, None], x, 0)
    is_visible = jnp.swapaxes(operands.key_mask, 1, 2)[..., None]
    if is_visible.shape[2] > x.shape[2]:
        x = jnp.repeat(x, is_visible.shape[2] // x.shape[2], axis=2)
    return jnp.where(is_visible, x, 0)


def _as_matrix(
    vector: Float[Array, "B N _"], rows: Float[Array, "B L K W"]
) -> Float[Array, "B L N 1"]:
    """Rearrange (B, N, padded length) to (B, L, N, 1), where L is the length of `rows`."""
    return jnp.moveaxis(vector[:, :, : rows.shape[1]], 1, 2)[..., None]
