"""Loop over the tiles of a score map, shared by all kernels.

The score map has one row per query and one column per key, or one row per key and one column per
query. A thread block computes a block of `TileConfig.block_rows` rows. The inputs of these rows are
resident: they stay in shared memory. Each compute warpgroup of the thread block computes a part of
the rows. One memory warpgroup copies the inputs of the columns into a ring buffer of
`TileConfig.stages` slots, tile by tile. Meanwhile, the compute warpgroups process the tiles that
have arrived.

    resident     streamed    kernels
    queries      keys        forward, query_gradient, attention_given
    keys         queries     key_gradient, received
    diagonals    queries     position_gradient

A third type of input has one number or one vector for each diagonal of the score map, that is for
each difference between row and column. A tile of m rows and n columns needs m + n consecutive
diagonals. They are copied into the ring buffer with the inputs of the columns.

The kernel `position_gradient` computes a block of diagonals instead of a block of rows. From one
tile to the next, both its rows and its columns change. The inputs of its rows are copied into the
ring buffer, too.

A thread block may compute several blocks of rows, one after the other: see `BlockOrder`. In a
persistent kernel, the resident inputs of the next block are copied while the current block is
computed: the thread block has buffers for the rows of two blocks.

Each number of an output is computed by one warpgroup, tile after tile. Hence there are no atomic
operations, and the results are deterministic.
"""

import functools
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax

from distattn_jax.attention.fused import varying
from distattn_jax.attention.fused.gpu import diagonal_sums, mosaic, registers
from distattn_jax.attention.fused.gpu.block_order import BlockOrder
from distattn_jax.attention.fused.gpu.kernel_body import GridIndex, KernelBody, KernelInputs
from distattn_jax.attention.fused.gpu.shared_memory import (
    VECTORS,
    Kernel,
    SharedMemory,
    allocate,
    collect_types,
    count_reused_blocks,
    replaced_input,
)
from distattn_jax.attention.fused.gpu.tile_access import (
    BlockNumbers,
    locate_sums,
    make_context,
    make_tile,
    read_numbers,
    read_share,
)
from distattn_jax.attention.fused.gpu.tile_copies import (
    copy_tables,
    copy_tiles,
    read_bounds,
    read_run_of_part,
    slice_rows,
    visit_tiles,
)
from distattn_jax.attention.fused.gpu.wgmma import WgmmaProducts
from distattn_jax.attention.fused.kernel_calls import KernelCall

# Registers per thread. An SM has 64K registers: the memory warpgroup leaves most to the others.
COMPUTE_REGISTERS = {1: 240, 2: 240, 3: 160, 4: 112}  # by the number of compute warpgroups
MEMORY_REGISTERS = 24


def run_tile_loop(
    call: KernelCall,
    body: KernelBody,
    inputs: KernelInputs,
    output_types: dict[str, jax.ShapeDtypeStruct],
    order: BlockOrder,
    origin: int,
) -> dict[str, jax.Array]:
    """Run a kernel over all blocks of all examples and heads. Return a dict from name to output.

    Args:
      call: Name, score map and schedule of the kernel.
      body: Computation of the kernel.
      inputs: Input arrays, padded as the kernel requires.
      output_types: Dict from name to type of all outputs.
      order: Blocks of rows that each thread block computes, and configuration of the kernel.
      origin: Index of the main diagonal (row = column) of the score map. Entry (row, column) is on
        diagonal origin + row - column. `origin` is at least the number of columns, so that no index
        is negative. `inputs.diagonals` has one element for each diagonal. In the kernel
        `position_gradient`, `inputs.resident` also has one element for each diagonal.
    """
    config, is_loop, row_slots = order.config, order.is_loop, order.row_slots
    assert not (is_loop and count_reused_blocks(inputs, config)), "no reuse in persistent kernels"
    types = collect_types(body, inputs, output_types)

    def kernel(refs: KernelInputs, outputs: dict[str, Any], memory: SharedMemory):
        shared = Kernel(call, body, config, origin, refs, outputs, memory)
        thread_block, warpgroup = (lax.axis_index(axis) for axis in ("thread_block", "warpgroup"))
        own_order = read_share(order, refs, thread_block)
        count = own_order.count_rounds(thread_block)
        locate = functools.partial(own_order.locate, thread_block)

        def visit_blocks(read, visit):
            """Call visit(i, numbers, iteration) for i = 0, 1, ..., once for each block of rows.

            These are the blocks that this thread block computes.

            Args:
              read: Function of a `GridIndex`. It reads the numbers of a block from global memory.
                `numbers` is its result for block i. `read` is called one block ahead.
              visit: Function that computes or copies the tiles of block i. `iteration` is the
                number of tiles of all earlier blocks. The function returns this number plus the
                number of tiles of block i.
            """

            def step(i, carry):
                iteration, numbers = carry
                next_numbers = read(locate(jnp.minimum(i + 1, count - 1)))
                return visit(i, numbers, iteration), next_numbers

            first = jnp.int32(0), read(locate(0))
            if is_loop:
                lax.fori_loop(0, count, step, first)
            else:
                visit(0, first[1], first[0])

        @pl.when(warpgroup < config.warpgroups)
        def _():
            plgpu.set_max_registers(COMPUTE_REGISTERS[config.warpgroups], action="increase")
            copy_rows = functools.partial(_copy_rows, shared, warpgroup)
            copy_rows(locate(0), 0)
            for ref in locate_sums(shared, warpgroup).values():
                diagonal_sums.fill_with_zeros(ref)

            def copy_next_rows(i):
                pl.when(i + 1 < count)(lambda: copy_rows(locate(i + 1), (i + 1) % row_slots))

            def compute(i, numbers, iteration):
                grid_index = locate(i)
                if row_slots > 1:
                    copy_next_rows(i)
                iteration, results = _compute_tiles(
                    shared, grid_index, warpgroup, numbers, i % row_slots, iteration
                )
                if is_loop:  # The previous outputs must have left their buffers.
                    plgpu.wait_smem_to_gmem(0, wait_read_only=True)
                _write_outputs(shared, grid_index, warpgroup, results)
                if is_loop and row_slots == 1:  # The next rows may overwrite these outputs.
                    plgpu.wait_smem_to_gmem(0, wait_read_only=True)
                    copy_next_rows(i)
                return iteration

            visit_blocks(functools.partial(read_numbers, shared, warpgroup), compute)
            plgpu.wait_smem_to_gmem(0)

        @pl.when(warpgroup == config.warpgroups)
        def _():
            plgpu.set_max_registers(MEMORY_REGISTERS, action="decrease")

            def copy(i, bounds, iteration):
                copy_tables(shared, locate(i), i)
                return copy_tiles(shared, locate(i), bounds, iteration)

            visit_blocks(lambda grid_index: read_bounds(shared, grid_index), copy)

    kernel.__name__ = call.name  # in profiles
    run = plgpu.kernel(
        kernel,
        out_type=output_types,
        scratch_types=(allocate(types, config, row_slots),),
        grid=(order.thread_blocks,),
        grid_names=("thread_block",),
        num_threads=config.warpgroups + 1,
        thread_name="warpgroup",
        **mosaic.kernel_options(),
    )
    return varying.mark_varying(run(inputs), varying.varying_axes(inputs))


def _copy_rows(kernel: Kernel, warpgroup: jax.Array, grid_index: GridIndex, slot: Any) -> None:
    """Start to copy the resident inputs of a compute warpgroup to shared memory.

    Args:
      warpgroup: Index of the compute warpgroup.
      grid_index: Example, head and block of rows.
      slot: 0 or 1, which selects one of two sets of buffers. Successive blocks of rows of a thread
        block use them in turn.
    """
    config, memory = kernel.config, kernel.memory
    row = grid_index.block * config.block_rows + warpgroup * config.rows
    buffer = slot * config.warpgroups + warpgroup
    for name, ref in kernel.inputs.resident.items():
        rows = slice_rows(ref, grid_index, row, config.rows)
        plgpu.copy_gmem_to_smem(
            rows, memory.resident[name].at[buffer], memory.arrived[name].at[buffer]
        )


def _compute_tiles(
    kernel: Kernel,
    grid_index: GridIndex,
    warpgroup: jax.Array,
    numbers: BlockNumbers,
    slot: Any,
    iteration: jax.Array,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Compute the tiles of one warpgroup in a block of rows, and return its outputs.

    Args:
      grid_index: Example, head and block of rows.
      warpgroup: Index of the compute warpgroup.
      numbers: Ranges of tiles of the block, and scalars.
      slot: The argument `slot` with which `_copy_rows` copied the inputs of the block: 0 or 1.
      iteration: Number of tiles that the warpgroup has computed or skipped in earlier blocks.

    Returns:
      The number of tiles that the warpgroup has computed or skipped in this block and all earlier
      blocks, and a dict from name to the rows of an output that belong to the warpgroup.
    """
    call, body, config, origin, inputs, _, memory = kernel
    schedule = call.schedule
    read_run = functools.partial(read_run_of_part, kernel, grid_index, warpgroup)
    row = grid_index.block * config.block_rows + warpgroup * config.rows
    buffer = slot * config.warpgroups + warpgroup
    (first, last), starts, end, scalars = numbers
    scratch = memory.operand_scratch
    products = WgmmaProducts(None if scratch is None else scratch.at[warpgroup])
    context = make_context(kernel, grid_index, warpgroup, scalars, buffer, row, slot, products)

    reused_blocks = count_reused_blocks(inputs, config)
    for name, count in reused_blocks.items():
        for block in range(count):
            plgpu.barrier_wait(memory.full[name].at[block])
    shift = iteration - first

    def skip_tiles(start, end):
        """Wait for the inputs of the tiles from `start` to `end` - 1, and release them unused.

        Only other warpgroups of the thread block compute these tiles.
        """

        def skip_tile(index, _):
            tile, release_vectors = make_tile(
                kernel, row, warpgroup, index, index + shift, schedule.kinds[0], reused_blocks
            )
            for name in memory.full:
                if name not in (VECTORS, *body.late_vectors):
                    tile.skip(name)
            release_vectors()

        if schedule.parts > 1:
            lax.fori_loop(start, end, skip_tile, None)

    skip_tiles(first, starts[0])
    state = body.initialize(context)
    ends = [*starts[1:], end]
    for (kind, runs), start, end in zip(schedule.loops, starts, ends, strict=True):

        def step(index, iteration, state, kind=kind):
            first_row = row + index * config.columns - origin if inputs.moving else row
            tile, release_vectors = make_tile(
                kernel, first_row, warpgroup, index, iteration, kind, reused_blocks
            )
            resident = {
                name: registers.copy_operand(matrix, index) if name in config.held else matrix
                for name, matrix in context.resident.items()
            }
            state = body.step(context._replace(resident=resident), tile, state)
            release_vectors()
            return state

        if schedule.is_in_column_order:  # A loop ends where the next begins.
            state = lax.fori_loop(
                start, end, lambda index, state, step=step: step(index, index + shift, state), state
            )
        else:
            iteration, state = visit_tiles(read_run, runs, step, iteration, state)

    if schedule.is_in_column_order:
        skip_tiles(ends[-1], last)
        iteration = last + shift
    results = body.finish(context, state)
    for barrier in memory.tables_free.values():
        plgpu.barrier_arrive(barrier.at[slot])
    return iteration, results


def _write_outputs(
    kernel: Kernel, grid_index: GridIndex, warpgroup: jax.Array, results: dict[str, jax.Array]
) -> None:
    """Write the outputs of a warpgroup to shared memory, and start to copy them to global memory.

    Args:
      grid_index: Example, head and block of rows.
      warpgroup: Index of the compute warpgroup.
      results: Dict from name to the rows of an output that belong to the warpgroup, in registers.
    """
    config, memory = kernel.config, kernel.memory
    row = grid_index.block * config.block_rows + warpgroup * config.rows
    if not memory.outputs.keys() >= results.keys():
        plgpu.commit_smem()  # complete the reads of resident rows that outputs replace
    types = collect_types(kernel.body, kernel.inputs, kernel.outputs)
    buffers = {}
    for name in results:
        replaced = None if name in memory.outputs else replaced_input(name, types)
        buffer = memory.outputs[name] if replaced is None else memory.resident[replaced]
        buffers[name] = buffer.at[warpgroup]
    for name, value in results.items():
        buffers[name][...] = value.astype(kernel.outputs[name].dtype)
    plgpu.commit_smem()
    for name, computed in buffers.items():
        rows = slice_rows(kernel.outputs[name], grid_index, row, config.rows)
        plgpu.copy_smem_to_gmem(computed, rows)
