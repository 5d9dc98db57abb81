"""Buffers and barriers of a thread block in shared memory."""

import functools
from typing import Any, NamedTuple

import jax
import jax.experimental.pallas.mosaic_gpu as plgpu

from distattn_jax.attention.fused.gpu import mosaic
from distattn_jax.attention.fused.gpu.kernel_body import KernelBody, KernelInputs
from distattn_jax.attention.fused.gpu.tile_configs import TileConfig

VECTORS = "vectors"  # name of the barriers that vectors and entries share, except for late vectors


class SharedMemory(NamedTuple):
    """Buffers in shared memory and their barriers.

    Attributes:
      resident: Rows of each warpgroup. If the thread block computes several blocks of rows, each
        warpgroup has two buffers, because the rows of the next block arrive early.
      arrived: Barriers that complete when the rows of a warpgroup have been copied.
      ring: Slots for the streamed columns, for diagonals, for moving rows and for the tiles of
        arrays of entries.
      full: Barriers that complete when a slot has been filled. Each matrix and each late vector has
        its own barriers. All other vectors and entries share the barriers `VECTORS`, so that a tile
        waits for them only once.
      free: Barriers that complete when all warpgroups have released a slot, with the same names.
      outputs: Outputs of each warpgroup, except for those that replace resident rows. If there are
        two buffers for resident rows, no output replaces them.
      operand_scratch: Buffer of each warpgroup for `mosaic.accumulate_products`, or None on a GPU.
      scratch: Buffers of each warpgroup, as in `KernelBody.scratch`.
    """

    resident: dict[str, Any]
    arrived: dict[str, Any]
    ring: dict[str, Any]
    full: dict[str, Any]
    free: dict[str, Any]
    outputs: dict[str, Any]
    operand_scratch: Any
    scratch: dict[str, Any]


def allocate(
    body: KernelBody,
    inputs: KernelInputs,
    output_types: dict[str, jax.ShapeDtypeStruct],
    config: TileConfig,
    row_slots: int,
) -> SharedMemory:
    """Return the types of all shared-memory buffers and barriers of a thread block.

    Args:
      body: Computation of the kernel.
      inputs: Input arrays of the kernel.
      output_types: Shapes and dtypes of the outputs, by name.
      config: Tile sizes.
      row_slots: Number of blocks whose rows are in shared memory at the same time.
    """

    def scratch(count: int, length: int, array: Any) -> Any:
        if len(array.shape) == 3:
            return mosaic.plain_scratch((count, length), array.dtype)
        return mosaic.matrix_scratch((count, length, array.shape[-1]), array.dtype)

    def barrier(count: int, arrivals: int = 1) -> Any:
        return plgpu.Barrier(num_arrivals=arrivals, num_barriers=count)

    dtype = next(iter(inputs.streamed.values())).dtype
    rows = functools.partial(scratch, config.warpgroups, config.rows)
    columns = functools.partial(scratch, config.stages, config.columns)
    tile = (config.stages, config.block_rows, config.columns)
    ring = {name: columns(array) for name, array in inputs.streamed.items()}
    ring |= {name: mosaic.plain_scratch(tile, x.dtype) for name, x in inputs.entries.items()}
    windows = dict.fromkeys(inputs.moving, config.block_rows)
    windows |= dict.fromkeys(inputs.diagonals, config.block_rows + config.columns)
    slots = dict.fromkeys([*ring, *windows], config.stages)
    for name, count in count_reused_blocks(inputs, config).items():
        slots[name], windows[name] = config.stages + count, config.rows
    for name, array in {**inputs.moving, **inputs.diagonals}.items():
        ring[name] = scratch(slots[name], windows[name], array)
    vector_copies = _count_vector_copies(body, inputs)
    copies = {name: 1 for name in ring if name not in vector_copies}
    if vector_copies:
        copies[VECTORS], slots[VECTORS] = sum(vector_copies.values()), config.stages
    return SharedMemory(
        resident={
            name: scratch(row_slots * config.warpgroups, config.rows, array)
            for name, array in inputs.resident.items()
        },
        arrived={name: barrier(row_slots * config.warpgroups) for name in inputs.resident},
        ring=ring,
        full={name: barrier(slots[name], count) for name, count in copies.items()},
        free={name: barrier(slots[name], config.warpgroups) for name in copies},
        outputs={
            name: rows(array)
            for name, array in output_types.items()
            if row_slots > 1 or not _replaces_resident(name, array, inputs)
        },
        operand_scratch=mosaic.operand_scratch(
            (config.warpgroups, config.rows, config.columns), dtype
        ),
        scratch={
            name: mosaic.plain_scratch((config.warpgroups, count), kind)
            for name, (count, kind) in body.scratch.items()
        },
    )


def _replaces_resident(name: str, output: jax.ShapeDtypeStruct, inputs: KernelInputs) -> bool:
    """Return True if an output uses the buffer of the resident matrix with the same name."""
    rows = inputs.resident.get(name)
    return (
        rows is not None
        and len(rows.shape) == len(output.shape) == 4
        and (rows.dtype, rows.shape[-1]) == (output.dtype, output.shape[-1])
    )


def _count_vector_copies(body: KernelBody, inputs: KernelInputs) -> dict[str, int]:
    """Return the number of copies per tile of each array that uses the barriers `VECTORS`."""
    columns = {**inputs.streamed, **inputs.moving}
    vectors = [name for name, x in columns.items() if len(x.shape) == 3]
    return {
        **{name: 1 for name in vectors if name not in body.late_vectors},
        **dict.fromkeys(inputs.entries, 1),
        # The window of a tile on the diagonals is copied in two parts.
        **{name: 2 for name, x in inputs.diagonals.items() if len(x.shape) == 3},
    }


def count_reused_blocks(inputs: KernelInputs, config: TileConfig) -> dict[str, int]:
    """Return the number of blocks that a tile reuses from the previous tile, by array.

    The result contains the matrices of diagonals and of moving rows. Their blocks have as many rows
    as a tile. A tile of the next columns needs the blocks of the previous tile, except for one of
    them, and one new block. Each block is therefore copied once, and has a slot of its own.
    """
    counts = {name: config.warpgroups for name, x in inputs.diagonals.items() if len(x.shape) == 4}
    moving = {name: config.warpgroups - 1 for name, x in inputs.moving.items() if len(x.shape) == 4}
    counts |= moving
    assert not counts or config.rows == config.columns, "reused blocks need square tiles"
    return counts
