"""Buffers and barriers of a thread block in shared memory, and their number of bytes."""

import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp

from distattn_jax.attention.fused.gpu import mosaic
from distattn_jax.attention.fused.gpu.kernel_body import KernelBody, KernelInputs
from distattn_jax.attention.fused.gpu.tile_configs import TileConfig
from distattn_jax.attention.fused.kernel_calls import KernelCall

ALIGNMENT = 1024  # bytes: Mosaic GPU rounds up the size of each buffer to a multiple
BARRIER_BYTES = 8
VECTORS = "vectors"  # name of the barriers that vectors and entries share, except for late vectors


class SharedMemory(NamedTuple):
    """Buffers in shared memory and their barriers.

    Attributes:
      resident: Rows of each warpgroup. If the thread block computes several blocks of rows, each
        warpgroup has two buffers, because the rows of the next block arrive early.
      arrived: Barriers that complete when the rows of a warpgroup have been copied.
      ring: Ring buffers of the inputs that change with every tile: streamed columns, diagonals,
        moving rows and masks. Axis 0 of a buffer is the slot. One slot contains the part of an
        input that one tile needs. Diagonals and moving rows need several slots for each tile (see
        `count_reused_blocks`).
      full: Barriers that complete when a slot has been filled. Each matrix and each late vector has
        its own barriers. All other vectors and the mask share the barriers `VECTORS`, so that a
        tile waits for them only once.
      free: Barriers that complete when all warpgroups have released a slot. They have the same
        names as `full`.
      outputs: Buffers for the outputs of each warpgroup. An output may also overwrite the buffer of
        a resident matrix (see `_replaces_resident`). It then has no buffer here. If each warpgroup
        has two buffers for its rows, every output has a buffer here.
      operand_scratch: Buffer of each warpgroup for `mosaic.accumulate_products` in the interpreter.
        None on a real GPU.
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


class Kernel(NamedTuple):
    """Options, inputs, outputs and shared memory of a kernel, for all of its warpgroups.

    Attributes:
      call: Name, score map and schedule of the kernel.
      body: Computation of the kernel.
      config: Tile sizes, number of warpgroups and number of pipeline stages.
      origin: Index of the main diagonal: see `run_tile_loop`.
      inputs: References to the inputs in global memory.
      outputs: Dict from name to a reference to the output in global memory.
      memory: Buffers and barriers in shared memory.
    """

    call: KernelCall
    body: KernelBody
    config: TileConfig
    origin: int
    inputs: KernelInputs
    outputs: dict[str, Any]
    memory: SharedMemory


class KernelTypes(NamedTuple):
    """Arrays of a kernel that need buffers in shared memory, or the types of these arrays.

    Attributes:
      resident, streamed, diagonals, moving, entries: Inputs, as in `KernelInputs`.
      outputs: Outputs, except for `KernelBody.scattered`.
      scratch: Buffers of each warpgroup, as in `KernelBody.scratch`.
      late_vectors: Names of vectors that have their own barriers: see `KernelBody.late_vectors`.
    """

    resident: dict[str, Any]
    streamed: dict[str, Any]
    diagonals: dict[str, Any]
    moving: dict[str, Any]
    entries: dict[str, Any]
    outputs: dict[str, Any]
    scratch: Mapping[str, tuple[int, Any]]
    late_vectors: tuple[str, ...]


def collect_types(
    body: KernelBody, inputs: KernelInputs, output_types: dict[str, Any]
) -> KernelTypes:
    """Return the types of the arrays that a kernel copies to or from shared memory."""
    outputs = {name: x for name, x in output_types.items() if name not in body.scattered}
    return KernelTypes(*inputs[:5], outputs, body.scratch, body.late_vectors)


def allocate(types: KernelTypes, config: TileConfig, row_slots: int) -> SharedMemory:
    """Return the types of all shared-memory buffers and barriers of a thread block.

    Args:
      types: Arrays of the kernel.
      config: Tile sizes.
      row_slots: Number of blocks of rows that are in shared memory at the same time. It is 2 if a
        thread block computes several blocks, and otherwise 1.
    """
    dtype = next(iter(types.streamed.values())).dtype
    rows = functools.partial(_buffer, config.warpgroups, config.rows)
    columns = functools.partial(_buffer, config.stages, config.columns)
    tile = (config.stages, config.block_rows, config.columns)
    ring = {name: columns(array) for name, array in types.streamed.items()}
    ring |= {name: mosaic.plain_scratch(tile, x.dtype) for name, x in types.entries.items()}
    windows = dict.fromkeys(types.moving, config.block_rows)
    windows |= dict.fromkeys(types.diagonals, config.block_rows + config.columns)
    slots = dict.fromkeys([*ring, *windows], config.stages)
    for name, count in count_reused_blocks(types, config).items():
        slots[name], windows[name] = config.stages + count, config.rows
    for name, array in {**types.moving, **types.diagonals}.items():
        ring[name] = _buffer(slots[name], windows[name], array)
    vector_copies = _count_vector_copies(types)
    copies = {name: 1 for name in ring if name not in vector_copies}
    if vector_copies:
        copies[VECTORS], slots[VECTORS] = sum(vector_copies.values()), config.stages
    return SharedMemory(
        resident={
            name: _buffer(row_slots * config.warpgroups, config.rows, array)
            for name, array in types.resident.items()
        },
        arrived={name: _barrier(row_slots * config.warpgroups) for name in types.resident},
        ring=ring,
        full={name: _barrier(slots[name], count) for name, count in copies.items()},
        free={name: _barrier(slots[name], config.warpgroups) for name in copies},
        outputs={
            name: rows(array)
            for name, array in types.outputs.items()
            if row_slots > 1 or not _replaces_resident(name, array, types)
        },
        operand_scratch=mosaic.operand_scratch(
            (config.warpgroups, config.rows, config.columns), dtype
        ),
        scratch={
            name: mosaic.plain_scratch((config.warpgroups, count), kind)
            for name, (count, kind) in types.scratch.items()
        },
    )


def _buffer(count: int, length: int, array: Any) -> Any:
    """Return the type of `count` buffers, each for `length` rows of a matrix or a vector."""
    if len(array.shape) == 3:
        return mosaic.plain_scratch((count, length), array.dtype)
    return mosaic.matrix_scratch((count, length, array.shape[-1]), array.dtype)


def _barrier(count: int, arrivals: int = 1) -> Any:
    return plgpu.Barrier(num_arrivals=arrivals, num_barriers=count)


def _replaces_resident(name: str, output: jax.ShapeDtypeStruct, types: KernelTypes) -> bool:
    """Return True if an output can overwrite the resident matrix with the same name.

    The two matrices must have the same width and dtype.
    """
    rows = types.resident.get(name)
    return (
        rows is not None
        and len(rows.shape) == len(output.shape) == 4
        and (rows.dtype, rows.shape[-1]) == (output.dtype, output.shape[-1])
    )


def _count_vector_copies(types: KernelTypes) -> dict[str, int]:
    """Return a dict from name to number of copies per tile, for arrays with barriers `VECTORS`.

    These arrays are the mask and all vectors except for `KernelBody.late_vectors`.
    """
    columns = {**types.streamed, **types.moving}
    vectors = [name for name, x in columns.items() if len(x.shape) == 3]
    return {
        **{name: 1 for name in vectors if name not in types.late_vectors},
        **dict.fromkeys(types.entries, 1),
        # The window of a tile on the diagonals is copied in two parts.
        **{name: 2 for name, x in types.diagonals.items() if len(x.shape) == 3},
    }


def count_reused_blocks(inputs: KernelInputs | KernelTypes, config: TileConfig) -> dict[str, int]:
    """Return a dict from name to number of blocks that a tile reuses from the previous tile.

    The names are those of the inputs whose rows move by one block from tile to tile: matrices of
    diagonals and of moving rows. A block has `config.rows` rows and fills one slot of the ring
    buffer. A tile needs n + 1 blocks of such an input. The previous tile has already loaded n of
    them, so that each tile loads only one new block.
    """
    counts = {name: config.warpgroups for name, x in inputs.diagonals.items() if len(x.shape) == 4}
    moving = {name: config.warpgroups - 1 for name, x in inputs.moving.items() if len(x.shape) == 4}
    counts |= moving
    assert not counts or config.rows == config.columns, "reused blocks need square tiles"
    return counts


def count_bytes(memory: SharedMemory) -> int:
    """Return the number of bytes that all buffers and barriers occupy on a GPU."""
    total = 0
    for buffer in jax.tree.leaves(memory._replace(operand_scratch=None)):
        is_barrier = isinstance(buffer, plgpu.Barrier)
        if is_barrier:
            total += BARRIER_BYTES * math.prod(buffer.num_barriers)
        else:
            size = math.prod(buffer.shape) * jnp.dtype(buffer.dtype).itemsize
            total += size + -size % ALIGNMENT
    return total
