"""Loop over the tiles of a score map, without instructions that only Hopper GPUs have.

The module `fused.gpu.tile_loop` describes the inputs of a kernel. Here, a thread block is one
warpgroup. All of its threads copy and compute:

    wait until the inputs of tile i are in shared memory
    start to copy the inputs of tile i + stages - 1
    compute tile i

A ring buffer has `TileConfig.stages` slots. The copies of a tile overwrite the inputs of tile
i - 1, which all threads have read when they have passed the wait for tile i. Several thread blocks
share a processor, so that one multiplies while another waits or computes exponentials.

Each number of an output is computed by one thread block, tile after tile. Hence there are no atomic
operations, and the results are deterministic.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax

from distattn_jax.attention.fused import varying
from distattn_jax.attention.fused.gpu import diagonal_sums, mosaic, registers, skew
from distattn_jax.attention.fused.gpu.block_order import BlockOrder
from distattn_jax.attention.fused.gpu.kernel_body import (
    TABLE_PADDING,
    GridIndex,
    KernelBody,
    KernelInputs,
    Tile,
)
from distattn_jax.attention.fused.gpu.portable import copies
from distattn_jax.attention.fused.gpu.portable.products import MmaProducts
from distattn_jax.attention.fused.gpu.position_tiles import SKEW, UNSKEW
from distattn_jax.attention.fused.gpu.shared_memory import (
    Kernel,
    KernelTypes,
    SharedMemory,
    collect_types,
    make_buffer,
    replaced_input,
)
from distattn_jax.attention.fused.gpu.tile_access import (
    locate_sums,
    make_context,
    read_numbers,
    read_share,
)
from distattn_jax.attention.fused.gpu.tile_configs import TileConfig
from distattn_jax.attention.fused.gpu.tile_copies import read_run_of_part
from distattn_jax.attention.fused.kernel_calls import KernelCall
from distattn_jax.attention.fused.tile_runs import TileKind


def allocate(types: KernelTypes, config: TileConfig, row_slots: int = 1) -> SharedMemory:
    """Return the types of all shared-memory buffers of a thread block. There are no barriers.

    Args:
      types: Types of the arrays that need buffers.
      config: Tile sizes and number of pipeline stages.
      row_slots: Number of blocks of rows that are in shared memory at the same time, always 1.
    """
    assert row_slots == config.warpgroups == 1, "a thread block has one warpgroup and one block"
    make_ring = functools.partial(make_buffer, config.stages)
    ring = {name: make_ring(config.columns, x) for name, x in types.streamed.items()}
    ring |= {name: make_ring(config.rows, x) for name, x in types.moving.items()}
    for name, array in types.diagonals.items():
        if len(array.shape) == 3:
            ring[name] = make_ring(config.rows + config.columns, array)
        else:  # Each tile needs two blocks, of which it shares one with the previous tile.
            assert config.rows == config.columns, "position vectors need square tiles"
            ring[name] = make_buffer(config.stages + 1, config.rows, array)
    for name, array in types.entries.items():
        ring[name] = mosaic.plain_scratch((config.stages, *config.tile_shape), array.dtype)
    return SharedMemory(
        resident={name: make_buffer(1, config.rows, x) for name, x in types.resident.items()},
        arrived={},
        ring=ring,
        full=copies.make_barriers(),
        free={},
        outputs={
            name: make_buffer(1, config.rows, x)
            for name, x in types.outputs.items()
            if len(x.shape) == 4 and replaced_input(name, types) is None
        },
        operand_scratch=None,
        scratch={
            name: mosaic.plain_scratch((1, *shape), kind)
            for name, (shape, kind) in _list_scratch(types, config).items()
        },
        tables={
            name: make_buffer(1, x.shape[1] - TABLE_PADDING, x) for name, x in types.tables.items()
        },
        tables_full={},
        tables_free={},
    )


def _list_scratch(types: KernelTypes, config: TileConfig) -> dict[str, Any]:
    """Return the shape and dtype of each buffer of `KernelBody.scratch`.

    If `TileConfig.shares_scratch`, the buffers for position vectors are those of wide heads.
    """
    buffers = dict(types.scratch)
    if config.shares_scratch and SKEW in buffers:
        has_query_rows = "query" in types.resident
        buffers[SKEW] = (skew.SKEW_ENTRIES // (1 + has_query_rows),), "float32"
        buffers.pop(UNSKEW, None)
    return buffers


def run_tile_loop(
    call: KernelCall,
    body: KernelBody,
    inputs: KernelInputs,
    output_types: dict[str, jax.ShapeDtypeStruct],
    order: BlockOrder,
    origin: int,
) -> dict[str, jax.Array]:
    """Run a kernel over all blocks of all examples and heads. Return a dict from name to output.

    The arguments are those of `fused.gpu.tile_loop.run_tile_loop`.
    """
    config = order.config

    def kernel(refs: KernelInputs, outputs: dict[str, Any], memory: SharedMemory):
        shared = Kernel(call, body, config, origin, refs, outputs, memory)
        thread_block = lax.axis_index("thread_block")
        own_order = read_share(order, refs, thread_block)
        for ref in locate_sums(shared, jnp.int32(0)).values():
            diagonal_sums.fill_with_zeros(ref)

        def compute(i, _):
            grid_index = own_order.locate(thread_block, i)
            _write_outputs(shared, grid_index, _compute_tiles(shared, grid_index))

        if order.is_loop:
            lax.fori_loop(0, own_order.count_rounds(thread_block), compute, None)
        else:
            compute(0, None)

    kernel.__name__ = call.name  # in profiles
    run = plgpu.kernel(
        kernel,
        out_type=output_types,
        scratch_types=(allocate(collect_types(body, inputs, output_types), config),),
        grid=(order.thread_blocks,),
        grid_names=("thread_block",),
        **mosaic.kernel_options(),
    )
    return varying.mark_varying(run(inputs), varying.varying_axes(inputs))


def _compute_tiles(kernel: Kernel, grid_index: GridIndex) -> dict[str, jax.Array]:
    """Compute all tiles of a block of rows, and return a dict from name to the rows of an output.

    Args:
      grid_index: Example, head and block of rows.
    """
    call, body, config, _, inputs, _, memory = kernel
    schedule, row = call.schedule, grid_index.block * config.rows
    mosaic.wait_for_threads()  # The previous block has been written.
    for name, ref in inputs.resident.items():
        copies.copy_rows(ref, memory.resident[name].at[0], grid_index, row, memory.full)
    for name, ref in inputs.tables.items():
        copies.copy_rows(ref, memory.tables[name].at[0], grid_index, 0, memory.full)
    copies.commit()
    numbers = read_numbers(kernel, jnp.int32(0), grid_index)
    first, last = numbers.bounds
    if schedule.is_in_column_order:
        _start_first_copies(kernel, grid_index, row, first, last)
        copies.wait(config.stages - 1)
    else:
        copies.wait(0)
    context = make_context(
        kernel, grid_index, jnp.int32(0), numbers.scalars, 0, row, 0, MmaProducts()
    )

    def visit(start, end, limit, kind, state):
        """Compute the tiles from `start` to `end` - 1, while tiles before `limit` are copied."""

        def step(index, state):
            _copy_ahead(kernel, grid_index, row, index, limit)
            return body.step(context, _make_tile(kernel, row, index, kind), state)

        return lax.fori_loop(start, end, step, state)

    def visit_run(i, state, kind):
        start, end = read_run_of_part(kernel, grid_index, jnp.int32(0), i)
        mosaic.wait_for_threads()  # All threads have read the last tile of the previous run.
        _start_first_copies(kernel, grid_index, row, start, end)
        return visit(start, end, end, kind, state)

    state = body.initialize(context)
    ends = [*numbers.starts[1:], numbers.end]
    for (kind, runs), start, end in zip(schedule.loops, numbers.starts, ends, strict=True):
        if schedule.is_in_column_order:  # A loop ends where the next begins.
            state = visit(start, end, last, kind, state)
        elif len(runs) == 1:
            state = visit_run(runs.start, state, kind)
        else:  # The code of `step` exists once in a loop over the runs.
            state = lax.fori_loop(
                runs.start, runs.stop, functools.partial(visit_run, kind=kind), state
            )
    return body.finish(context, state)


def _start_first_copies(
    kernel: Kernel, grid_index: GridIndex, row: jax.Array, first: jax.Array, end: jax.Array
) -> None:
    """Start to copy the inputs of the first `TileConfig.stages` - 1 tiles from `first` on.

    Args:
      grid_index: Example, head and block of rows.
      row: First row of the block.
      first: Index of the first tile.
      end: Index of the last tile that may be copied, plus 1.
    """
    config, origin, refs, memory = kernel.config, kernel.origin, kernel.inputs, kernel.memory

    @pl.when(first < end)
    def _():
        # Tile `first` - 1 would have copied the upper half of the diagonals of tile `first`.
        for name, ref in refs.diagonals.items():
            if len(ref.shape) == 4:
                buffer = memory.ring[name].at[_find_upper_block(config, first)]
                start = origin + row - first * config.columns
                copies.copy_rows(ref, buffer, grid_index, start, memory.full)

    for i in range(config.stages - 1):
        _copy_tile(kernel, grid_index, row, first + i, end)


def _copy_ahead(
    kernel: Kernel, grid_index: GridIndex, row: jax.Array, index: jax.Array, end: jax.Array
) -> None:
    """Wait for the inputs of tile `index`, and start to copy those of a later tile.

    The arguments are those of `_start_first_copies`.
    """
    stages = kernel.config.stages
    if stages > 1:
        copies.wait(stages - 2)
        _copy_tile(kernel, grid_index, row, index + stages - 1, end)
    else:
        mosaic.wait_for_threads()  # All threads have read the previous tile.
        _copy_tile(kernel, grid_index, row, index, end)
        copies.wait(0)


def _copy_tile(
    kernel: Kernel, grid_index: GridIndex, row: jax.Array, index: jax.Array, end: jax.Array
) -> None:
    """Start to copy the inputs of tile `index`, if it is smaller than `end`.

    The lower half of the diagonals of a tile is the upper half of the diagonals of the next tile.
    Only the lower half is copied.
    """
    config, origin, refs, memory = kernel.config, kernel.origin, kernel.inputs, kernel.memory
    slot, column = lax.rem(index, config.stages), index * config.columns
    first_row = row + column - origin if refs.moving else row
    copy = functools.partial(copies.copy_rows, grid_index=grid_index, barriers=memory.full)

    @pl.when(index < end)
    def _():
        for name, ref in refs.streamed.items():
            copy(ref, memory.ring[name].at[slot], start=column)
        for name, ref in refs.moving.items():
            copy(ref, memory.ring[name].at[slot], start=first_row)
        for name, ref in refs.entries.items():
            copies.copy_entries(
                ref, memory.ring[name].at[slot], grid_index, first_row, column, memory.full
            )
        for name, ref in refs.diagonals.items():
            start = origin + row - column - config.columns
            block = slot if len(ref.shape) == 3 else _find_lower_block(config, index)
            copy(ref, memory.ring[name].at[block], start=start)

    copies.commit()


def _find_lower_block(config: TileConfig, index: jax.Array) -> jax.Array:
    """Return the slot of the lower half of the diagonals of a tile in its ring buffer."""
    return lax.rem(index + 1, config.stages + 1)


def _find_upper_block(config: TileConfig, index: jax.Array) -> jax.Array:
    """Return the slot of the upper half of the diagonals of a tile in its ring buffer."""
    return lax.rem(index, config.stages + 1)


def _make_tile(kernel: Kernel, row: jax.Array, index: jax.Array, kind: TileKind) -> Tile:
    """Return a tile whose inputs are in shared memory.

    Args:
      row: First row of the block.
      index: Index of the tile.
      kind: Properties of the tile that the schedule guarantees.
    """
    config, ring, origin = kernel.config, kernel.memory.ring, kernel.origin
    slot, column = lax.rem(index, config.stages), index * config.columns
    row = row + column - origin if kernel.inputs.moving else row

    def get(name: str) -> Any:
        return ring[name].at[slot]

    def get_diagonals(name: str) -> tuple[Any, Any]:
        blocks = _find_lower_block(config, index), _find_upper_block(config, index)
        lower, upper = (ring[name].at[block] for block in blocks)
        return lower, upper

    def load(read: Callable) -> Callable:
        return lambda name: read(get(name))

    return Tile(
        row=row,
        column=column,
        diagonal=origin + row - column - config.columns,
        kind=kind,
        shape=config.tile_shape,
        wait=get,
        release=_do_nothing,
        load_vector=load(mosaic.load_per_column),
        load_row_vector=load(mosaic.load_per_row),
        load_diagonals=load(lambda ref: registers.load_diagonals(ref, config.tile_shape)),
        wait_diagonals=get_diagonals,
        load_entries=load(mosaic.load_entries),
        skip=_do_nothing,
        ring_names=ring,
    )


def _do_nothing(name: str) -> None:
    """Release nothing: a slot is free when all threads have passed the wait of the next tile."""


def _write_outputs(kernel: Kernel, grid_index: GridIndex, results: dict[str, jax.Array]) -> None:
    """Write the outputs of a block of rows to global memory.

    Args:
      grid_index: Example, head and block of rows.
      results: Dict from name to the rows of an output, in registers.
    """
    config, memory = kernel.config, kernel.memory
    row = grid_index.block * config.rows
    types = collect_types(kernel.body, kernel.inputs, kernel.outputs)
    mosaic.wait_for_threads()  # Outputs replace resident rows, which all threads have read.
    buffers = {}
    for name, value in results.items():
        output = kernel.outputs[name]
        value = value.astype(output.dtype)
        if value.ndim == 1:
            output[grid_index.example, grid_index.head, pl.ds(row, config.rows)] = value
            continue
        if name in memory.outputs:
            buffers[name] = memory.outputs[name].at[0]
        else:
            buffers[name] = memory.resident[str(replaced_input(name, types))].at[0]
        buffers[name][...] = value
    mosaic.wait_for_threads()
    for name, buffer in buffers.items():
        copies.write_rows(buffer, kernel.outputs[name], grid_index, row)
