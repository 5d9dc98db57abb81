"""Functions with which a compute warpgroup waits for the inputs of a tile and loads them."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax

from distattn_jax.attention.fused.gpu import mosaic, registers
from distattn_jax.attention.fused.gpu.block_order import BlockOrder, Share
from distattn_jax.attention.fused.gpu.kernel_body import (
    GridIndex,
    KernelInputs,
    Products,
    Tile,
    WarpgroupContext,
)
from distattn_jax.attention.fused.gpu.shared_memory import VECTORS, Kernel
from distattn_jax.attention.fused.gpu.tile_copies import (
    index_part,
    read_bounds,
    read_run_of_part,
    read_scalar,
    shared_index,
    slice_rows,
)
from distattn_jax.attention.fused.score_map import Scalars
from distattn_jax.attention.fused.tile_runs import TileKind
from distattn_jax.attention.fused.visible_columns import UNBOUNDED


class BlockNumbers(NamedTuple):
    """Numbers that a compute warpgroup reads from global memory for a block of rows.

    Tiles are numbered from left to right: tile n begins at column n * `TileConfig.columns`.

    Attributes:
      bounds: Index of the first tile that the block visits, and index of its last tile plus 1.
      starts: Index of the first tile of each loop of the warpgroup: see `TileSchedule.loops`.
      end: Index of the last tile of the last loop, plus 1.
      scalars: Dict from name to a tuple of numbers that belong to the example and the head.
    """

    bounds: tuple[jax.Array, jax.Array]
    starts: list[jax.Array]
    end: jax.Array
    scalars: Scalars


def read_share(order: BlockOrder, refs: KernelInputs, thread_block: jax.Array) -> BlockOrder:
    """Return an order with the `Share` of a thread block, if the heads have different shares.

    Args:
      order: Thread blocks of the kernel.
      refs: Inputs of the kernel, in global memory.
      thread_block: Index of the thread block.
    """
    if refs.shares is None:
        return order
    numbers = (read_scalar(refs.shares, (thread_block,), i) for i in range(len(Share._fields)))
    return order._replace(share=Share(*numbers))


def read_numbers(kernel: Kernel, warpgroup: jax.Array, grid_index: GridIndex) -> BlockNumbers:
    """Read from global memory the numbers that a warpgroup needs for a block of rows.

    All of them are read at once, so that the warpgroup waits only once.

    Args:
      warpgroup: Index of the warpgroup.
      grid_index: Example, head and block.
    """
    schedule = kernel.call.schedule
    read_run = functools.partial(read_run_of_part, kernel, grid_index, warpgroup)
    return BlockNumbers(
        bounds=read_bounds(kernel, grid_index),
        starts=[read_run(runs[0])[0] for _, runs in schedule.loops],
        end=read_run(len(schedule.kinds) - 1)[1],
        scalars={
            name: tuple(
                read_scalar(ref, shared_index(ref, grid_index), i) for i in range(ref.shape[-1])
            )
            for name, ref in kernel.inputs.scalars.items()
        },
    )


def make_context(
    kernel: Kernel,
    grid_index: GridIndex,
    warpgroup: jax.Array,
    scalars: Scalars,
    buffer: Any,
    row: jax.Array,
    slot: Any,
    products: Products,
) -> WarpgroupContext:
    """Wait until the resident inputs of a warpgroup have been copied, and return its context.

    Args:
      grid_index: Example, head and block of rows.
      warpgroup: Index of the warpgroup.
      scalars: Numbers that belong to the example and the head.
      buffer: Index on axis 0 of `SharedMemory.resident` at which the rows of the warpgroup are.
      row: Index of the first row of the warpgroup.
      slot: Index on axis 0 of `SharedMemory.tables` at which the tables of the head are.
      products: Matrix products with the instructions of the chip.
    """
    inputs, outputs, memory = kernel.inputs, kernel.outputs, kernel.memory
    for barrier in memory.arrived.values():
        plgpu.barrier_wait(barrier.at[buffer])
    for barrier in memory.tables_full.values():
        plgpu.barrier_wait(barrier.at[slot])
    buffers = {name: ref.at[buffer] for name, ref in memory.resident.items()}
    part = index_part(kernel, grid_index, warpgroup)

    def global_rows(name, start, length):
        ref = inputs.gathered[name] if name in inputs.gathered else outputs[name]
        return slice_rows(ref, grid_index, start, length)

    return WarpgroupContext(
        score_map=kernel.call.score_map,
        row=row,
        resident={
            name: mosaic.load_operand(ref) if name in kernel.config.held else ref
            for name, ref in buffers.items()
            if len(ref.shape) == 2
        },
        vectors={
            name: mosaic.load_per_row(ref) for name, ref in buffers.items() if len(ref.shape) == 1
        },
        scalars=scalars,
        skipped_sums={
            name: ref.at[grid_index.example, grid_index.head, part]
            for name, ref in inputs.skipped_sums.items()
        },
        products=products,
        global_rows=global_rows,
        scratch={name: ref.at[warpgroup] for name, ref in memory.scratch.items()},
        tables={name: ref.at[slot] for name, ref in memory.tables.items()},
        visited_columns=_find_visited_columns(kernel, grid_index, warpgroup),
        summed=locate_sums(kernel, warpgroup),
    )


def locate_sums(kernel: Kernel, warpgroup: jax.Array) -> dict[str, Any]:
    """Return references to the vectors of `KernelBody.summed` that belong to a warpgroup.

    All blocks of rows that a thread block computes have the same vectors.

    Args:
      warpgroup: Index of the warpgroup.
    """
    part = lax.axis_index("thread_block") * kernel.config.warpgroups + warpgroup
    return {name: kernel.outputs[name].at[part] for name in kernel.body.summed}


def _find_visited_columns(
    kernel: Kernel, grid_index: GridIndex, warpgroup: jax.Array
) -> tuple[jax.Array, jax.Array] | None:
    """Return `WarpgroupContext.visited_columns`."""
    if not kernel.inputs.tables:
        return None
    read_run = functools.partial(read_run_of_part, kernel, grid_index, warpgroup)
    start, end = jnp.int32(UNBOUNDED // kernel.config.columns), jnp.int32(0)
    for run in range(len(kernel.call.schedule.kinds)):
        first, last = read_run(run)
        start = jnp.where(first < last, jnp.minimum(start, first), start)
        end = jnp.where(first < last, jnp.maximum(end, last), end)
    return start * kernel.config.columns, end * kernel.config.columns


def make_tile(
    kernel: Kernel,
    row: jax.Array,
    warpgroup: jax.Array,
    index: jax.Array,
    iteration: jax.Array,
    kind: TileKind,
    reused_blocks: dict[str, int],
) -> tuple[Tile, Callable[[], None]]:
    """Return a tile, and a function that frees the slots of the vectors and the mask of the tile.

    Before it returns, `make_tile` waits until the vectors and the mask are in shared memory. It
    waits neither for matrices nor for `KernelBody.late_vectors`.

    Args:
      row: Index of the first row of the tile.
      warpgroup: Index of the warpgroup.
      index: Index of the tile. The first column of the tile is index * `config.columns`.
      iteration: Number of tiles that the warpgroup has computed or skipped before. It determines
        the slots of the tile in the ring buffers.
      kind: Properties of the tile that the schedule guarantees.
      reused_blocks: Result of `count_reused_blocks`.
    """
    config, memory = kernel.config, kernel.memory

    def find_slot(name, block):
        return lax.rem(iteration + block, memory.ring[name].shape[0])

    def wait(name):
        # A tile waits for its last block, and releases its first block. Warpgroup i uses block i.
        count = reused_blocks.get(name, 0)
        plgpu.barrier_wait(memory.full[name].at[find_slot(name, count)])
        return memory.ring[name].at[find_slot(name, warpgroup if count else 0)]

    def wait_diagonals(name):
        count = reused_blocks[name]
        plgpu.barrier_wait(memory.full[name].at[find_slot(name, count)])
        blocks = (find_slot(name, count - warpgroup - i) for i in (0, 1))
        lower, upper = (memory.ring[name].at[block] for block in blocks)
        return lower, upper

    def release(name):
        plgpu.barrier_arrive(memory.free[name].at[find_slot(name, 0)])

    slot, loaded = lax.rem(iteration, config.stages), []
    if VECTORS in memory.full:
        plgpu.barrier_wait(memory.full[VECTORS].at[slot])

    def load(name, read):
        assert name not in memory.full or name not in loaded, "a tile loads a late vector once"
        loaded.append(name)
        return read(wait(name) if name in memory.full else memory.ring[name].at[slot])

    def release_vectors():
        # A copy must not overwrite numbers that a thread still reads. If the tile ends with a
        # product that depends on these numbers, all of them have been read.
        if loaded and not kernel.body.ends_with_product:
            plgpu.commit_smem()
        if VECTORS in memory.free:
            plgpu.barrier_arrive(memory.free[VECTORS].at[slot])
        for name in kernel.body.late_vectors:
            if name not in loaded:
                wait(name)
            release(name)

    rows = pl.ds(warpgroup * config.rows, config.rows)

    def load_row_vector(name):
        return load(name, lambda ref: mosaic.load_per_row(ref.at[rows]))

    def load_entries(name):
        return load(name, lambda ref: mosaic.load_entries(ref.at[rows]))

    def skip(name):
        wait(name)
        release(name)

    def load_diagonals(name):
        window = pl.ds(warpgroup * config.rows, config.rows + config.columns)
        return load(name, lambda ref: registers.load_diagonals(ref.at[window], config.tile_shape))

    tile = Tile(
        row=row,
        column=index * config.columns,
        diagonal=kernel.origin + row - (index + 1) * config.columns,
        kind=kind,
        shape=config.tile_shape,
        wait=wait,
        release=release,
        load_vector=functools.partial(load, read=mosaic.load_per_column),
        load_row_vector=load_row_vector,
        load_diagonals=load_diagonals,
        wait_diagonals=wait_diagonals,
        load_entries=load_entries,
        skip=skip,
        ring_names=memory.ring,
    )
    return tile, release_vectors
