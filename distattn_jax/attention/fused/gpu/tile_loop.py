"""The one loop of all passes: some rows stay, tiles of columns stream by.

A pass is about a map of scores, one row per query and one column per key, or turned. A block of it,
`Block.rows` rows for each of a few warpgroups, stays in shared memory; one more warpgroup brings
the columns, tile by tile, into a ring of `Block.stages` places, while the others compute.

    rows stay      columns stream    the pass gives
    queries        keys              values; gradients of the queries and of the variant
    keys           queries           gradients of keys and values; what each key receives

Nothing is added up between blocks: every number is computed by one warpgroup, in one order.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax

from distattn_jax.attention.fused import varying
from distattn_jax.attention.fused.gpu import mosaic
from distattn_jax.attention.fused.schedule import Section

COMPUTE_REGISTERS = {2: 240, 3: 160}  # of a thread, by how many warpgroups compute
MEMORY_REGISTERS = 24


class Block(NamedTuple):
    """How much is computed at once."""

    rows: int
    columns: int
    warpgroups: int = 2
    stages: int = 2

    @property
    def tile(self) -> tuple[int, int]:
        """What a warpgroup computes at once."""
        return self.rows, self.columns

    @property
    def height(self) -> int:
        """Rows that stay, of all warpgroups."""
        return self.rows * self.warpgroups


class Tile(NamedTuple):
    """One tile of the map, as a warpgroup sees it.

    Attributes:
      row: number of its first row.
      column: number of its first column.
      section: what is known of it in advance.
      shape: rows and columns.
      take: waits for what streams by, by name: tiles in shared memory.
      done: says that a streamed tile may be overwritten.
      take_vector: waits for a streamed vector, and loads it: one number per column.
    """

    row: jax.Array
    column: jax.Array
    section: Section
    shape: tuple[int, int]
    take: Callable[[str], Any]
    done: Callable[[str], None]
    take_vector: Callable[[str], jax.Array]


class Place(NamedTuple):
    """What a warpgroup has at hand all the time.

    Attributes:
      row: number of its first row.
      resident: what stays, by name: tiles in shared memory.
      vectors: what stays, by name: one number per row.
      scalars: of this example and head, by name.
      far: refs of what belongs to the whole block, by name.
      stage: for `mosaic.add_products`.
    """

    row: jax.Array
    resident: dict[str, Any]
    vectors: dict[str, jax.Array]
    scalars: dict[str, tuple[jax.Array, ...]]
    far: dict[str, Any]
    stage: Any


class Pass(NamedTuple):
    """What is computed.

    Attributes:
      start: the first state.
      step: from tile to tile the next state.
      finish: the outputs, from the last state.
    """

    start: Callable[[Place], Any]
    step: Callable[[Place, Tile, Any], Any]
    finish: Callable[[Place, Any], dict[str, jax.Array]]


class Arrays(NamedTuple):
    """What a pass reads: matrices are (B, L, N, W), vectors (B, N, L).

    Attributes:
      resident: of the rows.
      streamed: of the columns.
      scalars: (B, N, any), read one by one.
      ranges: (B, N, blocks, sections + 1), from tile to tile.
      far: (B, N, blocks, W), a vector for each block.
    """

    resident: dict[str, jax.Array]
    streamed: dict[str, jax.Array]
    scalars: dict[str, jax.Array]
    ranges: jax.Array
    far: dict[str, jax.Array]


def sweep(
    way: Pass,
    arrays: Arrays,
    outputs: dict[str, jax.ShapeDtypeStruct],
    sections: Sequence[Section],
    block: Block,
    name: str,
) -> dict[str, jax.Array]:
    """Runs a pass over all blocks of all heads."""
    batch, heads, blocks, _ = arrays.ranges.shape

    def kernel(refs: Arrays, outs: dict[str, Any], memory: _Memory):
        at = tuple(lax.axis_index(axis) for axis in ("example", "head", "block"))
        warpgroup = lax.axis_index("warpgroup")
        bound = functools.partial(_number, refs.ranges, at)

        @pl.when(warpgroup < block.warpgroups)
        def _():
            plgpu.set_max_registers(COMPUTE_REGISTERS[block.warpgroups], action="increase")
            _compute(way, refs, outs, memory, at, warpgroup, bound, sections, block)

        @pl.when(warpgroup == block.warpgroups)
        def _():
            plgpu.set_max_registers(MEMORY_REGISTERS, action="decrease")
            _bring(refs, memory, at, bound(0), bound(len(sections)), block)

    kernel.__name__ = name
    run = plgpu.kernel(
        kernel,
        out_type=outputs,
        scratch_types=(_memory(arrays, outputs, block),),
        grid=(batch, heads, blocks),
        grid_names=("example", "head", "block"),
        num_threads=block.warpgroups + 1,
        thread_name="warpgroup",
        **mosaic.compiled_how(),
    )
    return varying.over(varying.axes_of(arrays), run(arrays))


class _Memory(NamedTuple):
    """Shared memory and its barriers."""

    resident: dict[str, Any]
    arrived: dict[str, Any]
    ring: dict[str, Any]
    full: dict[str, Any]
    free: dict[str, Any]
    outputs: dict[str, Any]
    stage: Any


def _memory(arrays: Arrays, outputs: dict[str, jax.ShapeDtypeStruct], block: Block) -> _Memory:
    def scratch(count: int, length: int, array: Any) -> Any:
        if len(array.shape) == 3:
            return mosaic.vector_memory((count, length))
        return mosaic.matrix_memory((count, length, array.shape[-1]), array.dtype)

    def barriers(names: Any, count: int, arrivals: int = 1) -> dict[str, Any]:
        return {name: plgpu.Barrier(num_arrivals=arrivals, num_barriers=count) for name in names}

    dtype = next(iter(arrays.streamed.values())).dtype
    rows = functools.partial(scratch, block.warpgroups, block.rows)
    columns = functools.partial(scratch, block.stages, block.columns)
    return _Memory(
        resident={name: rows(array) for name, array in arrays.resident.items()},
        arrived=barriers(arrays.resident, block.warpgroups),
        ring={name: columns(array) for name, array in arrays.streamed.items()},
        full=barriers(arrays.streamed, block.stages),
        free=barriers(arrays.streamed, block.stages, arrivals=block.warpgroups),
        outputs={name: rows(array) for name, array in outputs.items()},
        stage=mosaic.stage_memory((block.warpgroups, block.rows, block.columns), dtype),
    )


def _number(ref: Any, at: tuple[jax.Array, ...], i: int) -> jax.Array:
    """Here a shard_map around all this is forgotten: what is added has not heard of it."""
    return ref[*at, i] + jnp.zeros((), ref.dtype)


def _part(ref: Any, at: tuple[jax.Array, ...], start: jax.Array, length: int) -> Any:
    """Rows or columns of one head of one example."""
    example, head, _ = at
    if len(ref.shape) == 3:
        return ref.at[example, head, pl.ds(start, length)]
    return ref.at[example, pl.ds(start, length), head]


def _bring(refs, memory, at, first, last, block) -> None:
    """The warpgroup that brings the columns."""

    def bring(tile, _):
        turn = tile - first
        slot = lax.rem(turn, block.stages)
        for name, ref in refs.streamed.items():

            @pl.when(turn >= block.stages)
            def _(name=name):
                plgpu.barrier_wait(memory.free[name].at[slot])

            part = _part(ref, at, tile * block.columns, block.columns)
            plgpu.copy_gmem_to_smem(part, memory.ring[name].at[slot], memory.full[name].at[slot])

    lax.fori_loop(first, last, bring, None)


def _compute(way, refs, outs, memory, at, warpgroup, bound, sections, block) -> None:
    """A warpgroup that computes."""
    row = at[2] * block.height + warpgroup * block.rows
    for name, ref in refs.resident.items():
        part = _part(ref, at, row, block.rows)
        here, arrived = memory.resident[name].at[warpgroup], memory.arrived[name].at[warpgroup]
        plgpu.copy_gmem_to_smem(part, here, arrived)
    scalars = {
        name: tuple(_number(ref, at[:2], i) for i in range(ref.shape[-1]))
        for name, ref in refs.scalars.items()
    }
    for barrier in memory.arrived.values():
        plgpu.barrier_wait(barrier.at[warpgroup])
    here = {name: ref.at[warpgroup] for name, ref in memory.resident.items()}
    place = Place(
        row=row,
        resident={name: ref for name, ref in here.items() if len(ref.shape) == 2},
        vectors={name: mosaic.load_rows(ref) for name, ref in here.items() if len(ref.shape) == 1},
        scalars=scalars,
        far={name: ref.at[*at] for name, ref in refs.far.items()},
        stage=None if memory.stage is None else memory.stage.at[warpgroup],
    )

    first, state = bound(0), way.start(place)
    for i, section in enumerate(sections):

        def step(number, state, section=section):
            tile = _tile_of(memory, row, number, number - first, section, block)
            return way.step(place, tile, state)

        state = lax.fori_loop(bound(i), bound(i + 1), step, state)

    for name, value in way.finish(place, state).items():
        memory.outputs[name].at[warpgroup][...] = value.astype(outs[name].dtype)
    plgpu.commit_smem()
    for name, out in outs.items():
        plgpu.copy_smem_to_gmem(memory.outputs[name].at[warpgroup], _part(out, at, row, block.rows))
    plgpu.wait_smem_to_gmem(0)


def _tile_of(memory, row, number, turn, section, block) -> Tile:
    slot = lax.rem(turn, block.stages)

    def take(name):
        plgpu.barrier_wait(memory.full[name].at[slot])
        return memory.ring[name].at[slot]

    def done(name):
        plgpu.barrier_arrive(memory.free[name].at[slot])

    def take_vector(name):
        vector = mosaic.load_columns(take(name))
        plgpu.commit_smem()  # read before the copy engine writes there again
        done(name)
        return vector

    return Tile(
        row=row,
        column=number * block.columns,
        section=section,
        shape=block.tile,
        take=take,
        done=done,
        take_vector=take_vector,
    )
