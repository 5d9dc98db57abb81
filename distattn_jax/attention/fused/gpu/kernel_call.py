"""Attention call on a Hopper GPU: the inputs that its kernels share, and how a kernel is run."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from distattn_jax.attention.fused.call_arrays import collect_scalars, name_tables
from distattn_jax.attention.fused.call_schedules import CallSchedules
from distattn_jax.attention.fused.gpu.kernel_arrays import (
    KernelArrays,
    pad_moving_rows,
    tabulate_function,
)
from distattn_jax.attention.fused.gpu.kernel_body import (
    KernelBody,
    KernelInputs,
    count_leading_rows,
)
from distattn_jax.attention.fused.gpu.kernel_types import list_types
from distattn_jax.attention.fused.gpu.relation_arrays import RelationArrays
from distattn_jax.attention.fused.gpu.shared_memory import allocate, collect_types, count_bytes
from distattn_jax.attention.fused.gpu.tile_loop import run_tile_loop
from distattn_jax.attention.fused.gpu.tile_selection import select_tile_configs
from distattn_jax.attention.fused.kernels import Plan
from distattn_jax.attention.fused.operands import Operands
from distattn_jax.attention.fused.runs import Schedule


class KernelCall:
    """Plan and arrays of one attention call, and what all of its kernels have in common."""

    def __init__(self, plan: Plan, operands: Operands):
        self.plan, self.operands = plan, operands
        self.configs = select_tile_configs(plan, operands)
        self.arrays = KernelArrays(operands, self.configs.vector_multiple)
        self.relations = RelationArrays(plan, operands, self.configs.vector_multiple)
        self.function_table = tabulate_function(plan, operands)
        self.schedules = CallSchedules(plan, operands)
        self.scalars = collect_scalars(plan, operands)
        self.position_query = {}
        if operands.position_query is not None:
            self.position_query["position_query"] = operands.position_query

    def fill_unwritten(
        self, vector: Float[Array, "B N _"], written: int, number: float
    ) -> Float[Array, "B N _"]:
        """Return the vector with `number` in entries that are not written, if a kernel reads them.

        The padded vector may be longer than all blocks of the kernel that wrote it. Kernels whose
        columns are queries read at most up to the end of their last tile.

        Args:
          vector: Output of a kernel whose rows are queries.
          written: Number of entries that the kernel has written.
          number: Number that replaces the other entries.
        """
        queries = self.operands.query.shape[1]
        if all(queries + -queries % config.columns <= written for config in self.configs):
            return vector
        is_written = jnp.arange(vector.shape[-1]) < written
        return jnp.where(is_written[None, None, :], vector, number)

    def run(
        self,
        name: str,
        body: KernelBody,
        schedule: Schedule,
        *,
        resident: dict[str, Array],
        streamed: dict[str, Array],
        gathered: dict[str, Array],
        skipped_sums: dict[str, Array],
        output_types: dict[str, jax.ShapeDtypeStruct],
        moving: dict[str, Array] | None = None,
        scalars: dict[str, Array] | None = None,
        is_transposed: bool = False,
    ) -> dict[str, Array]:
        """Run one kernel and return its outputs by name.

        Args:
          name: Name of the kernel, which is also the name of a field of `TileConfigs`.
          body: Computation of the kernel.
          schedule: Tiles that each block of rows visits.
          resident: Matrices and vectors that belong to the rows of the score map.
          streamed: Matrices and vectors that belong to the columns of the score map.
          gathered: Matrices of which the kernel reads single entries.
          skipped_sums: Sums over the tiles that are skipped, which the kernel adds to its results.
          output_types: Shapes and dtypes of the outputs.
          moving: Matrices and vectors that belong to rows which move with the columns, in a kernel
            whose blocks are blocks of diagonals. None in all other kernels.
          scalars: Numbers of each example and head that no other kernel needs.
          is_transposed: True if the rows of the score map are keys.
        """
        tables = {**name_tables(self.plan, self.operands, name), **self.function_table}
        if moving is None and self.operands.positions is not None:
            tables["positions"] = self.operands.positions
        config = getattr(self.configs, name)
        row_masks, column_masks, entry_masks = self.arrays.masks(is_transposed=is_transposed)
        if moving is not None:
            moving = {
                name: pad_moving_rows(x, config) for name, x in {**moving, **row_masks}.items()
            }
            entry_masks = {
                name: jnp.pad(
                    x,
                    ((0, 0), (0, 0), (count_leading_rows(config), config.block_rows), (0, 0)),
                )
                for name, x in entry_masks.items()
            }
            row_masks = {}
        inputs = KernelInputs(
            resident={**resident, **row_masks},
            streamed={**streamed, **column_masks},
            diagonals={
                name: self.arrays.arrange_by_diagonal(table, is_transposed=is_transposed)
                for name, table in tables.items()
            },
            moving={} if moving is None else moving,
            entries=entry_masks,
            scalars={**self.scalars, **(scalars or {})},
            runs=schedule.runs,
            skipped_sums=skipped_sums,
            gathered=gathered,
        )
        types = collect_types(body, inputs, output_types)
        expected = list_types(name, self.plan, self.operands)
        size, expected_size = (count_bytes(allocate(x, config, 1)) for x in (types, expected))
        assert size == expected_size, f"`list_types` must list the arrays of the kernel {name}"
        columns = self.operands.query if is_transposed else self.operands.key
        origin = self.arrays.padded_length(columns.shape[1])
        return run_tile_loop(body, inputs, output_types, schedule, config, name, origin)
