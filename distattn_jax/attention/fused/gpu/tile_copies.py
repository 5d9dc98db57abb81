"""Code of the memory warpgroup, which copies the inputs of each tile into shared memory."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax

from distattn_jax.attention.fused.gpu.kernel_body import GridIndex, count_leading_rows
from distattn_jax.attention.fused.gpu.shared_memory import VECTORS, Kernel, count_reused_blocks


def copy_tiles(
    kernel: Kernel, grid_index: GridIndex, bounds: tuple[jax.Array, jax.Array], iteration: jax.Array
) -> jax.Array:
    """Copy the inputs of all tiles that a block of rows visits into the ring buffers.

    Before each copy, wait until all compute warpgroups have released the slot.

    Args:
      grid_index: Example, head and block of rows.
      bounds: Index of the first tile that the block visits, and index of its last tile plus 1.
      iteration: Number of tiles whose inputs were copied for earlier blocks.

    Returns:
      The number of tiles whose inputs were copied for this block and all earlier blocks.
    """
    call, _, config, origin, refs, _, memory = kernel
    schedule = call.schedule
    read_run = functools.partial(read_run_of_part, kernel, grid_index, 0)
    block_row = grid_index.block * config.block_rows
    reused_blocks = count_reused_blocks(refs, config)
    vectors = [name for name in memory.ring if name not in memory.full]
    first, end = bounds

    def copy_block(name, block):
        """Copy the next `config.rows` rows of a matrix of diagonals or moving rows to one slot.

        Consecutive tiles share most rows of such a matrix: see `count_reused_blocks`. The tiles
        must be in the order of their columns.

        Args:
          name: Name of the matrix in `KernelInputs.diagonals` or `KernelInputs.moving`.
          block: Number of earlier copies of this matrix.
        """
        ref, slots = (refs.diagonals | refs.moving)[name], memory.ring[name].shape[0]
        if name in refs.diagonals:
            start = origin + block_row - first * config.columns
            start += (reused_blocks[name] - 1 - block) * config.rows
        else:
            start = block_row + first * config.columns - origin + count_leading_rows(config)
            start += block * config.rows
        slot = lax.rem(jnp.int32(block), slots)

        @pl.when(block >= slots)
        def _():
            plgpu.barrier_wait(memory.free[name].at[slot])

        source = slice_rows(ref, grid_index, start, config.rows)
        plgpu.copy_gmem_to_smem(source, memory.ring[name].at[slot], memory.full[name].at[slot])

    def copy_tile(tile, iteration):
        column = tile * config.columns
        first_row = block_row
        if refs.moving:
            first_row += column - origin + count_leading_rows(config)

        def find_slot(name):
            return lax.rem(iteration, config.count_slots(name))

        def wait_until_free(name):
            @pl.when(iteration >= config.count_slots(name))
            def _():
                plgpu.barrier_wait(memory.free[name].at[find_slot(name)])

        def copy(source, buffer, barrier):
            plgpu.copy_gmem_to_smem(source, buffer, memory.full[barrier].at[find_slot(barrier)])

        sources = {
            name: slice_rows(ref, grid_index, column, config.columns)
            for name, ref in refs.streamed.items()
        }
        for name, ref in refs.moving.items():
            if name not in reused_blocks:
                sources[name] = slice_rows(ref, grid_index, first_row, config.block_rows)
        for name, ref in refs.entries.items():
            shape = (config.block_rows, config.columns)
            sources[name] = slice_entries(ref, grid_index, first_row, column, shape)
        for name, source in sources.items():
            if name not in vectors:
                wait_until_free(name)
                copy(source, memory.ring[name].at[find_slot(name)], name)
        slot = find_slot(VECTORS)
        if vectors:
            wait_until_free(VECTORS)
        for name in vectors:
            if name in sources:
                copy(sources[name], memory.ring[name].at[slot], VECTORS)
                continue
            # The window is copied in two parts, because a copy is limited to 256 rows.
            start = origin + block_row - (tile + 1) * config.columns
            for offset, rows in ((0, config.block_rows), (config.block_rows, config.columns)):
                part = slice_rows(refs.diagonals[name], grid_index, start + offset, rows)
                copy(part, memory.ring[name].at[slot, pl.ds(offset, rows)], VECTORS)
        for name, count in reused_blocks.items():
            copy_block(name, iteration + count)

    for name, count in reused_blocks.items():
        for block in range(count):
            copy_block(name, block)

    def step(tile, iteration, state):
        copy_tile(tile, iteration)
        return state

    count = len(schedule.kinds)
    if schedule.is_in_column_order:
        shift = iteration - first
        lax.fori_loop(first, end, lambda i, _: copy_tile(i, i + shift), None)
        return end + shift
    iteration, _ = visit_tiles(read_run, range(count), step, iteration, ())
    return iteration


def copy_tables(kernel: Kernel, grid_index: GridIndex, i: Any) -> None:
    """Copy the tables of the head of a block of rows to shared memory.

    Args:
      grid_index: Example, head and block of rows.
      i: Number of blocks of rows that the thread block has computed before.
    """
    memory = kernel.memory
    for name, ref in kernel.inputs.tables.items():
        slots = memory.tables[name].shape[0]
        slot = i % slots

        @pl.when(i >= slots)
        def _(name=name, slot=slot):
            plgpu.barrier_wait(memory.tables_free[name].at[slot])

        source = slice_rows(ref, grid_index, 0, memory.tables[name].shape[1])
        plgpu.copy_gmem_to_smem(
            source, memory.tables[name].at[slot], memory.tables_full[name].at[slot]
        )


def index_part(kernel, grid_index, warpgroup) -> jax.Array:
    """Return the index of a warpgroup on the axis of blocks and parts of `TileSchedule.runs`.

    If the warpgroups of a block can visit different tiles, it is block * parts + warpgroup, where
    `parts` is the number of warpgroups of a block: see `TileSchedule.parts`. If all of them visit
    the same tiles, it is the index of the block.

    Args:
      kernel: The kernel, a `Kernel`.
      grid_index: Example, head and block, a `GridIndex`.
      warpgroup: Index of the warpgroup in its thread block.
    """
    block, parts = grid_index.block, kernel.call.schedule.parts
    return block if parts == 1 else block * parts + warpgroup


def read_run_of_part(kernel, grid_index, warpgroup, run) -> list[jax.Array]:
    """Return the index of the first tile of a run, and the index of its last tile plus 1.

    A run consists of consecutive tiles that a warpgroup visits: see `TileSchedule.runs`.

    Args:
      kernel: The kernel, a `Kernel`.
      grid_index: Example, head and block, a `GridIndex`.
      warpgroup: Index of the warpgroup in its thread block.
      run: Index of the run.
    """
    runs = kernel.inputs.runs
    part = index_part(kernel, grid_index, warpgroup)
    index = (*shared_index(runs, grid_index), part, run)
    return [read_scalar(runs, index, i) for i in (0, 1)]


def read_bounds(kernel, grid_index) -> tuple[jax.Array, jax.Array]:
    """Return the index of the first tile that a block visits, and that of its last tile plus 1.

    All tiles of the warpgroups of the block lie between these bounds. If the schedule does not
    visit the tiles in the order of their columns, do not use the result.

    Args:
      kernel: The kernel, a `Kernel`.
      grid_index: Example, head and block, a `GridIndex`.
    """
    schedule = kernel.call.schedule
    read_run = functools.partial(read_run_of_part, kernel, grid_index, 0)
    last = read_run(len(schedule.kinds) - (schedule.parts == 1))
    return (read_run(0) if schedule.parts == 1 else last)[0], last[1]


def read_scalar(ref: Any, index: Sequence[Any], i: int) -> jax.Array:
    """Return ref[*index, i], one number from global memory.

    Inside a `shard_map`, the type of this number lists the mesh axes over which the number varies.
    Kernels do not support such types. This function therefore adds a zero that is made inside the
    kernel: the type of the sum has no mesh axes.
    """
    return ref[*index, i] + jnp.zeros((), ref.dtype)


def visit_tiles(read_run, runs, step, iteration, state):
    """Call `step` for each tile of several runs. A run consists of consecutive tiles.

    The iteration of a tile is the number of tiles that were visited before it.

    Args:
      read_run: Function of the index of a run. It returns the index of the first tile of the run,
        and the index of the last tile plus 1.
      runs: Range of indices of the runs.
      step: Function of the index of a tile, its iteration and the state before the tile. It returns
        the state after the tile.
      iteration: Iteration of the first tile.
      state: State before the first tile.

    Returns:
      The iteration of the tile that will follow the last tile, and the state after the last tile.
    """

    def visit_run(i, carry):
        iteration, state = carry
        start, end = read_run(i)
        shift = iteration - start
        state = lax.fori_loop(
            start, end, lambda tile, state: step(tile, tile + shift, state), state
        )
        return shift + end, state

    if len(runs) == 1:
        return visit_run(runs.start, (iteration, state))
    # The code of `step` exists once in a loop over the runs.
    return lax.fori_loop(runs.start, runs.stop, visit_run, (iteration, state))


def slice_rows(ref: Any, grid_index: GridIndex, start: jax.Array | int, length: int) -> Any:
    """Return a reference to `length` rows of a matrix, or to `length` numbers of a vector.

    The rows or numbers begin at index `start` and belong to the example and the head in
    `grid_index`.

    Args:
      ref: Matrix of shape (B, L, N, W), or vector of shape (B, N, L), in global memory. If B is 1,
        all examples share it. A matrix may have fewer heads than the kernel: a group of consecutive
        heads of the kernel then shares one head of the matrix. If N of a vector is 1, all heads
        share it.
    """
    if len(ref.shape) == 3:
        return ref.at[*shared_index(ref, grid_index), pl.ds(start, length)]
    example, head, _, heads = grid_index
    group_size = heads // ref.shape[2]
    if group_size > 1:
        head = lax.div(head, group_size)
    return ref.at[0 if ref.shape[0] == 1 else example, pl.ds(start, length), head]


def slice_entries(
    ref: Any, grid_index: GridIndex, row: Any, column: Any, shape: tuple[int, int]
) -> Any:
    """Return a reference to a tile of a mask of shape (B, N, rows, columns) in global memory."""
    rows, columns = pl.ds(row, shape[0]), pl.ds(column, shape[1])
    return ref.at[*shared_index(ref, grid_index), rows, columns]


def shared_index(ref: Any, grid_index: GridIndex) -> tuple[Any, Any]:
    """Return the indices of an example and a head in an array of shape (B, N, ...).

    If B is 1, all examples share the array, and the first index is 0. If N is 1, all heads share
    the array, and the second index is 0.
    """
    return (
        0 if ref.shape[0] == 1 else grid_index.example,
        0 if ref.shape[1] == 1 else grid_index.head,
    )
