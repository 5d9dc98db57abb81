"""Loop over the tiles of a score map on a TPU, shared by all kernels.

A tile has one row (sublane) per key and one column (lane) per query. Heads of any width therefore
fill the lanes, and the maximum and the sum over the keys of a query are taken over sublanes, which
is cheap.

A program of the grid owns one block of queries or of keys, which stays in VMEM: the resident block.
If it owns queries, tiles of keys are streamed from HBM into two slots, and vice versa. The copy of
the next tile runs while the kernel computes the current tile.

    resident   streamed   kernels
    queries    keys       forward, query gradient, attention given
    keys       queries    key gradient, received
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.custom_batching
import jax.experimental.pallas as pl
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Int

from distattn_jax.attention.fused import varying
from distattn_jax.attention.fused.interpreter import is_interpreted
from distattn_jax.attention.fused.kernel_calls import KernelCall
from distattn_jax.attention.fused.tile_runs import TileKind
from distattn_jax.attention.fused.tpu.kernel_body import (
    ROW_ARRAYS,
    BlockContext,
    KernelBody,
    KernelInputs,
    Tile,
)
from distattn_jax.attention.fused.tpu.tile_configs import MULTIPLE, TileConfig

ROUNDED_ROWS = 16  # at a time: a register of bfloat16 numbers, and a divisor of all widths
SLOTS = 2  # of each streamed array
VMEM_LIMIT_BYTES = 56 * 2**20  # A TPU v5p has 64 MiB, a TPU v5e or v6e has 128 MiB.


class Scratch(NamedTuple):
    """Buffers in VMEM of a program, and semaphores for its copies from HBM to VMEM.

    Attributes:
      slots: Buffers of the streamed arrays. Each has two slots: one for the current tile, and one
        for the next tile.
      arrived: One semaphore for each slot of each streamed array, signalled when a copy arrives.
        Axis 0 has the order of `slots`.
      body: Buffers that `KernelBody.scratch` declares.
      kept: Buffers that `KernelBody.kept` declares. They keep their contents from block to block.
      sums: Float32 buffers for the sums of `KernelBody.summed_outputs` whose dtype has 16 bits.
        Float32 outputs are summed in place.
    """

    slots: dict[str, Any]
    arrived: Any
    body: dict[str, Any]
    kept: dict[str, Any]
    sums: dict[str, Any]


class RunNumbers(NamedTuple):
    """Four numbers that describe a run of consecutive tiles to a kernel.

    Attributes:
      start: Index of the first tile.
      end: Index of the last tile plus 1.
      shift: Number of tiles in all runs before this run, minus `start`. A tile is copied to slot 0
        if (`shift` + index of the tile) is even, and to slot 1 if it is odd.
      next_tile: First tile of the next run that is not empty, or -1 if there is no such run.
    """

    start: Array
    end: Array
    shift: Array
    next_tile: Array


class Kernel(NamedTuple):
    """Static properties of a kernel, which are known when the program is traced.

    Attributes:
      call: Name, score map and schedule of the kernel.
      body: Computation of the kernel.
      output_types: Dict from name to shape and dtype of each output.
      config: Sizes of the tiles.
      origin: Index of the main diagonal (query = key) among the diagonals: see `run_tile_loop`.
      counts: Number of examples and number of heads.
    """

    call: KernelCall
    body: KernelBody
    output_types: dict[str, jax.ShapeDtypeStruct]
    config: TileConfig
    origin: int
    counts: tuple[int, int]

    @property
    def is_transposed(self) -> bool:
        """True if the rows of the score map are keys, False if they are queries."""
        return self.call.score_map.is_transposed

    @property
    def block_sizes(self) -> tuple[int, int]:
        """Number of rows of a block, and number of columns of a tile."""
        return self.config.divide(is_transposed=self.is_transposed)


def run_tile_loop(
    call: KernelCall,
    body: KernelBody,
    inputs: KernelInputs,
    output_types: dict[str, jax.ShapeDtypeStruct],
    config: TileConfig,
    origin: int,
) -> dict[str, jax.Array]:
    """Run a kernel over all blocks of all heads. Return a dict from name to output.

    Args:
      call: Name, score map and schedule of the kernel.
      inputs: Input arrays.
      output_types: Dict from name to shape (B, N, W, L) and dtype of each output. The outputs that
        `KernelBody.summed_outputs` names are summed over all blocks. If B of such an output is 1,
        the output is also summed over all examples.
      config: Sizes of the tiles.
      origin: Index of the main diagonal (query = key) in `inputs.diagonals`. It is at least the
        number of keys, because diagonals with query < key have smaller indices. It is a multiple of
        128.
    """
    batch = inputs.runs.shape[0]

    def run(inputs: KernelInputs) -> dict[str, jax.Array]:
        examples, heads = inputs.runs.shape[:2]
        copies = examples // batch  # of the call, under `vmap`
        axes = jax.typeof(inputs.runs).manual_axis_type  # The outputs vary over them, too.
        types = {
            name: jax.ShapeDtypeStruct(
                (copies * x.shape[0], *x.shape[1:]), x.dtype, manual_axis_type=axes
            )
            for name, x in output_types.items()
        }
        return _call_kernel(Kernel(call, body, types, config, origin, (examples, heads)), inputs)

    return _fold_batches(run)(varying.mark_varying(inputs, varying.varying_axes(inputs)))


def _call_kernel(kernel: Kernel, inputs: KernelInputs) -> dict[str, jax.Array]:
    """Run a kernel on all examples of its inputs. Return a dict from name to output."""
    (batch, heads), blocks = kernel.counts, inputs.runs.shape[2]
    block_rows, _ = kernel.block_sizes
    body = kernel.body
    # Each program copies the last two axes of an array in SMEM.
    scalars = {name: array[:, :, None] for name, array in inputs.scalars.items()}
    sums = {name: jnp.swapaxes(array, 2, 3) for name, array in inputs.skipped_sums.items()}
    runs = _list_runs(inputs.runs)[:, :, :, None]
    arrays = inputs._replace(scalars=scalars, skipped_sums=sums, runs=runs)

    def whole(array: Any, memory_space: Any = None) -> pl.BlockSpec:
        def index(n, b, i):
            return (*_shared_index(array.shape, (batch, heads), (b, n)), 0, 0)

        return pl.BlockSpec((1, 1, *array.shape[2:]), index, memory_space=memory_space)

    def resident(array: Any) -> pl.BlockSpec:
        def index(n, b, i):
            return (*_shared_index(array.shape, (batch, heads), (b, n)), 0, i)

        return pl.BlockSpec((1, 1, array.shape[2], block_rows), index)

    in_hbm = functools.partial(jax.tree.map, lambda _: pl.BlockSpec(memory_space=pl.ANY))
    in_smem = functools.partial(whole, memory_space=pltpu.SMEM)
    block_specs: dict[str, Any] = {
        "resident": jax.tree.map(resident, arrays.resident),
        "streamed": in_hbm(arrays.streamed),
        "entries": in_hbm(arrays.entries),
        "diagonals": in_hbm(arrays.diagonals),
        "positions": in_hbm(arrays.positions),
        "scalars": jax.tree.map(in_smem, arrays.scalars),
        "skipped_sums": jax.tree.map(whole, arrays.skipped_sums),
        "runs": pl.BlockSpec(
            (1, 1, 1, 1, runs.shape[-1]), lambda n, b, i: (b, n, i, 0, 0), memory_space=pltpu.SMEM
        ),
    }
    run = pl.pallas_call(
        functools.partial(_run_block, kernel=kernel),
        out_shape=kernel.output_types,
        grid=(heads, batch, blocks),
        in_specs=(KernelInputs(**block_specs),),
        out_specs={
            name: (whole if name in body.summed_outputs else resident)(x)
            for name, x in kernel.output_types.items()
        },
        scratch_shapes=_scratch_types(kernel, inputs),
        compiler_params=pltpu.CompilerParams(
            # Only one core may compute a head whose examples share buffers or sums.
            dimension_semantics=(
                "parallel",
                "arbitrary" if body.kept or body.summed_outputs else "parallel",
                "arbitrary",
            ),
            vmem_limit_bytes=VMEM_LIMIT_BYTES,
            disable_bounds_checks=True,  # The checks of each copy cost dozens of bundles per tile.
        ),
        name=kernel.call.name,
        interpret=pltpu.InterpretParams() if is_interpreted() else False,
    )
    return run(arrays if is_interpreted() else _keep_in_hbm(arrays))


def _scratch_types(kernel: Kernel, inputs: KernelInputs) -> tuple[Scratch]:
    """Return the Pallas types of all buffers and semaphores of a program, as a tuple of one."""
    config, body, output_types = kernel.config, kernel.body, kernel.output_types
    _, tile_columns = kernel.block_sizes
    shapes: dict[str, tuple[int, int]] = {
        name: (tile_columns, array.shape[3])
        if name in ROW_ARRAYS
        else (array.shape[2], tile_columns)
        for name, array in inputs.streamed.items()
    }
    shapes |= dict.fromkeys(inputs.entries, config.shape)
    shapes |= dict.fromkeys(inputs.diagonals, (1, config.queries + config.keys))
    for name, array in inputs.positions.items():
        shapes[name] = (array.shape[2], config.queries + config.keys)
    arrays = inputs.streamed | inputs.entries | inputs.diagonals | inputs.positions
    slots = {
        name: pltpu.VMEM((SLOTS, *shape), arrays[name].dtype) for name, shape in shapes.items()
    }
    return (
        Scratch(
            slots=slots,
            arrived=pltpu.SemaphoreType.DMA((len(slots), SLOTS)),
            body={
                name: pltpu.VMEM(x, jnp.float32) if isinstance(x, tuple) else x
                for name, x in body.scratch.items()
            },
            kept=dict(body.kept),
            sums={
                name: pltpu.VMEM(output_types[name].shape[2:], jnp.float32)
                for name in body.summed_outputs
                if output_types[name].dtype != jnp.float32
            },
        ),
    )


def _list_runs(runs: Int[Array, "B N blocks R 2"]) -> Int[Array, "B N blocks _"]:
    """Return the numbers that a program reads for its block, as one row of integers.

    The first number is the first tile that the block visits, or -1 if it visits no tile. The four
    `RunNumbers` of each run follow.

    Args:
      runs: Index of the first tile of each of R runs, and index of its last tile plus 1.
    """
    start, end = runs[..., 0], runs[..., 1]
    count, index = runs.shape[3], jnp.arange(runs.shape[3], dtype=jnp.int32)
    is_empty = start >= end
    lengths = jnp.where(is_empty, 0, end - start)
    shift = jnp.cumsum(lengths, axis=-1) - lengths - start
    # Index of the first non-empty run at or after each run, or `count`.
    following = lax.cummin(jnp.where(is_empty, count, index), axis=3, reverse=True)
    following = jnp.pad(following, ((0, 0), (0, 0), (0, 0), (0, 1)), constant_values=count)
    starts = jnp.pad(start, ((0, 0), (0, 0), (0, 0), (0, 1)), constant_values=-1)
    first_tiles = jnp.take_along_axis(starts, following, axis=3)
    numbers = jnp.stack(RunNumbers(start, end, shift, first_tiles[..., 1:]), axis=-1)
    flat = numbers.reshape(*runs.shape[:3], -1)
    return jnp.concatenate((first_tiles[..., :1], flat), axis=-1).astype(jnp.int32)


def _fold_batches(call: Callable[[KernelInputs], dict[str, Array]]) -> Callable[..., Any]:
    """Return a function that runs a kernel and supports `vmap`.

    Under `vmap`, the mapped axis becomes part of the batch axis, because Pallas cannot batch the
    arrays that a kernel copies from HBM.

    Args:
      call: Function that runs a kernel.
    """
    run = jax.custom_batching.custom_vmap(call)

    @run.def_vmap
    def _(size: int, arguments_batched: list[Any], inputs: KernelInputs):
        (is_batched,) = arguments_batched
        batch = inputs.runs.shape[is_batched.runs]

        def fold(x: Array, is_batched: bool, is_shared: bool) -> Array:
            if is_shared and not is_batched:
                return x
            x = x if is_batched else jnp.broadcast_to(x, (size, *x.shape))
            x = jnp.broadcast_to(x, (size, batch, *x.shape[2:]))
            return x.reshape(-1, *x.shape[2:])

        folded = jax.tree.map(
            lambda x, is_batched: fold(x, is_batched, x.shape[is_batched] == 1), inputs, is_batched
        )
        runs = fold(inputs.runs, is_batched.runs, is_shared=False)
        outputs = _fold_batches(call)(folded._replace(runs=runs))
        outputs = {name: x.reshape(size, -1, *x.shape[1:]) for name, x in outputs.items()}
        return outputs, dict.fromkeys(outputs, True)

    return run


def _keep_in_hbm(inputs: KernelInputs) -> KernelInputs:
    """Return the same inputs, with streamed arrays that the compiler may not move to VMEM.

    A copy from VMEM to VMEM is a loop of the processor, which does not run in the background.
    """

    def constrain(arrays: dict[str, Array]) -> dict[str, Array]:
        return {
            name: pltpu.with_memory_space_constraint(array, pltpu.HBM)
            for name, array in arrays.items()
        }

    return inputs._replace(
        streamed=constrain(inputs.streamed),
        entries=constrain(inputs.entries),
        diagonals=constrain(inputs.diagonals),
    )


def _run_block(
    refs: KernelInputs, outputs: dict[str, Any], scratch: Scratch, *, kernel: Kernel
) -> None:
    """Compute the outputs of one block of rows. This function is the body of the Pallas kernel.

    Args:
      refs: References to the inputs.
      outputs: Dict from name to a reference to an output.
      scratch: References to the buffers and semaphores.
      kernel: Static properties of the kernel.
    """
    head, example, block = (pl.program_id(axis) for axis in range(3))
    body, config, is_transposed = kernel.body, kernel.config, kernel.is_transposed
    block_rows, tile_columns = kernel.block_sizes
    start = block * block_rows
    examples_per_sum = {
        name: kernel.counts[0] // kernel.output_types[name].shape[0] for name in body.summed_outputs
    }

    def select_head(ref: Any) -> Any:
        """Return a reference to the current example and head of an array in HBM."""
        return ref.at[*_shared_index(ref.shape, kernel.counts, (example, head))]

    def place(tile: Array) -> tuple[Array, Array]:
        """Return the first query and the first key of a tile, given the index of the tile."""
        column = pl.multiple_of(tile * tile_columns, tile_columns)
        return (column, start) if is_transposed else (start, column)

    def make_copies(tile: Array, slot: Array) -> list[Any]:
        query, key = place(tile)
        sources = {}
        for name, ref in refs.streamed.items():
            columns = pl.ds(query if is_transposed else key, tile_columns)
            array = select_head(ref)
            sources[name] = array.at[columns] if name in ROW_ARRAYS else array.at[:, columns]
        for name, ref in refs.entries.items():
            array = select_head(ref)
            sources[name] = array.at[pl.ds(key, config.keys), pl.ds(query, config.queries)]
        for name, ref in refs.diagonals.items():
            first = pl.multiple_of(kernel.origin + query - key - config.keys, MULTIPLE)
            window = pl.ds(first, config.queries + config.keys)
            sources[name] = select_head(ref).at[:, window]
        for name, ref in refs.positions.items():
            first = ref.shape[3] - kernel.origin + key - query - config.queries
            window = pl.ds(pl.multiple_of(first, MULTIPLE), config.queries + config.keys)
            sources[name] = select_head(ref).at[:, window]
        return [
            pltpu.make_async_copy(sources[name], buffer.at[slot], scratch.arrived.at[i, slot])
            for i, (name, buffer) in enumerate(scratch.slots.items())
        ]

    def start_copies(tile: Array, slot: Array) -> None:
        @pl.when(tile >= 0)
        def _():
            for copy in make_copies(tile, slot):
                copy.start()

    def read_run(i: Array | int) -> RunNumbers:
        first = 1 + i * len(RunNumbers._fields)
        return RunNumbers(
            *(refs.runs[0, 0, 0, 0, first + j] for j in range(len(RunNumbers._fields)))
        )

    start_copies(refs.runs[0, 0, 0, 0, 0], jnp.int32(0))
    sums = {name: scratch.sums.get(name, outputs[name].at[0, 0]) for name in body.summed_outputs}
    for name, total in sums.items():

        @pl.when((lax.rem(example, examples_per_sum[name]) == 0) & (block == 0))
        def _(total=total):
            total[...] = jnp.zeros(total.shape, total.dtype)

    context = BlockContext(
        score_map=kernel.call.score_map,
        start=start,
        load=lambda name: refs.resident[name][0, 0],
        scalars={
            name: tuple(ref[0, 0, 0, i] for i in range(ref.shape[-1]))
            for name, ref in refs.scalars.items()
        },
        skipped_sums={
            name: _select_lane(ref[0, 0], block) for name, ref in refs.skipped_sums.items()
        },
        scratch=scratch.body,
        kept=scratch.kept,
        is_first=(example == 0) & (block == 0),
        sums=sums,
    )
    body.initialize(context)

    def visit_run(i: Array | int, kind: TileKind) -> None:
        run = read_run(i)

        def step(tile: Array, _: None) -> None:
            slot = lax.rem(tile + run.shift, SLOTS)
            is_last = tile + 1 == run.end
            start_copies(jnp.where(is_last, run.next_tile, tile + 1), 1 - slot)
            for copy in make_copies(tile, slot):
                copy.wait()
            body.step(
                context,
                Tile(*place(tile), kind, config.shape, lambda name: scratch.slots[name][slot]),
            )

        lax.fori_loop(run.start, run.end, step, None)

    for kind, runs in kernel.call.schedule.loops:
        if len(runs) == 1:
            visit_run(runs.start, kind)
        else:  # The code of a kind exists once, in a loop over its runs.
            lax.fori_loop(runs.start, runs.stop, lambda i, _, kind=kind: visit_run(i, kind), None)
    for name, output in body.finish(context).items():
        if name in sums:
            sums[name][...] += output
        else:
            outputs[name][0, 0] = output.astype(outputs[name].dtype)
    for name, total in scratch.sums.items():
        last = examples_per_sum[name] - 1

        @pl.when((lax.rem(example, last + 1) == last) & (block == pl.num_programs(2) - 1))
        def _(target=outputs[name].at[0, 0], total=total):
            _round(total, target)


def _round(source: Any, target: Any) -> None:
    """Copy a float32 array in VMEM to an array of a 16-bit dtype.

    The function copies a few rows at a time, in a loop, so that the compiled code is short.
    """

    def step(i: Array, _: None) -> None:
        rows = pl.ds(pl.multiple_of(i * ROUNDED_ROWS, ROUNDED_ROWS), ROUNDED_ROWS)
        target[rows] = source[rows].astype(target.dtype)

    lax.fori_loop(0, source.shape[0] // ROUNDED_ROWS, step, None)


def _shared_index(
    shape: tuple[int, ...], counts: tuple[int, int], indices: tuple[Any, Any]
) -> tuple[Any, ...]:
    """Return the indices of an example and a head in an array that examples or heads may share.

    If an axis of the array has size 1, its index is 0. If the array has fewer heads than the
    kernel, groups of consecutive heads of the kernel use the same head of the array.

    Args:
      shape: Shape of the array, which begins with examples and heads.
      counts: Number of examples and number of heads of the kernel.
      indices: Index of the example and index of the head of the kernel.
    """
    return tuple(
        0 if size == 1 else index if size == count else lax.div(index, count // size)
        for size, count, index in zip(shape, counts, indices, strict=False)
    )


def _select_lane(x: Array, lane: Array) -> Array:
    """Return one column of a matrix of shape (W, columns), as an array of shape (W, 1)."""
    columns = lax.broadcasted_iota(jnp.int32, x.shape, 1)
    return jnp.where(columns == lane, x, 0).sum(axis=1, keepdims=True)
