"""Precomputed sums that replace the tiles that a kernel skips.

A head may treat all scores beyond its radius as 0 (see `saturation`). Each key beyond the radius
then has the weight 2^-z_i for query i, where z_i is the logsumexp of query i to base 2. The kernel
`query_gradient` skips tiles beyond the radius, because they add 0 to the gradients of queries and
coefficients. Each other kernel skips these tiles if it can add sums over the queries i or the keys
j of the skipped tiles:

    kernel            sums
    forward           Σ_j V_j, and the number of keys     for the output O_i
    key_gradient      Σ_i 2^-z_i dO_i                     for dV_j; the tiles add 0 to dK_j
    received          Σ_i 2^-z_i
    attention_given   Σ_j g_j

V are the values of the keys, and dO is the cotangent of the attention output O. g_j is the
cotangent of the attention that key j receives. The sums are differences of prefix sums over all
tiles.

The scores beyond the radius may also be constants G∞ other than 0: one for keys before the query,
and one for keys after it. The sum of each side is then multiplied by `Operands.far_weights`, 2^G∞.
In this case, the skipped tiles have a gradient: that of G∞ (see `SkippedTiles.far_bias_gradient`).
If the scores beyond the radius are a bias that is not constant, no kernel skips these tiles, not
even `query_gradient`, which computes the gradient of the bias.

The sums must contain visible keys only. Lengths, a mask of keys and a causal mask allow this. A
mask of pairs, segments and windows do not. With dropout, `forward` and `key_gradient` have no such
sums either, because each query drops different keys. If a kernel has no such sums, it visits the
tiles as ZERO tiles (see `tile_runs`).
"""

import functools
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from distattn_jax.attention.fused.kernels import Plan
from distattn_jax.attention.fused.operands import BackwardOperands, Operands
from distattn_jax.attention.fused.tile_runs import TileSchedule
from distattn_jax.attention.fused.visible_columns import Window

Sums = dict[str, Array]
BEFORE, AFTER = 0, 1  # sides of a query, as indices of `Operands.far_weights`


def has_sums(plan: Plan, operands: Operands, *, drops_weights: bool) -> bool:
    """Return True if a kernel skips the tiles beyond the radius and adds precomputed sums instead.

    Return False if no head treats its scores beyond the radius as constant.

    Args:
      drops_weights: True if the kernel sums weights after dropout. This has no effect if the call
        has no dropout.
    """
    has_zeros = operands.is_zero_beyond_radius is not None
    has_constants = operands.bias_table is None or operands.far_weights is not None
    is_free = not is_restricted(plan, operands, drops_weights=drops_weights)
    return has_zeros and has_constants and is_free


def visits_bias(plan: Plan, operands: Operands) -> bool:
    """Return True if kernels visit the tiles beyond the radius because their scores are a bias."""
    has_bias = operands.bias_table is not None and operands.is_zero_beyond_radius is not None
    return has_bias and not has_sums(plan, operands, drops_weights=True)


def is_restricted(plan: Plan, operands: Operands, *, drops_weights: bool) -> bool:
    """Return True if a mask, segments, a window or dropout leave no sums over skipped tiles."""
    return (
        operands.mask is not None
        or operands.query_segments is not None
        or plan.window not in (Window(), Window(right=0))
        or (drops_weights and operands.dropout_words is not None)
    )


class SkippedTiles(NamedTuple):
    """Sums over the tiles that the blocks of a kernel skip, because their scores are treated as 0.

    Each method `sums_for_...` returns a dict from name to a sum of shape (B, N, blocks, W). The
    kernel of that name adds the sums to its results. The dict is empty if the kernel skips no
    tiles, or needs no sums.

    Attributes:
      plan: Static options of the call.
      operands: Arrays of the call.
      schedule: Tiles that each block visits. A block skips the tiles before the first and after the
        last of them.
      tile_columns: Number of columns of a tile. The columns are keys if the block consists of
        queries, and queries if it consists of keys.
    """

    plan: Plan
    operands: Operands
    schedule: TileSchedule
    tile_columns: int

    def sums_for_forward(self) -> Sums:
        """Return {"value_sum": ..., "key_count": ...} for each block of queries.

        These are the sum of the values of the skipped keys, shape (B, N, blocks, E), and the number
        of these keys, shape (B, N, blocks, 1). Each key counts with its weight of
        `Operands.far_weights`. The dict is empty if there are no sums.
        """
        if not has_sums(self.plan, self.operands, drops_weights=True):
            return {}
        return {"value_sum": self._sum_keys(self.operands.value), "key_count": self._count_keys()}

    def sums_for_key_gradient(
        self, logsumexp: Float[Array, "B N _"], values_cotangent: Float[Array, "B T N E"]
    ) -> Sums:
        """Return {"value": Σ_i 2^-z_i dO_i} for each block of keys, shape (B, N, blocks, E).

        This is the contribution of the skipped queries i to the gradient of the values of the keys.
        The dict is empty if there are no sums.

        Args:
          logsumexp: Logsumexp z_i of each query, to base 2.
          values_cotangent: Cotangent dO of the attention output.
        """
        if not has_sums(self.plan, self.operands, drops_weights=True):
            return {}
        rows = values_cotangent * _as_matrix(jnp.exp2(-logsumexp), values_cotangent)
        return {"value": self._sum_queries(rows)}

    def sums_for_received(self, logsumexp: Float[Array, "B N _"]) -> Sums:
        """Return {"received": Σ_i 2^-z_i} for each block of keys, shape (B, N, blocks, 1).

        This is the attention that each key of the block receives from the skipped queries i. The
        dict is empty if there are no sums.

        Args:
          logsumexp: Logsumexp z_i of each query, to base 2.
        """
        if not has_sums(self.plan, self.operands, drops_weights=False):
            return {}
        rows = _as_matrix(jnp.exp2(-logsumexp), self.operands.query)
        return {"received": self._sum_queries(rows)}

    def sums_for_attention_given(self, received_cotangent: Float[Array, "B N _"]) -> Sums:
        """Return {"attention_given": Σ_j g_j} for each block of queries, shape (B, N, blocks, 1).

        The sum is over the skipped keys j. The dict is empty if there are no sums.

        Args:
          received_cotangent: Cotangent g_j of the attention that each key receives.
        """
        if not has_sums(self.plan, self.operands, drops_weights=False):
            return {}
        return {
            "attention_given": self._sum_keys(_as_matrix(received_cotangent, self.operands.key))
        }

    def far_bias_gradient(
        self, backward: BackwardOperands, block_rows: int
    ) -> Float[Array, "B N 2"]:
        """Return the gradient of G∞ for keys before and after the query, from the skipped tiles.

        It is the sum of A_ij (dO_i · V_j + g_j - D_i) over the skipped pairs of a query i and a key
        j: see `kernels`. All keys that a block of queries skips on one side have the same weight
        for a query, so that only sums over queries and sums over keys are needed.

        Args:
          backward: Inputs of the gradient kernels, with -D.
          block_rows: Number of queries of a block of `schedule`.
        """
        operands = self.operands
        assert backward.negative_delta is not None, "the kernel `query_gradient` has computed -D"
        scale = _as_matrix(jnp.exp2(-backward.logsumexp), operands.query)
        negative_delta = _as_matrix(backward.negative_delta, operands.query)
        cotangent = backward.values_cotangent.astype(jnp.float32)
        per_query = jnp.concatenate((cotangent, negative_delta, jnp.ones_like(scale)), axis=-1)
        per_query = self._sum_blocks(per_query * scale, block_rows)
        received = backward.received_cotangent
        value = operands.value.astype(jnp.float32)
        if received is None:
            g = jnp.zeros_like(value[..., :1])
        else:
            g = _as_matrix(received, operands.key)
            value = jnp.repeat(value, g.shape[2] // value.shape[2], axis=2)
        per_key = jnp.concatenate((value, jnp.ones_like(g), g), axis=-1)
        sides = [
            jnp.einsum("bnkw,bnkw->bn", per_query, self._sum_keys(per_key, sides=(side,)))
            for side in (BEFORE, AFTER)
        ]
        return jnp.stack(sides, axis=-1)

    def _sum_blocks(
        self, x: Float[Array, "B T N W"], block_rows: int
    ) -> Float[Array, "B N blocks W"]:
        """Return the sum of the vectors of each block of queries."""
        blocks = self.schedule.start.shape[2]
        padded = jnp.pad(x, ((0, 0), (0, blocks * block_rows - x.shape[1]), (0, 0), (0, 0)))
        batch, _, heads, width = x.shape
        sums = padded.reshape(batch, blocks, block_rows, heads, width).sum(axis=2)
        return jnp.swapaxes(sums, 1, 2)

    def _sum_keys(
        self, x: Float[Array, "B S K W"], sides: tuple[int, ...] = (BEFORE, AFTER)
    ) -> Float[Array, "B N blocks W"]:
        """Return, for each block of queries, the sum of x[:, j] over the visible keys j it skips.

        Under a causal mask, keys after the last visited tile are masked and add nothing to the sum.
        Only the keys on the given sides of the queries are included.
        """
        x = _zero_masked_keys(self.operands, x)
        is_causal = self.plan.window.is_causal
        return self._sum_rows(
            x, before=BEFORE in sides, after=AFTER in sides and not is_causal, is_transposed=False
        )

    def _sum_queries(self, x: Float[Array, "B T N W"]) -> Float[Array, "B N blocks W"]:
        """Return, for each block of keys, the sum of x[:, i] over the queries i that it skips.

        Under a causal mask, queries before the first visited tile cannot attend to the keys of the
        block and add nothing to the sum.
        """
        before = not self.plan.window.is_causal
        return self._sum_rows(x, before=before, after=True, is_transposed=True)

    def _sum_rows(
        self, x: Array, *, before: bool, after: bool, is_transposed: bool
    ) -> Float[Array, "B N blocks W"]:
        """Return the sum of x over the skipped columns, times the weights of their sides."""
        is_zero: Any = self.operands.is_zero_beyond_radius
        sum_rows = functools.partial(sum_skipped_rows, x, self.schedule, is_zero, self.tile_columns)
        weights = self.operands.far_weights
        if weights is None:
            return sum_rows(before=before, after=after)
        if is_transposed:  # A query before a key sees this key after itself.
            weights = weights[:, :, ::-1]
        first, second = weights[:, :, BEFORE, None, None], weights[:, :, AFTER, None, None]
        return first * sum_rows(before=before, after=False) + second * sum_rows(
            before=False, after=after
        )

    def _count_keys(self) -> Float[Array, "B N blocks 1"]:
        """Return the number of visible keys that each block of queries skips."""
        if self.operands.key_mask is not None or self.operands.far_weights is not None:
            return self._sum_keys(jnp.ones_like(self.operands.value[..., :1]))
        is_zero: Any = self.operands.is_zero_beyond_radius
        keys = self.operands.key_lengths[:, None, None]
        count = jnp.minimum(self.schedule.start * self.tile_columns, keys)
        if not self.plan.window.is_causal:
            count += keys - jnp.minimum(self.schedule.end * self.tile_columns, keys)
        return jnp.where(is_zero[:, :, None], count, 0).astype(jnp.float32)[..., None]


def sum_skipped_rows(
    x: Float[Array, "B L K W"],
    schedule: TileSchedule,
    is_zero_beyond_radius: Bool[Array, "B N"],
    tile_columns: int,
    *,
    before: bool,
    after: bool,
) -> Float[Array, "B N blocks W"]:
    """Sum the vectors of the columns of the score map that each block and head skips.

    Args:
      x: One vector of width W for each column of the score map. The columns are keys if the blocks
        consist of queries, and queries if the blocks consist of keys. K is N or a divisor of N.
      schedule: Tiles that each block visits.
      is_zero_beyond_radius: True for heads that skip tiles. The sums of all other heads are 0.
      tile_columns: Number of columns of a tile.
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
    """Return, for each tile of `tile_columns` vectors, the sum of all vectors of x before the tile.

    The axis `tiles` has one more entry at the end: the sum of all vectors.
    """
    length = x.shape[1]
    padded = jnp.pad(x.astype(jnp.float32), ((0, 0), (0, -length % tile_columns), (0, 0), (0, 0)))
    tiles = padded.reshape(x.shape[0], -1, tile_columns, *x.shape[2:]).sum(axis=2)
    sums = jnp.pad(jnp.cumsum(tiles, axis=1), ((0, 0), (1, 0), (0, 0), (0, 0)))
    return jnp.moveaxis(sums, 1, 2)


def _zero_masked_keys(operands: Operands, x: Float[Array, "B S K W"]) -> Float[Array, "B S _ W"]:
    """Return a copy of x that is 0 for padded and masked keys.

    If query heads have different key masks, the result has N heads. Otherwise, it has as many heads
    as x.
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
    """Rearrange `vector` to (B, L, N, 1), and remove its padding.

    Args:
      vector: One number for each query or key, with padding at the end.
      rows: Array whose axis 1 has the length L without the padding.
    """
    return jnp.moveaxis(vector[:, :, : rows.shape[1]], 1, 2)[..., None]
