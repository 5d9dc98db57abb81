"""Buffers and barriers of a thread block in shared memory, and their number of bytes."""

import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp

from distattn_jax.attention.fused.gpu import mosaic, wgmma
from distattn_jax.attention.fused.gpu.kernel_body import (
    TABLE_PADDING,
    KernelBody,
    KernelInputs,
)
from distattn_jax.attention.fused.gpu.tile_configs import TileConfig
from distattn_jax.attention.fused.kernel_calls import KernelCall

ALIGNMENT = 1024  # bytes: Mosaic GPU rounds up the size of each buffer to a multiple
BARRIER_BYTES = 8
VECTORS = "vectors"  # name of the barriers that vectors and entries share, except for late vectors


class SharedMemory(NamedTuple):
    """Buffers in shared memory and their barriers. The dicts are from name to buffer or barriers.

    Attributes:
      resident: Inputs that stay in shared memory while a warpgroup computes all tiles of its rows.
        Element w of axis 0 of a buffer contains the rows of warpgroup w. If a thread block computes
        several blocks of rows, axis 0 has two elements for each warpgroup, because the rows of the
        next block are copied before the current block ends.
      arrived: One barrier for each element of axis 0 of `resident`. It completes when the rows of
        the warpgroup have been copied.
      ring: Ring buffers of the inputs that change with every tile: streamed columns, diagonals,
        moving rows and masks. Axis 0 of a buffer is the slot. One slot contains the part of an
        input that one tile needs. A matrix of diagonals or of moving rows needs several slots for
        each tile: see `count_reused_blocks`.
      full: One barrier for each slot of a ring buffer. It completes when the slot has been filled.
        Each matrix and each late vector has its own barriers. All other vectors and the mask share
        the barriers with the name `VECTORS`, so that a tile waits for them only once.
      free: Barriers under the same names as in `full`. A barrier completes when all warpgroups have
        released the slot.
      outputs: Buffers for the outputs of each warpgroup. An output has no buffer here if it
        overwrites the buffer of a resident input: see `replaced_input`. This is possible only if
        each warpgroup has one element on axis 0 of `resident`.
      operand_scratch: Buffer of each warpgroup for `WgmmaProducts` in the interpreter.
        None on a real GPU.
      scratch: Buffers of each warpgroup, as in `KernelBody.scratch`.
      tables: Tables of `KernelInputs.tables`, which all warpgroups share. If a thread block
        computes several blocks of rows, axis 0 has two elements, which successive blocks use in
        turn.
      tables_full: One barrier for each element of axis 0 of `tables`. It completes when the table
        has been copied.
      tables_free: Like `tables_full`. The barrier completes when all warpgroups have finished the
        block of rows.
    """

    resident: dict[str, Any]
    arrived: dict[str, Any]
    ring: dict[str, Any]
    full: dict[str, Any]
    free: dict[str, Any]
    outputs: dict[str, Any]
    operand_scratch: Any
    scratch: dict[str, Any]
    tables: dict[str, Any]
    tables_full: dict[str, Any]
    tables_free: dict[str, Any]


class Kernel(NamedTuple):
    """Options, inputs, outputs and shared memory of a kernel, as all of its warpgroups see them.

    Attributes:
      call: Name, score map and schedule of the kernel.
      body: Computation of the kernel.
      config: Tile sizes, number of warpgroups and number of pipeline stages.
      origin: Index of the main diagonal of the score map: see `run_tile_loop`.
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
    """Types of the arrays of a kernel that need buffers in shared memory.

    The dicts are from name to type, except for `scratch`. They may contain the arrays themselves
    instead of their types.

    Attributes:
      resident, streamed, diagonals, moving, entries: Inputs, as in `KernelInputs`.
      outputs: Outputs, except for those in `KernelBody.scattered` and `KernelBody.summed`.
      scratch: Buffers of each warpgroup, as in `KernelBody.scratch`.
      late_vectors: Names of vectors that have their own barriers: see `KernelBody.late_vectors`.
      tables: Inputs, as in `KernelInputs`.
    """

    resident: dict[str, Any]
    streamed: dict[str, Any]
    diagonals: dict[str, Any]
    moving: dict[str, Any]
    entries: dict[str, Any]
    outputs: dict[str, Any]
    scratch: Mapping[str, tuple[tuple[int, ...], Any]]
    late_vectors: tuple[str, ...]
    tables: dict[str, Any]


def collect_types(
    body: KernelBody, inputs: KernelInputs, output_types: dict[str, Any]
) -> KernelTypes:
    """Return the arrays that a kernel copies to or from shared memory.

    Args:
      output_types: Dict from name to type of all outputs of the kernel.
    """
    in_global_memory = (*body.scattered, *body.summed)
    outputs = {name: x for name, x in output_types.items() if name not in in_global_memory}
    return KernelTypes(*inputs[:5], outputs, body.scratch, body.late_vectors, inputs.tables)


def allocate(types: KernelTypes, config: TileConfig, row_slots: int) -> SharedMemory:
    """Return the types of all shared-memory buffers and barriers of a thread block.

    Args:
      types: Types of the arrays that need buffers.
      config: Tile sizes, number of warpgroups and number of pipeline stages.
      row_slots: Number of blocks of rows that are in shared memory at the same time. It is 1, or 2
        if a thread block computes several blocks of rows, one after the other.
    """
    dtype = next(iter(types.streamed.values())).dtype
    rows = functools.partial(make_buffer, config.warpgroups, config.rows)
    tile = (config.stages, config.block_rows, config.columns)
    slots = {
        name: config.count_slots(name)
        for name in (*types.streamed, *types.entries, *types.moving, *types.diagonals)
    }
    ring = {name: make_buffer(slots[name], config.columns, x) for name, x in types.streamed.items()}
    ring |= {name: mosaic.plain_scratch(tile, x.dtype) for name, x in types.entries.items()}
    windows = dict.fromkeys(types.moving, config.block_rows)
    windows |= dict.fromkeys(types.diagonals, config.block_rows + config.columns)
    for name, count in count_reused_blocks(types, config).items():
        slots[name], windows[name] = slots[name] + count, config.rows
    for name, array in {**types.moving, **types.diagonals}.items():
        ring[name] = make_buffer(slots[name], windows[name], array)
    vector_copies = _count_vector_copies(types)
    copies = {name: 1 for name in ring if name not in vector_copies}
    if vector_copies:
        copies[VECTORS], slots[VECTORS] = sum(vector_copies.values()), config.stages
    return SharedMemory(
        resident={
            name: make_buffer(row_slots * config.warpgroups, config.rows, array)
            for name, array in types.resident.items()
        },
        arrived={name: _barrier(row_slots * config.warpgroups) for name in types.resident},
        ring=ring,
        full={name: _barrier(slots[name], count) for name, count in copies.items()},
        free={name: _barrier(slots[name], config.warpgroups) for name in copies},
        outputs={
            name: rows(array)
            for name, array in types.outputs.items()
            if row_slots > 1 or replaced_input(name, types) is None
        },
        operand_scratch=wgmma.operand_scratch(
            (config.warpgroups, config.rows, config.columns), dtype
        ),
        scratch={
            name: mosaic.plain_scratch((config.warpgroups, *shape), kind)
            for name, (shape, kind) in types.scratch.items()
        },
        tables={
            name: mosaic.table_scratch((row_slots, x.shape[1] - TABLE_PADDING, x.shape[3]), x.dtype)
            for name, x in types.tables.items()
        },
        tables_full={name: _barrier(row_slots) for name in types.tables},
        tables_free={name: _barrier(row_slots, config.warpgroups) for name in types.tables},
    )


def make_buffer(count: int, length: int, array: Any) -> Any:
    """Return the type of a shared-memory buffer with `count` parts on axis 0.

    Each part holds `length` rows of a matrix, or `length` numbers of a vector.

    Args:
      array: Matrix with four axes or vector with three axes, or its type.
    """
    if len(array.shape) == 3:
        return mosaic.plain_scratch((count, length), array.dtype)
    return mosaic.matrix_scratch((count, length, array.shape[-1]), array.dtype)


def _barrier(count: int, arrivals: int = 1) -> Any:
    return plgpu.Barrier(num_arrivals=arrivals, num_barriers=count)


def replaced_input(name: str, types: KernelTypes) -> str | None:
    """Return the name of the resident input that an output overwrites in shared memory.

    The input has the same name as the output. For the output `values` of the kernel `forward`, it
    is `query`. Both must be matrices with the same width and dtype. Otherwise, return None.

    Args:
      name: Name of the output.
    """
    replaced = "query" if name == "values" else name
    rows, output = types.resident.get(replaced), types.outputs[name]
    is_replaced = (
        rows is not None
        and len(rows.shape) == len(output.shape) == 4
        and (rows.dtype, rows.shape[-1]) == (output.dtype, output.shape[-1])
    )
    return replaced if is_replaced else None


def _count_vector_copies(types: KernelTypes) -> dict[str, int]:
    """Return the number of copies per tile, for the arrays that share the barriers `VECTORS`.

    A copy moves a part of an array from global to shared memory. The result is a dict from name to
    number. The arrays are the mask and all vectors except for `KernelBody.late_vectors`.
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
    """Return the number of slots of a ring buffer that a tile reuses from the previous tile.

    The result is a dict from name to number n. It contains the matrices in `inputs.diagonals` and
    `inputs.moving`. The matrices are copied in blocks of `config.rows` rows. Each block fills one
    slot of the ring buffer. For a tile, the warpgroups of a thread block together need n + 1
    successive blocks. For the next tile, these n + 1 blocks move on by one block. Hence n of them
    are already in shared memory, and only one new block must be copied. For the first tile, all
    n + 1 blocks are copied.
    """
    counts = {name: config.warpgroups for name, x in inputs.diagonals.items() if len(x.shape) == 4}
    moving = {name: config.warpgroups - 1 for name, x in inputs.moving.items() if len(x.shape) == 4}
    counts |= moving
    assert not counts or config.rows == config.columns, "reused blocks need square tiles"
    return counts


def count_bytes(memory: SharedMemory) -> int:
    """Return the number of bytes of shared memory that all buffers and barriers take on a GPU."""
    total = 0
    for buffer in jax.tree.leaves(memory._replace(operand_scratch=None)):
        is_barrier = isinstance(buffer, plgpu.Barrier)
        if is_barrier:
            total += BARRIER_BYTES * math.prod(buffer.num_barriers)
        else:
            size = math.prod(buffer.shape) * jnp.dtype(buffer.dtype).itemsize
            total += size + -size % ALIGNMENT
    return total
