"""Schedules of the kernels of one attention call, for all examples and heads."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from distattn_jax.attention.fused import skipped_tiles
from distattn_jax.attention.fused.kernels import Plan
from distattn_jax.attention.fused.operands import Operands
from distattn_jax.attention.fused.runs import Schedule, join_parts
from distattn_jax.attention.fused.schedule import (
    ScheduleInputs,
    schedule_diagonal_blocks,
    schedule_key_blocks,
    schedule_query_blocks,
)
from distattn_jax.attention.fused.visible_columns import Window


class CallSchedules:
    """Schedules of the kernels of one attention call."""

    def __init__(self, plan: Plan, operands: Operands):
        """Prepare the inputs of the schedules from the static options and the arrays of a call.

        Args:
          plan: Static options of the call.
          operands: Arrays of the call.
        """
        self.plan, self.operands = plan, operands
        self.inputs = ScheduleInputs(
            query_lengths=operands.query_lengths,
            key_lengths=operands.key_lengths,
            offset=operands.offset,
            window=plan.window,
            radius=operands.radius,
            is_zero_beyond_radius=operands.is_zero_beyond_radius,
            key_mask=operands.key_mask,
            query_segments=operands.query_segments,
            key_segments=operands.key_segments,
            has_mask=operands.mask is not None,
            full_keys=None if plan.has_padded_keys else operands.key.shape[1],
        )

    def query_blocks(self, block_rows: int, tile_columns: int, **arguments: Any) -> Schedule:
        """Return the tiles of keys that each block of queries visits.

        Args:
          block_rows: Number of queries in a block.
          tile_columns: Number of keys in a tile.
          **arguments: Further arguments of `_schedule`.
        """
        return self._schedule(
            schedule_query_blocks, self.operands.query, block_rows, tile_columns, **arguments
        )

    def key_blocks(self, block_rows: int, tile_columns: int, **arguments: Any) -> Schedule:
        """Return the tiles of queries that each block of keys visits.

        Args:
          block_rows: Number of keys in a block.
          tile_columns: Number of queries in a tile.
          **arguments: Further arguments of `_schedule`.
        """
        return self._schedule(
            schedule_key_blocks, self.operands.key, block_rows, tile_columns, **arguments
        )

    def diagonal_blocks(
        self, block_rows: int, tile_columns: int, length: int, origin: int
    ) -> Schedule:
        """Return the tiles that each block of diagonals visits.

        Args:
          block_rows: Number of diagonals in a block.
          tile_columns: Number of columns of a tile.
          length: Number of diagonals.
          origin: Index of the diagonal of query 0 and key 0.
        """
        blocks = length // block_rows
        return self._broadcast(
            schedule_diagonal_blocks(self.inputs, blocks, block_rows, tile_columns, origin)
        )

    def _schedule(
        self,
        make_schedule: Callable[..., Schedule],
        rows: Array,
        block_rows: int,
        tile_columns: int,
        *,
        drops_weights: bool = False,
        needs_zero_tiles: bool = True,
        parts: int = 1,
        uses_small_scores: bool = False,
    ) -> Schedule:
        """Return a schedule for all examples and heads.

        Args:
          make_schedule: `schedule_query_blocks` or `schedule_key_blocks`.
          rows: Query or key, the array that is divided into blocks.
          block_rows: Number of rows in a block.
          tile_columns: Number of columns in a tile.
          drops_weights: True if dropout, if there is any, applies to the weights that the kernel
            sums.
          needs_zero_tiles: False if tiles whose scores are treated as 0 change no result.
          parts: Number of parts of a block that may visit different tiles.
          uses_small_scores: True if heads with small scores have kinds of tiles of their own.
        """
        inputs = self.inputs
        if uses_small_scores:
            inputs = inputs._replace(has_small_scores=self.operands.has_small_scores)
        parts = parts if self._may_visit_different_tiles() else 1
        has_sums = skipped_tiles.has_sums(self.plan, self.operands, drops_weights=drops_weights)
        has_zeros = self.operands.is_zero_beyond_radius is not None
        result = make_schedule(
            inputs,
            rows.shape[1],
            block_rows // parts,
            tile_columns,
            distinctions=self.plan.scoring.distinctions,
            visits_zero_tiles=needs_zero_tiles and has_zeros and not has_sums,
            # Neighbouring tiles share position vectors, which are copied once.
            keeps_column_order=self.plan.scoring.has_positions,
        )
        return self._broadcast(join_parts(result, parts) if parts > 1 else result)

    def _may_visit_different_tiles(self) -> bool:
        """Return True if parts of a block may need different tiles, in the order of columns."""
        window, operands = self.plan.window, self.operands
        differs = operands.radius is not None or window != Window()
        may_leave_column_order = operands.mask is not None or operands.query_segments is not None
        return differs and not may_leave_column_order and not self.plan.scoring.has_positions

    def _broadcast(self, schedule: Schedule) -> Schedule:
        """Broadcast a schedule to all examples and heads."""
        batch, _, heads, _ = self.operands.query.shape
        runs, start, end = (
            jnp.broadcast_to(x, (batch, heads, *x.shape[2:])) for x in schedule[1:4]
        )
        return schedule._replace(runs=runs, start=start, end=end)
