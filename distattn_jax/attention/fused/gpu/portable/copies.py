"""Copies between global and shared memory with `cp.async`, the same code on every GPU.

A copy from global to shared memory is asynchronous. A thread starts several copies. `commit` makes
one group of all copies that the thread has started since the last `commit`, and `wait` waits for
groups. Each copy has 16 bytes, a chunk. Neighbouring threads copy neighbouring chunks.

In the interpreter, a copy is complete as soon as it has been started. The interpreter thus does not
detect that a `wait` before a read is missing, but it detects a copy to a buffer that a thread may
still read. It does not run the code that computes addresses.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax
from jax.experimental.mosaic.gpu import utils
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith, llvm, nvvm

from distattn_jax.attention.fused.gpu import mosaic
from distattn_jax.attention.fused.gpu.kernel_body import GridIndex
from distattn_jax.attention.fused.gpu.tile_copies import slice_entries, slice_rows
from distattn_jax.attention.fused.interpreter import is_interpreted

CHUNK = 16  # bytes
THREADS = 128  # of a warpgroup
BANKS = 128  # bytes of all banks of shared memory
SCALAR = plgpu.Layout.WG_SPLAT(())
INTERPRETED = "interpreted"


class _Lines(NamedTuple):
    """Lines of an array in global memory. The numbers of a line are contiguous.

    Line i begins at number `first` * `unit` + `column` + i * `pitch` of the array.

    Attributes:
      first: Index of the first line, in lines of `unit` numbers.
      unit: Static number.
      pitch: Static number.
      inside_lines: Number of lines, counted from the first line, that are inside the array. If it
        is None, all lines are.
      column: Number by which all lines begin later.
      inside_columns: Like `inside_lines`, for the numbers of a line.
    """

    first: Any
    unit: int
    pitch: int
    inside_lines: Any = None
    column: Any = 0
    inside_columns: Any = None


def make_barriers() -> dict[str, Any]:
    """Return the types of the barriers that copies need in the interpreter: none on a GPU."""
    return {INTERPRETED: plgpu.Barrier()} if is_interpreted() else {}


def copy_rows(ref: Any, buffer: Any, grid_index: GridIndex, start: Any, barriers: Any) -> None:
    """Start to copy rows of a matrix, or numbers of a vector, to shared memory.

    Rows beyond the end of a matrix become 0. A vector must have all numbers, and `start` must be a
    multiple of 4 for a vector.

    Args:
      ref: Matrix or vector in global memory: see `slice_rows`.
      buffer: Buffer in shared memory. It has as many rows or numbers as are copied.
      grid_index: Example and head.
      start: Index of the first row or number.
      barriers: Barriers of the type `make_barriers`.
    """
    if is_interpreted():
        _copy_at_once(slice_rows(ref, grid_index, start, buffer.shape[0]), buffer, barriers)
        return
    is_matrix = len(ref.shape) == 4
    lines = _locate_rows(ref, grid_index, start) if is_matrix else _locate(ref, grid_index, start)
    _transfer(_start_copy, ref, buffer, lines, is_swizzled=is_matrix)


def copy_entries(
    ref: Any, buffer: Any, grid_index: GridIndex, row: Any, column: Any, barriers: Any
) -> None:
    """Start to copy a tile of a mask to shared memory. Entries beyond its end become 0.

    Args:
      ref: Mask in global memory, shape (B, N, rows, columns), where B or N may be 1. The number of
        columns must be a multiple of 16.
      buffer: Buffer in shared memory. It has the shape of the tile.
      grid_index: Example and head.
      row: First row of the tile.
      column: First column of the tile, a multiple of 16.
      barriers: Barriers of the type `make_barriers`.
    """
    if is_interpreted():
        source = slice_entries(ref, grid_index, row, column, buffer.shape)
        _copy_at_once(source, buffer, barriers)
        return
    *_, rows, columns = ref.shape
    lines = _Lines(
        _locate(ref, grid_index, 0).first * rows + row,
        columns,
        columns,
        inside_lines=rows - row,
        column=column,
        inside_columns=columns - column,
    )
    _transfer(_start_copy, ref, buffer, lines, is_swizzled=False)


def write_rows(buffer: Any, ref: Any, grid_index: GridIndex, start: Any) -> None:
    """Write rows of a matrix from shared memory to global memory, except those beyond its end.

    Args:
      buffer: Rows in shared memory, which all threads have written.
      ref: Matrix in global memory, shape (B, L, N, W).
      grid_index: Example and head.
      start: Index of the first row.
    """
    if is_interpreted():
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(buffer, slice_rows(ref, grid_index, start, buffer.shape[0]))
        plgpu.wait_smem_to_gmem(0)
        return
    _transfer(_write, ref, buffer, _locate_rows(ref, grid_index, start), is_swizzled=True)


def commit() -> None:
    """Make one group of all copies that a thread has started since the last call."""
    if is_interpreted():
        return

    @plgpu.inline_mgpu()
    def commit_group(_):
        nvvm.cp_async_commit_group()

    commit_group()


def wait(pending: int) -> None:
    """Wait for all groups of copies of all threads, except for the last `pending` groups.

    All threads have then read what they read from shared memory before this call.
    """
    if is_interpreted():
        plgpu.commit_smem()
        return

    @plgpu.inline_mgpu()
    def wait_for_groups(_):
        nvvm.cp_async_wait_group(pending)
        utils.warpgroup_barrier()

    wait_for_groups()


def _copy_at_once(source: Any, buffer: Any, barriers: Any) -> None:
    plgpu.copy_gmem_to_smem(source, buffer, barriers[INTERPRETED])
    plgpu.barrier_wait(barriers[INTERPRETED])


def _locate_rows(ref: Any, grid_index: GridIndex, start: Any) -> _Lines:
    """Return the rows of a matrix of shape (B, L, N, W) from index `start` on."""
    batch, length, heads, width = ref.shape
    example = 0 if batch == 1 else grid_index.example
    head = lax.div(grid_index.head, grid_index.heads // heads)
    return _Lines((example * length + start) * heads + head, width, heads * width, length - start)


def _locate(ref: Any, grid_index: GridIndex, start: Any) -> _Lines:
    """Return the line of a vector of shape (B, N, L) that begins at index `start`."""
    batch, heads, length = ref.shape[:3]
    example = 0 if batch == 1 else grid_index.example
    head = 0 if heads == 1 else grid_index.head
    if len(ref.shape) == 4:  # index of the head of an array of shape (B, N, rows, columns)
        return _Lines(example * heads + head, 1, 1)
    return _Lines((example * heads + head) * length + start, 1, length)


def _transfer(move: Callable, ref: Any, buffer: Any, lines: _Lines, *, is_swizzled: bool) -> None:
    """Call `move` for each chunk of a buffer in shared memory that this thread copies.

    Args:
      move: Function of the address of a chunk in shared memory, its address in global memory, the
        condition that the chunk is inside the array (or None), and the type of its numbers.
      ref: Array in global memory.
      buffer: Buffer in shared memory, with one row for each line, or a vector.
      lines: Position of the lines in the array.
      is_swizzled: True if the buffer has the type `mosaic.matrix_scratch`.
    """
    dtype, width = jnp.dtype(buffer.dtype), buffer.shape[-1]
    tile_width = min(width, mosaic.MAX_SWIZZLED_COLUMNS)
    transforms = mosaic.swizzle_transforms(tile_width, dtype) if is_swizzled else ()
    layout = _ChunkLayout(
        line_count=buffer.shape[0] if len(buffer.shape) == 2 else 1,
        chunks=width * dtype.itemsize // CHUNK,
        numbers=CHUNK // dtype.itemsize,
        tile_chunks=tile_width * dtype.itemsize // CHUNK,
        is_swizzled=is_swizzled,
    )
    dynamic = {name: x for name, x in lines._asdict().items() if x is not None}
    dynamic = {name: x for name, x in dynamic.items() if name not in ("unit", "pitch")}
    types = (plgpu.RefType(), plgpu.RefType(transforms), *[SCALAR] * len(dynamic))

    @plgpu.inline_mgpu(arg_types=types)
    def transfer(_, ref, buffer, *scalars):
        values = (x.registers.item() for x in scalars)
        layout.visit(move, ref, buffer, lines._replace(**dict(zip(dynamic, values, strict=True))))

    transfer(ref, buffer, *(jnp.asarray(x, jnp.int32) for x in dynamic.values()))


class _ChunkLayout(NamedTuple):
    """Chunks of a buffer, and their positions in shared memory.

    Thread t copies the chunks t, t + 128, t + 256, ... of the buffer, counted line by line.

    Attributes:
      line_count: Number of lines.
      chunks: Number of chunks of a line. It is a divisor of 128, unless there is only one line.
      numbers: Number of numbers of a chunk.
      tile_chunks: Number of chunks of a row of a swizzled tile.
      is_swizzled: False if the lines of the buffer are contiguous.
    """

    line_count: int
    chunks: int
    numbers: int
    tile_chunks: int
    is_swizzled: bool

    def visit(self, move: Callable, ref: ir.Value, buffer: ir.Value, lines: _Lines) -> None:
        """Call `move` for each chunk that this thread copies: see `_transfer`."""
        element = ir.MemRefType(ref.type).element_type
        thread = arith.remui(utils.thread_idx(), _integer(THREADS))
        step = THREADS // self.chunks if self.line_count > 1 else 0  # lines from chunk to chunk
        line = arith.divui(thread, _integer(self.chunks)) if step else _integer(0)
        column = arith.remui(thread, _integer(self.chunks)) if step else thread
        column = arith.muli(column, _integer(self.numbers))
        shared_base = utils.memref_ptr(buffer)
        global_type = llvm.PointerType.get(address_space=1)
        global_base = llvm.addrspacecast(global_type, utils.memref_ptr(ref))
        first = arith.muli(_extend(lines.first), _long(lines.unit))
        for number in (lines.column, column):
            first = arith.addi(first, _extend(number))
        first = arith.addi(first, arith.muli(_extend(line), _long(lines.pitch)))
        total = self.line_count * self.chunks
        for start in range(0, total, THREADS):
            i = start // THREADS
            advance = i * (step * lines.pitch if step else THREADS * self.numbers)
            source = utils.getelementptr(global_base, [arith.addi(first, _long(advance))], element)
            inside = _both(
                _is_inside(line, i * step, lines.inside_lines),
                _is_inside(column, 0 if step else advance, lines.inside_columns),
            )
            offset = self._shared_offset(thread, line, column, i, step)
            target = utils.getelementptr(shared_base, [offset], ir.IntegerType.get_signless(8))

            def run(target=target, source=source, inside=inside):
                move(target, source, inside, ir.VectorType.get((self.numbers,), element))

            if total - start >= THREADS:
                run()
            else:
                remaining = arith.cmpi(arith.CmpIPredicate.ult, thread, _integer(total - start))
                with utils.when(remaining):
                    run()

    def _shared_offset(
        self, thread: ir.Value, line: ir.Value, column: ir.Value, i: int, step: int
    ) -> ir.Value:
        """Return the position in bytes of chunk thread + 128 * i of the buffer.

        Args:
          line: Line of chunk `thread`.
          column: First number of chunk `thread` in its line.
          step: Number of lines between this chunk and the next chunk of the thread.
        """
        if not self.is_swizzled:
            return arith.addi(arith.muli(thread, _integer(CHUNK)), _integer(i * THREADS * CHUNK))
        # A tile has 8 rows. The rest of the division by 8 decides about the swizzle.
        rest = (i * step) % 8
        row = arith.addi(line, _integer(rest))
        chunk = arith.divui(column, _integer(self.numbers))
        tile_row, row = arith.divui(row, _integer(8)), arith.remui(row, _integer(8))
        tile_column = arith.divui(chunk, _integer(self.tile_chunks))
        chunk = arith.remui(chunk, _integer(self.tile_chunks))
        rows_of_banks = max(BANKS // (self.tile_chunks * CHUNK), 1)
        chunk = arith.xori(chunk, arith.divui(row, _integer(rows_of_banks)))
        tile = arith.addi(
            arith.muli(tile_row, _integer(self.chunks // self.tile_chunks)), tile_column
        )
        chunk = arith.addi(
            arith.muli(arith.addi(arith.muli(tile, _integer(8)), row), _integer(self.tile_chunks)),
            chunk,
        )
        static = (i * step - rest) * self.chunks
        return arith.muli(arith.addi(chunk, _integer(static)), _integer(CHUNK))


def _start_copy(target: ir.Value, source: ir.Value, inside: Any, chunk_type: ir.Type) -> None:
    """Start to copy a chunk to shared memory. It becomes 0 if it is not inside the array."""
    size = None if inside is None else arith.select(inside, _integer(CHUNK), _integer(0))
    modifier = nvvm.LoadCacheModifierKind.CG
    nvvm.cp_async_shared_global(target, source, CHUNK, modifier, cp_size=size)


def _write(source: ir.Value, target: ir.Value, inside: Any, chunk_type: ir.Type) -> None:
    """Write a chunk to global memory, if it is inside the array."""

    def write():
        llvm.store(llvm.load(chunk_type, source), target, alignment=CHUNK)

    if inside is None:
        write()
    else:
        with utils.when(inside):
            write()


def _is_inside(index: ir.Value, offset: int, count: Any) -> Any:
    """Return the condition that `index` + `offset` is smaller than `count`, or None."""
    if count is None:
        return None
    return arith.cmpi(arith.CmpIPredicate.slt, arith.addi(index, _integer(offset)), count)


def _both(a: Any, b: Any) -> Any:
    """Return the condition that a and b are True. None is always True."""
    if a is None or b is None:
        return b if a is None else a
    return arith.andi(a, b)


def _integer(number: int) -> ir.Value:
    return arith.constant(ir.IntegerType.get_signless(32), number)  # type: ignore[call-arg, arg-type]


def _long(number: int) -> ir.Value:
    return arith.constant(ir.IntegerType.get_signless(64), number)  # type: ignore[call-arg, arg-type]


def _extend(number: ir.Value) -> ir.Value:
    return arith.extsi(ir.IntegerType.get_signless(64), number)
