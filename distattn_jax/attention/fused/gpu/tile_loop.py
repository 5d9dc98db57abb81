"""Loop over the tiles of a score map, shared by all kernels.

The map has one row per query and one column per key, or one row per key and one column per query. A
thread block keeps `TileConfig.block_rows` rows in shared memory, divided among its compute
warpgroups. One memory warpgroup copies the columns tile by tile into a ring buffer of
`TileConfig.stages` slots, while the compute warpgroups process the tiles that have arrived.

    resident rows   streamed columns   kernels
    queries         keys               forward, query gradient, attention given
    keys            queries            key gradient, received
    diagonals       queries            position gradient

A third kind of input has one number or one vector for each diagonal of the score map, that is for
each difference between row and column. A tile needs as many consecutive diagonals as it has rows
and columns together. They are copied into the ring buffer with the columns of the tile.

The kernel `position_gradient` keeps a block of diagonals instead of a block of rows. The rows of
its tiles move with their columns, and are copied into the ring buffer as well.

If there are many short sequences, a thread block processes a block of rows of one example after the
other. The inputs of the next example then arrive while the current example is computed.

Each output entry is computed by one warpgroup, tile after tile. Hence there are no atomic
operations, and the results are deterministic.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax

from distattn_jax.attention.fused import varying
from distattn_jax.attention.fused.gpu import mosaic, registers
from distattn_jax.attention.fused.gpu.kernel_body import KernelBody, KernelInputs
from distattn_jax.attention.fused.gpu.shared_memory import (
    SharedMemory,
    allocate,
    count_reused_blocks,
)
from distattn_jax.attention.fused.gpu.tile_access import (
    GridIndex,
    Kernel,
    make_context,
    make_tile,
)
from distattn_jax.attention.fused.gpu.tile_configs import TileConfig, count_examples
from distattn_jax.attention.fused.gpu.tile_copies import (
    copy_tiles,
    read_bounds,
    read_run_of_part,
    slice_rows,
    visit_tiles,
)
from distattn_jax.attention.fused.runs import Schedule

# Registers per thread. An SM has 64K registers: the memory warpgroup leaves most to the others.
COMPUTE_REGISTERS = {1: 240, 2: 240, 3: 160, 4: 112}  # by the number of compute warpgroups
MEMORY_REGISTERS = 24


def run_tile_loop(
    body: KernelBody,
    inputs: KernelInputs,
    output_types: dict[str, jax.ShapeDtypeStruct],
    schedule: Schedule,
    config: TileConfig,
    name: str,
    origin: int,
) -> dict[str, jax.Array]:
    """Run a kernel over all blocks of all heads, and return its outputs by name.

    Args:
      body: Computation of the kernel.
      inputs: Input arrays of the kernel.
      output_types: Shapes and dtypes of the outputs, by name.
      schedule: Kinds of the runs, and their order. The kernel has one loop for each kind, or
        for each run if the tiles are in the order of their columns.
      config: Tile sizes, number of warpgroups and number of pipeline stages.
      name: Name of the kernel in profiles.
      origin: Index of the diagonal row = column in `inputs.diagonals`, or in `inputs.resident` of a
        kernel with moving rows. It is at least the number of columns of all tiles.
    """
    batch, heads = inputs.runs.shape[:2]
    blocks = schedule.blocks
    copied = {name: x for name, x in output_types.items() if name not in body.scattered}
    examples = count_examples(batch, heads * blocks) if config.visits_examples else 1

    def kernel(refs: KernelInputs, outputs: dict[str, Any], memory: SharedMemory):
        shared = Kernel(body, schedule, config, origin, refs, outputs, memory)
        first, head, block = (lax.axis_index(axis) for axis in ("example", "head", "block"))
        warpgroup = lax.axis_index("warpgroup")

        def visit_examples(visit):
            """Call visit(grid_index, is_last, slot, iteration) for each example.

            The result of a call is the iteration of the next call. The slots of successive examples
            differ.
            """

            def step(i, iteration):
                grid_index = (first * examples + i, head, block)
                return visit(grid_index, i == examples - 1, i & 1, iteration)

            if examples == 1:
                step(0, jnp.int32(0))
            else:
                lax.fori_loop(0, examples, step, jnp.int32(0))

        @pl.when(warpgroup < config.warpgroups)
        def _():
            plgpu.set_max_registers(COMPUTE_REGISTERS[config.warpgroups], action="increase")
            copy_rows = functools.partial(_copy_rows, shared, warpgroup)
            copy_rows((first * examples, head, block), 0)

            def compute(grid_index, is_last, slot, iteration):
                def copy_next_rows():
                    plgpu.wait_smem_to_gmem(0)  # The buffers of the previous outputs are free then.
                    example, *others = grid_index
                    pl.when(~is_last)(lambda: copy_rows((example + 1, *others), 1 - slot))

                return _compute_tiles(
                    shared,
                    grid_index,
                    warpgroup,
                    slot,
                    iteration,
                    copy_next_rows if examples > 1 else lambda: None,
                )

            visit_examples(compute)
            plgpu.wait_smem_to_gmem(0)

        @pl.when(warpgroup == config.warpgroups)
        def _():
            plgpu.set_max_registers(MEMORY_REGISTERS, action="decrease")
            visit_examples(
                lambda grid_index, is_last, slot, iteration: copy_tiles(
                    refs, memory, grid_index, schedule, config, origin, iteration
                )
            )

    kernel.__name__ = name
    run = plgpu.kernel(
        kernel,
        out_type=output_types,
        scratch_types=(allocate(body, inputs, copied, config, min(examples, 2)),),
        grid=(batch // examples, heads, blocks),
        grid_names=("example", "head", "block"),
        num_threads=config.warpgroups + 1,
        thread_name="warpgroup",
        **mosaic.kernel_options(),
    )
    return varying.mark_varying(run(inputs), varying.varying_axes(inputs))


def _copy_rows(kernel: Kernel, warpgroup: jax.Array, grid_index: GridIndex, slot: Any) -> None:
    """Copy the rows of a compute warpgroup into its buffers with the number `slot`."""
    config, memory = kernel.config, kernel.memory
    row = grid_index[2] * config.block_rows + warpgroup * config.rows
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
    slot: Any,
    iteration: jax.Array,
    copy_next_rows: Callable[[], None],
) -> jax.Array:
    """Compute all tiles of the rows of one warpgroup, and start to write its outputs.

    Args:
      kernel: Computation, references and buffers.
      grid_index: Indices of example, head and block.
      warpgroup: Index of the warpgroup.
      slot: Number of the buffers that contain the rows.
      iteration: Number of tiles that the warpgroup has computed or skipped in earlier examples.
      copy_next_rows: Starts to copy the rows of the next example. It also waits until the previous
        outputs are written.

    Returns:
      The number of tiles that the warpgroup has computed or skipped, in this and earlier examples.
    """
    body, schedule, config, origin, inputs, outputs, memory = kernel
    read_run = functools.partial(read_run_of_part, inputs, grid_index, schedule, warpgroup)
    row = grid_index[2] * config.block_rows + warpgroup * config.rows
    buffer = slot * config.warpgroups + warpgroup
    groups = [
        (kind, [i for i, _ in equal])
        for kind, equal in itertools.groupby(enumerate(schedule.kinds), key=lambda pair: pair[1])
    ]
    # All boundaries are read before the warpgroup waits for its rows, so that it waits only once.
    starts = [read_run(indices[0])[0] for _, indices in groups]
    ends = [*starts[1:], read_run(len(schedule.kinds) - 1)[1]]
    first, last = read_bounds(inputs, grid_index, schedule)
    context = make_context(kernel, grid_index, warpgroup, buffer, row)

    reused_blocks = count_reused_blocks(inputs, config)
    for name, count in reused_blocks.items():
        for block in range(count):
            plgpu.barrier_wait(memory.full[name].at[block])
    shift = iteration - first

    def skip_tiles(start, end):
        """Skip tiles of the block that only other warpgroups visit."""

        def skip_tile(index, _):
            tile, _ = make_tile(
                kernel, row, warpgroup, index, index + shift, schedule.kinds[0], reused_blocks
            )
            for name in memory.ring:
                tile.skip(name)

        if schedule.parts > 1:
            lax.fori_loop(start, end, skip_tile, None)

    skip_tiles(first, starts[0])
    state = body.initialize(context)
    for (kind, indices), start, end in zip(groups, starts, ends, strict=True):

        def step(index, iteration, state, kind=kind):
            first_row = row + index * config.columns - origin if inputs.moving else row
            tile, release_loaded = make_tile(
                kernel, first_row, warpgroup, index, iteration, kind, reused_blocks
            )
            resident = {
                name: registers.copy_operand(matrix, index) if name in config.held else matrix
                for name, matrix in context.resident.items()
            }
            state = body.step(context._replace(resident=resident), tile, state)
            release_loaded()
            return state

        if schedule.is_in_column_order:  # A loop ends where the next begins.
            state = lax.fori_loop(
                start,
                end,
                lambda index, state, step=step: step(index, index + shift, state),
                state,
            )
        else:
            runs = range(indices[0], indices[-1] + 1)
            iteration, state = visit_tiles(read_run, runs, step, iteration, state)

    if schedule.is_in_column_order:
        skip_tiles(ends[-1], last)
        iteration = last + shift
    copy_next_rows()
    results = body.finish(context, state)
    if not memory.outputs.keys() >= results.keys():
        plgpu.commit_smem()  # complete the reads of resident rows that outputs replace
    buffers = {
        name: memory.outputs[name].at[warpgroup]
        if name in memory.outputs
        else memory.resident[name].at[buffer]
        for name in results
    }
    for name, value in results.items():
        buffers[name][...] = value.astype(outputs[name].dtype)
    plgpu.commit_smem()
    for name, computed in buffers.items():
        rows = slice_rows(outputs[name], grid_index, row, config.rows)
        plgpu.copy_smem_to_gmem(computed, rows)
    return iteration
