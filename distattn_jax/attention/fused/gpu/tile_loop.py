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

Each output entry is computed by one warpgroup, tile after tile. Hence there are no atomic
operations, and the results are deterministic.

The arrays of a kernel are stored in dicts by name. Matrices have shape (B, L, N, W), and vectors
have shape (B, N, L), where L is the number of rows or columns of the map. A matrix with fewer heads
is shared: groups of consecutive heads of the kernel use the same head of the matrix. Examples or
heads share a vector whose axis has size 1.
"""

import functools
import itertools
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax

from distattn_jax.attention.fused import varying
from distattn_jax.attention.fused.gpu import mosaic
from distattn_jax.attention.fused.gpu.tile_configs import TileConfig
from distattn_jax.attention.fused.runs import Schedule, Section

# Registers per thread. An SM has 64K registers: the memory warpgroup leaves most to the others.
COMPUTE_REGISTERS = {1: 240, 2: 240, 3: 160}  # by the number of compute warpgroups
MEMORY_REGISTERS = 24


class Tile(NamedTuple):
    """One tile of the score map inside a compute warpgroup.

    Attributes:
      row: Index of the first row.
      column: Index of the first column.
      section: Properties of the tile that the schedule guarantees.
      shape: Number of rows and number of columns.
      wait: Waits until a streamed matrix has arrived, and returns its reference in shared memory.
      release: Frees the slot of a streamed matrix for the next copy.
      load_vector: Waits for a streamed vector, loads it and frees its slot.
      load_row_vector: Waits for a vector of moving rows, loads it and frees its slot.
      load_diagonals: Waits for the diagonals of a tile, loads the number of each entry and frees
        the slot.
      wait_diagonals: Waits for the vectors of the diagonals of a square tile. Returns references to
        the vectors of the diagonals 0 to rows - 1 and rows to 2 rows - 1, where the entry
        (row, column) of the tile belongs to the diagonal row - column + columns.
      load_entries: Waits for the tile of an array of entries, loads it and frees its slot.
      skip: Waits for an array that this tile does not use, and frees its slot.
      streamed: Names of all arrays in the ring buffer.
    """

    row: jax.Array
    column: jax.Array
    section: Section
    shape: tuple[int, int]
    wait: Callable[[str], Any]
    release: Callable[[str], None]
    load_vector: Callable[[str], jax.Array]
    load_row_vector: Callable[[str], jax.Array]
    load_diagonals: Callable[[str], jax.Array]
    wait_diagonals: Callable[[str], tuple[Any, Any]]
    load_entries: Callable[[str], jax.Array]
    skip: Callable[[str], None]
    streamed: Collection[str]


class WarpgroupContext(NamedTuple):
    """Data of a compute warpgroup that are the same for all of its tiles.

    Attributes:
      row: Index of the first row of the warpgroup.
      resident: References to the resident matrices in shared memory. Matrices in
        `TileConfig.held` are tiles in registers on a GPU.
      vectors: Resident vectors in registers, one number per row.
      scalars: Scalars of the example and the head.
      skipped_sums: References to the sums over the tiles that the thread block skips, in global
        memory.
      operand_scratch: Buffer that `mosaic.accumulate_products` needs in the CPU interpreter. It is
        None on a GPU.
      global_rows: Returns a reference to consecutive rows of an array in global memory, given the
        name of the array, the first row and the number of rows. The array is an entry of
        `KernelInputs.gathered` or an output in `KernelBody.scattered`.
      scratch: Buffers of the warpgroup in shared memory, as in `KernelBody.scratch`.
    """

    row: jax.Array
    resident: dict[str, Any]
    vectors: dict[str, jax.Array]
    scalars: dict[str, tuple[jax.Array, ...]]
    skipped_sums: dict[str, Any]
    operand_scratch: Any
    global_rows: Callable[[str, jax.Array, int], Any]
    scratch: dict[str, Any]


class KernelBody(NamedTuple):
    """Computation of one kernel: three functions for a loop over tiles that updates a state.

    Attributes:
      initialize: Returns the state before the first tile.
      step: Returns the state after a tile, computed from the state before the tile.
      finish: Returns the outputs by name, computed from the state after the last tile.
      scattered: Names of further outputs. `step` writes their entries to global memory.
      scratch: Number of entries and dtype of each buffer that a warpgroup needs, by name.
    """

    initialize: Callable[[WarpgroupContext], Any]
    step: Callable[[WarpgroupContext, Tile, Any], Any]
    finish: Callable[[WarpgroupContext, Any], dict[str, jax.Array]]
    scattered: tuple[str, ...] = ()
    scratch: Mapping[str, tuple[int, Any]] = MappingProxyType({})


class KernelInputs(NamedTuple):
    """Input arrays of a kernel. All fields except `runs` are dicts by name.

    Attributes:
      resident: Matrices and vectors that belong to the rows of the score map.
      streamed: Matrices and vectors that belong to the columns of the score map.
      diagonals: Vectors of shape (B, N, D) and matrices of shape (B, D, N, W) that belong to the
        diagonals of the score map. Number `origin` + row - column belongs to the entry
        (row, column), where `origin` is an argument of `run_tile_loop`.
      moving: Matrices and vectors that belong to the rows of the score map, in a kernel whose
        blocks are blocks of diagonals. `resident` then belongs to the diagonals: number
        `origin` + row - column belongs to the entry (row, column). `moving` and `entries` have
        `count_leading_rows` additional rows at the start. The dict is empty in all other kernels.
      entries: Arrays with one number for each entry of the score map, shape (B, N, rows, columns).
        Examples or heads share an array whose axis has size 1.
      scalars: A few numbers for each example and head, shape (B, N, count).
      runs: Runs of tiles of the schedule, shape (B, N, blocks, runs, 2).
      skipped_sums: Sums over the tiles that each thread block skips, shape (B, N, blocks, W).
      gathered: Matrices that stay in global memory, where `KernelBody.step` reads single entries.
    """

    resident: dict[str, jax.Array]
    streamed: dict[str, jax.Array]
    diagonals: dict[str, jax.Array]
    moving: dict[str, jax.Array]
    entries: dict[str, jax.Array]
    scalars: dict[str, jax.Array]
    runs: jax.Array
    skipped_sums: dict[str, jax.Array]
    gathered: dict[str, jax.Array]


def count_leading_rows(config: TileConfig) -> int:
    """Return the number of rows before row 0 that `KernelInputs.moving` contains.

    The first tile of a block of diagonals may have rows before row 0 in all warpgroups but one.
    """
    return config.block_rows - config.rows


def run_tile_loop(
    body: KernelBody,
    inputs: KernelInputs,
    output_types: dict[str, jax.ShapeDtypeStruct],
    schedule: Schedule,
    config: TileConfig,
    name: str,
    origin: int = 0,
) -> dict[str, jax.Array]:
    """Run a kernel over all blocks of all heads, and return its outputs by name.

    Args:
      body: Computation of the kernel.
      inputs: Input arrays of the kernel.
      output_types: Shapes and dtypes of the outputs, by name.
      schedule: Sections of the runs, and their order. The kernel has one loop for each section, or
        for each run if the tiles are in the order of their columns.
      config: Tile sizes, number of warpgroups and number of pipeline stages.
      name: Name of the kernel in profiles.
      origin: Index of the diagonal row = column in `inputs.diagonals`. It is at least the number of
        columns of all tiles.
    """
    batch, heads, blocks, *_ = inputs.runs.shape
    copied = {name: x for name, x in output_types.items() if name not in body.scattered}

    def kernel(refs: KernelInputs, outputs: dict[str, Any], memory: _SharedMemory):
        grid_index = tuple(lax.axis_index(axis) for axis in ("example", "head", "block"))
        warpgroup = lax.axis_index("warpgroup")

        def read_run(i):
            return [_read_scalar(refs.runs, (*grid_index, i), end) for end in (0, 1)]

        @pl.when(warpgroup < config.warpgroups)
        def _():
            plgpu.set_max_registers(COMPUTE_REGISTERS[config.warpgroups], action="increase")
            _compute_tiles(
                body,
                refs,
                outputs,
                memory,
                grid_index,
                warpgroup,
                read_run,
                schedule,
                config,
                origin,
            )

        @pl.when(warpgroup == config.warpgroups)
        def _():
            plgpu.set_max_registers(MEMORY_REGISTERS, action="decrease")
            _copy_tiles(refs, memory, grid_index, read_run, schedule, config, origin)

    kernel.__name__ = name
    run = plgpu.kernel(
        kernel,
        out_type=output_types,
        scratch_types=(_allocate(body, inputs, copied, config),),
        grid=(batch, heads, blocks),
        grid_names=("example", "head", "block"),
        num_threads=config.warpgroups + 1,
        thread_name="warpgroup",
        **mosaic.kernel_options(),
    )
    return varying.mark_varying(run(inputs), varying.varying_axes(inputs))


class _SharedMemory(NamedTuple):
    """Buffers in shared memory and their barriers.

    Attributes:
      resident: Rows of each warpgroup.
      arrived: Barriers that complete when the rows of a warpgroup have been copied.
      ring: Slots for the streamed columns, for diagonals, for moving rows and for the tiles of
        arrays of entries.
      full: Barriers that complete when a slot has been filled.
      free: Barriers that complete when all warpgroups have released a slot.
      outputs: Outputs of each warpgroup, except for those that replace resident rows.
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


def _allocate(
    body: KernelBody,
    inputs: KernelInputs,
    output_types: dict[str, jax.ShapeDtypeStruct],
    config: TileConfig,
) -> _SharedMemory:
    """Return the types of all shared-memory buffers and barriers of a thread block."""

    def scratch(count: int, length: int, array: Any) -> Any:
        if len(array.shape) == 3:
            return mosaic.plain_scratch((count, length), array.dtype)
        return mosaic.matrix_scratch((count, length, array.shape[-1]), array.dtype)

    def barriers(names: Any, count: int, arrivals: int = 1) -> dict[str, Any]:
        return {name: plgpu.Barrier(num_arrivals=arrivals, num_barriers=count) for name in names}

    dtype = next(iter(inputs.streamed.values())).dtype
    rows = functools.partial(scratch, config.warpgroups, config.rows)
    columns = functools.partial(scratch, config.stages, config.columns)
    tile = (config.stages, config.block_rows, config.columns)
    ring = {name: columns(array) for name, array in inputs.streamed.items()}
    ring |= {name: mosaic.plain_scratch(tile, x.dtype) for name, x in inputs.entries.items()}
    full = barriers(ring, config.stages)
    free = barriers(ring, config.stages, arrivals=config.warpgroups)
    windows = dict.fromkeys(inputs.moving, config.block_rows)
    windows |= dict.fromkeys(inputs.diagonals, config.block_rows + config.columns)
    shared_blocks = _count_shared_blocks(inputs, config)
    for name, array in {**inputs.moving, **inputs.diagonals}.items():
        if name in shared_blocks:
            slots, length, copies = config.stages + shared_blocks[name], config.rows, 1
        else:
            slots, length, copies = (
                config.stages,
                windows[name],
                2 if name in inputs.diagonals else 1,
            )
        ring[name] = scratch(slots, length, array)
        full |= barriers([name], slots, arrivals=copies)
        free |= barriers([name], slots, arrivals=config.warpgroups)
    return _SharedMemory(
        resident={name: rows(array) for name, array in inputs.resident.items()},
        arrived=barriers(inputs.resident, config.warpgroups),
        ring=ring,
        full=full,
        free=free,
        outputs={
            name: rows(array)
            for name, array in output_types.items()
            if not _replaces_resident(name, array, inputs)
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


def _count_shared_blocks(inputs: KernelInputs, config: TileConfig) -> dict[str, int]:
    """Return the number of blocks that a tile shares with the previous tile, by array.

    The result contains the matrices of diagonals and of moving rows. Their blocks have as many rows
    as a tile. A tile of the next columns needs the blocks of the previous tile, except for one of
    them, and one new block. Each block is therefore copied once, and has a slot of its own.
    """
    counts = {name: config.warpgroups for name, x in inputs.diagonals.items() if len(x.shape) == 4}
    assert not counts or config.rows == config.columns, "diagonals with vectors need square tiles"
    moving = {name: config.warpgroups - 1 for name, x in inputs.moving.items() if len(x.shape) == 4}
    return counts | moving


def _read_scalar(ref: Any, index: tuple[Any, ...], i: int) -> jax.Array:
    """Read one number from global memory.

    Inside a `shard_map`, the type of the number lists the mesh axes over which the number varies.
    Kernels do not support such types. This function therefore adds a zero that is created inside
    the kernel: the type of the sum has no mesh axes.
    """
    return ref[*index, i] + jnp.zeros((), ref.dtype)


def _slice_rows(ref: Any, grid_index: tuple[jax.Array, ...], start: jax.Array, length: int) -> Any:
    """Return a reference to `length` rows of a matrix, or entries of a vector, of one head.

    Args:
      ref: Matrix of shape (B, L, N, W), or vector of shape (B, N, L). A matrix may have one
        example or fewer heads.
      grid_index: Indices of example, head and block.
      start: Index of the first row or entry.
      length: Number of rows or entries.
    """
    if len(ref.shape) == 3:
        return ref.at[*_shared_index(ref, grid_index), pl.ds(start, length)]
    example, head, _ = grid_index
    group_size = lax.axis_size("head") // ref.shape[2]
    if group_size > 1:
        head = lax.div(head, group_size)
    return ref.at[0 if ref.shape[0] == 1 else example, pl.ds(start, length), head]


def _slice_tile(
    ref: Any,
    grid_index: tuple[jax.Array, ...],
    row: jax.Array,
    column: jax.Array,
    config: TileConfig,
) -> Any:
    """Return a reference to one tile of an array of entries, with all rows of the block.

    Args:
      ref: Array of shape (B, N, rows, columns).
      grid_index: Indices of example, head and block.
      row: Index of the first row.
      column: Index of the first column.
      config: Tile sizes.
    """
    rows = pl.ds(row, config.block_rows)
    return ref.at[*_shared_index(ref, grid_index), rows, pl.ds(column, config.columns)]


def _shared_index(ref: Any, grid_index: tuple[jax.Array, ...]) -> tuple[Any, Any]:
    """Return the indices of example and head in an array that examples or heads may share."""
    example, head, _ = grid_index
    return (0 if ref.shape[0] == 1 else example, 0 if ref.shape[1] == 1 else head)


def _copy_tiles(refs, memory, grid_index, read_run, schedule, config, origin) -> None:
    """Run the memory warpgroup: copy the tiles of all runs into the ring buffer."""
    block_row = grid_index[2] * config.block_rows
    shared_blocks = _count_shared_blocks(refs, config)
    first = read_run(0)[0]  # With shared blocks, tiles are in the order of their columns.

    def copy_block(name, block):
        """Copy a block of diagonals or moving rows. Block 0 is the first that a tile needs."""
        ref, slots = (refs.diagonals | refs.moving)[name], memory.ring[name].shape[0]
        if name in refs.diagonals:
            start = origin + block_row - first * config.columns
            start += (shared_blocks[name] - 1 - block) * config.rows
        else:
            start = block_row + first * config.columns - origin + count_leading_rows(config)
            start += block * config.rows
        slot = lax.rem(jnp.int32(block), slots)

        @pl.when(block >= slots)
        def _():
            plgpu.barrier_wait(memory.free[name].at[slot])

        source = _slice_rows(ref, grid_index, start, config.rows)
        plgpu.copy_gmem_to_smem(source, memory.ring[name].at[slot], memory.full[name].at[slot])

    def copy_tile(tile, iteration):
        slot, column = lax.rem(iteration, config.stages), tile * config.columns
        first_row = block_row
        if refs.moving:
            first_row += column - origin + count_leading_rows(config)

        def wait_until_free(name):
            @pl.when(iteration >= config.stages)
            def _():
                plgpu.barrier_wait(memory.free[name].at[slot])

        sources = {
            name: _slice_rows(ref, grid_index, column, config.columns)
            for name, ref in refs.streamed.items()
        }
        for name, ref in refs.moving.items():
            if name not in shared_blocks:
                sources[name] = _slice_rows(ref, grid_index, first_row, config.block_rows)
        for name, ref in refs.entries.items():
            sources[name] = _slice_tile(ref, grid_index, first_row, column, config)
        for name, source in sources.items():
            wait_until_free(name)
            plgpu.copy_gmem_to_smem(source, memory.ring[name].at[slot], memory.full[name].at[slot])
        for name, ref in refs.diagonals.items():
            if name in shared_blocks:
                continue
            wait_until_free(name)
            start = origin + block_row - (tile + 1) * config.columns
            # The window is copied in two parts, because a copy is limited to 256 rows.
            for first_row, rows in ((0, config.block_rows), (config.block_rows, config.columns)):
                part = _slice_rows(ref, grid_index, start + first_row, rows)
                buffer = memory.ring[name].at[slot, pl.ds(first_row, rows)]
                plgpu.copy_gmem_to_smem(part, buffer, memory.full[name].at[slot])
        for name, count in shared_blocks.items():
            copy_block(name, iteration + count)

    for name, count in shared_blocks.items():
        for block in range(count):
            copy_block(name, block)

    def step(tile, iteration, state):
        copy_tile(tile, iteration)
        return state

    count = len(schedule.sections)
    if schedule.is_in_column_order:
        lax.fori_loop(first, read_run(count - 1)[1], lambda i, _: copy_tile(i, i - first), None)
    else:
        _visit_tiles(read_run, range(count), step, jnp.int32(0), ())


def _visit_tiles(read_run, runs, step, iteration, state):
    """Return the number of the next iteration and the state after all tiles of some runs.

    Args:
      read_run: Returns the first tile and the end of a run, given its index.
      runs: Range of the indices of the runs.
      step: Returns the state after a tile, given the index of the tile, the number of the
        iteration and the state before the tile.
      iteration: Number of tiles before the first run.
      state: State before the first tile.
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


def _compute_tiles(
    body, refs, outputs, memory, grid_index, warpgroup, read_run, schedule, config, origin
) -> None:
    """Run one compute warpgroup: load its rows, process all tiles and write its outputs."""
    row = grid_index[2] * config.block_rows + warpgroup * config.rows
    for name, ref in refs.resident.items():
        rows = _slice_rows(ref, grid_index, row, config.rows)
        buffer, arrived = memory.resident[name].at[warpgroup], memory.arrived[name].at[warpgroup]
        plgpu.copy_gmem_to_smem(rows, buffer, arrived)
    context = _make_context(refs, outputs, memory, grid_index, warpgroup, row, config.held)

    shared_blocks = _count_shared_blocks(refs, config)
    for name, count in shared_blocks.items():
        for block in range(count):
            plgpu.barrier_wait(memory.full[name].at[block])
    first = read_run(0)[0]
    iteration, state = jnp.int32(0), body.initialize(context)
    sections = enumerate(schedule.sections)
    for section, equal in itertools.groupby(sections, key=lambda pair: pair[1]):

        def step(index, iteration, state, section=section):
            first_row = row + index * config.columns - origin if refs.moving else row
            tile = _make_tile(
                memory, first_row, warpgroup, index, iteration, section, config, shared_blocks
            )
            return body.step(context, tile, state)

        indices = [i for i, _ in equal]
        if schedule.is_in_column_order:
            # Two loops share the number between them, and all loops share `first`.
            is_last = indices[-1] + 1 == len(schedule.sections)
            end = read_run(indices[-1])[1] if is_last else read_run(indices[-1] + 1)[0]
            state = lax.fori_loop(
                read_run(indices[0])[0],
                end,
                lambda index, state, step=step: step(index, index - first, state),
                state,
            )
        else:
            runs = range(indices[0], indices[-1] + 1)
            iteration, state = _visit_tiles(read_run, runs, step, iteration, state)

    results = body.finish(context, state)
    if not memory.outputs.keys() >= results.keys():
        plgpu.commit_smem()  # complete the reads of resident rows that outputs replace
    buffers = {name: (memory.resident | memory.outputs)[name].at[warpgroup] for name in results}
    for name, value in results.items():
        buffers[name][...] = value.astype(outputs[name].dtype)
    plgpu.commit_smem()
    for name, buffer in buffers.items():
        rows = _slice_rows(outputs[name], grid_index, row, config.rows)
        plgpu.copy_smem_to_gmem(buffer, rows)
    plgpu.wait_smem_to_gmem(0)


def _make_context(refs, outputs, memory, grid_index, warpgroup, row, held) -> WarpgroupContext:
    """Return the context of a warpgroup, after waiting for the copy of its rows."""
    scalars = {
        name: tuple(_read_scalar(ref, grid_index[:2], i) for i in range(ref.shape[-1]))
        for name, ref in refs.scalars.items()
    }
    for barrier in memory.arrived.values():
        plgpu.barrier_wait(barrier.at[warpgroup])
    buffers = {name: ref.at[warpgroup] for name, ref in memory.resident.items()}
    scratch = memory.operand_scratch

    def global_rows(name, start, length):
        ref = refs.gathered[name] if name in refs.gathered else outputs[name]
        return _slice_rows(ref, grid_index, start, length)

    return WarpgroupContext(
        row=row,
        resident={
            name: mosaic.load_operand(ref) if name in held else ref
            for name, ref in buffers.items()
            if len(ref.shape) == 2
        },
        vectors={
            name: mosaic.load_per_row(ref) for name, ref in buffers.items() if len(ref.shape) == 1
        },
        scalars=scalars,
        skipped_sums={name: ref.at[*grid_index] for name, ref in refs.skipped_sums.items()},
        operand_scratch=None if scratch is None else scratch.at[warpgroup],
        global_rows=global_rows,
        scratch={name: ref.at[warpgroup] for name, ref in memory.scratch.items()},
    )


def _make_tile(memory, row, warpgroup, index, iteration, section, config, shared_blocks) -> Tile:
    """Return the tile at index `index`, which the loop processes in iteration `iteration`."""

    def find_slot(name, block):
        return lax.rem(iteration + block, memory.ring[name].shape[0])

    def wait(name):
        # A tile waits for its last block, and releases its first block. Warpgroup i uses block i.
        count = shared_blocks.get(name, 0)
        plgpu.barrier_wait(memory.full[name].at[find_slot(name, count)])
        return memory.ring[name].at[find_slot(name, warpgroup if count else 0)]

    def wait_diagonals(name):
        count = shared_blocks[name]
        plgpu.barrier_wait(memory.full[name].at[find_slot(name, count)])
        blocks = (find_slot(name, count - warpgroup - i) for i in (0, 1))
        lower, upper = (memory.ring[name].at[block] for block in blocks)
        return lower, upper

    def release(name):
        plgpu.barrier_arrive(memory.free[name].at[find_slot(name, 0)])

    def load(name, read):
        loaded = read(wait(name))
        plgpu.commit_smem()  # complete the read before the next copy overwrites the slot
        release(name)
        return loaded

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
        return load(name, lambda ref: mosaic.load_diagonals(ref.at[window], config.tile_shape))

    return Tile(
        row=row,
        column=index * config.columns,
        section=section,
        shape=config.tile_shape,
        wait=wait,
        release=release,
        load_vector=functools.partial(load, read=mosaic.load_per_column),
        load_row_vector=load_row_vector,
        load_diagonals=load_diagonals,
        wait_diagonals=wait_diagonals,
        load_entries=load_entries,
        skip=skip,
        streamed=memory.ring,
    )
