"""Conversion of a square tile between its entries (row, column) and its diagonals.

The diagonal of entry (row, column) is row - column + 64, from 1 to 127. An array by diagonal has
one of two shapes: one row per row of the tile and one column per diagonal (`keeps_rows`), or one
row per diagonal and one column per column of the tile. It consists of two tiles: `lower` contains
the diagonals 0 to 63, and `upper` contains the diagonals 64 to 127.

Each thread writes its entries to their destination in a buffer in shared memory, and then reads
entries that other threads have written. With `keeps_rows`, all entries of a row stay in one warp.
All addresses of a thread are a base address plus constants, and no two threads of a warp use the
same bank. Only a GPU can check this code: the interpreter runs plain JAX instead.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.mosaic.gpu import utils
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith, llvm, vector

from distattn_jax.attention.fused.gpu import registers
from distattn_jax.attention.fused.interpreter import is_interpreted

SIZE = 64  # rows and columns of a tile
SKEW_ENTRIES = (SIZE + 16) * SIZE  # of float32: diagonals may exceed the tile by 8 on each side
UNSKEW_ENTRIES = 2 * SIZE * SIZE  # of the dtype of the tiles
THREADS = 128  # of a warpgroup


def skew(scratch: Any, lower: jax.Array, upper: jax.Array, *, keeps_rows: bool) -> jax.Array:
    """Convert an array with one row or column per diagonal to a tile.

    `lower` and `upper` are the two halves of the array. Let d = row - column + 64 be the diagonal
    of entry (row, column) of the tile. With `keeps_rows`, the entry is array[row, d]. Otherwise, it
    is array[d, column].

    Args:
      scratch: Buffer of `SKEW_ENTRIES` float32 numbers, which only this warpgroup uses.
      lower: Half of the array with the diagonals 0 to 63, shape (64, 64).
      upper: Half of the array with the diagonals 64 to 127, shape (64, 64).
      keeps_rows: True if the columns of the array are diagonals, False if its rows are diagonals.
    """
    if is_interpreted():
        entries = jnp.concatenate([lower, upper], axis=1 if keeps_rows else 0)
        rows, columns = _indices()
        if keeps_rows:
            return entries[rows, rows - columns + SIZE]
        return entries[rows - columns + SIZE, columns]
    layout = _SkewedRows() if keeps_rows else _SkewedColumns()

    def exchange(scratch, lower, upper):
        thread = _Thread.current()
        address = _shared_address(scratch)
        layout.wait()
        stores = [layout.store_base(thread, i) for i in (0, 1)]
        stores = [_add(address, _times(base, 4)) for base in stores]
        for part, tile in enumerate((lower, upper)):
            for position in np.ndindex(tile.shape):
                group, half = position[1], position[4]
                block, offset = layout.store_offset(group, half, part)
                for i in (0, 1):
                    code = _STORE_IF.format(block=block, address=4 * offset)
                    arguments = [_extract(tile[position], i), thread.double_warp, stores[i]]
                    _run(None, arguments, code, "f,r,r")
        layout.wait()
        loads = [_add(address, _times(layout.load_base(thread, i), 4)) for i in (0, 1)]
        exchanged = np.empty_like(lower)
        for position in np.ndindex(exchanged.shape):
            offset = layout.load_offset(position[1], position[4])
            code = f"ld.shared.f32 $0, [$1 + {4 * offset}];"
            entries = [_run(ir.F32Type.get(), [load], code, "=f,r") for load in loads]
            exchanged[position] = vector.from_elements(lower[position].type, entries)
        return exchanged

    return registers.map_registers(exchange, lower.shape, scratch, lower, upper)


def unskew(scratch: Any, tile: jax.Array, *, keeps_rows: bool) -> tuple[jax.Array, jax.Array]:
    """Convert a tile to an array with one row or column per diagonal: the inverse of `skew`.

    Return the two halves of the array: the diagonals 0 to 63, and the diagonals 64 to 127. Elements
    of the array that correspond to no entry of the tile are 0.

    Args:
      scratch: Buffer of `UNSKEW_ENTRIES` numbers, which only this warpgroup uses. The result has
        the dtype of the buffer. Call `clear` once before the first use of the buffer.
      keeps_rows: True if the columns of the array are diagonals, False if its rows are diagonals.
    """
    if is_interpreted():
        rows, columns = _indices()
        diagonals = rows - columns + SIZE
        index = (rows, diagonals) if keeps_rows else (diagonals, columns)
        shape = (SIZE, 2 * SIZE) if keeps_rows else (2 * SIZE, SIZE)
        entries = jnp.zeros(shape, tile.dtype).at[index].set(tile)
        lower, upper = jnp.split(entries, 2, axis=1 if keeps_rows else 0)
        return lower, upper
    layout = _UnskewedRows() if keeps_rows else _UnskewedColumns()
    tile = tile.astype(scratch.dtype)

    @plgpu.inline_mgpu(arg_types=(plgpu.RefType(), plgpu.Layout.WGMMA))
    def store(_, scratch, tile):
        thread, address = _Thread.current(), _shared_address(scratch)
        bases = [_add(address, _times(layout.store_base(thread, i), 2)) for i in (0, 1)]
        layout.wait()
        for position, pair in np.ndenumerate(tile.registers):
            offset = layout.store_offset(position[1], position[4])
            for i in (0, 1):
                entry = arith.bitcast(ir.IntegerType.get_signless(16), _extract(pair, i))
                code = f"st.shared.b16 [$1 + {2 * offset}], $0;"
                _run(None, [entry, bases[i]], code, "h,r")
        layout.wait()

    def load(part: int) -> Callable:
        def load_part(scratch, like):
            thread = _Thread.current()
            base = _add(_shared_address(scratch), _times(_load_base(thread), 2))
            loaded = np.empty_like(like)
            for position in np.ndindex(loaded.shape):
                offset = layout.load_offset(position[1], position[4], part)
                code = f"ld.shared.b32 $0, [$1 + {2 * offset}];"
                word = _run(ir.IntegerType.get_signless(32), [base], code, "=r,r")
                loaded[position] = utils.bitcast(word, like[position].type)
            return loaded

        return load_part

    store(scratch, tile)
    lower, upper = (
        registers.map_registers(load(part), tile.shape, scratch, tile, dtype=tile.dtype)
        for part in (0, 1)
    )
    return lower, upper


def clear(scratch: Any) -> None:
    """Fill the buffer `scratch` of `unskew` with zeros."""
    if is_interpreted():
        return

    @plgpu.inline_mgpu(arg_types=(plgpu.RefType(),))
    def store(_, scratch):
        index = _and(utils.thread_idx(), THREADS - 1)
        base = _add(_shared_address(scratch), _times(index, 4))
        for start in range(0, 2 * UNSKEW_ENTRIES, 4 * THREADS):
            _run(None, [base, _constant(0)], f"st.shared.b32 [$0 + {start}], $1;", "r,r")
        utils.warpgroup_barrier()

    store(scratch)


def _indices() -> tuple[jax.Array, jax.Array]:
    """Return two tiles: the row index and the column index of each entry."""
    rows, columns = (lax.broadcasted_iota(jnp.int32, (SIZE, SIZE), axis) for axis in (0, 1))
    return rows, columns


# The rest of this file describes where a thread finds the entries of a tile. A register of a thread
# contains the entries (row, column) and (row, column + 1) with
#     row = 16 warp + 8 half + lane_row,    column = 8 group + 2 lane_column,
# where `half` is 0 or 1, and `group` is from 0 to 7. Buffers store groups of 8 columns: a row of a
# group is contiguous, and so are the rows of a group. Offsets and bases are numbers of entries. The
# base depends on the thread and on i, 0 or 1, which selects the entry of a register. The offset
# is a constant of the program.
#
# The buffer of `skew` has float32 numbers, so that rows r and r + 4 of a group would use the same
# banks. The lowest bit of their columns is therefore different: `_place` flips it.


class _Thread(NamedTuple):
    """Entries of a tile that a thread holds. It holds two adjacent entries of each 8 x 8 group.

    Attributes:
      double_warp: Index of the warp times 2. The rows of the warp begin with row 8 * `double_warp`.
      lane_row: Row of both entries in a group, from 0 to 7.
      lane_column: Column of the first of the two entries in a group: 0, 2, 4 or 6.
    """

    double_warp: ir.Value
    lane_row: ir.Value
    lane_column: ir.Value

    @classmethod
    def current(cls) -> "_Thread":
        index = utils.thread_idx()
        return cls(
            double_warp=_times(_and(_shift_right(index, 5), 3), 2),
            lane_row=_and(_shift_right(index, 2), 7),
            lane_column=_times(_and(index, 3), 2),
        )

    @property
    def row(self) -> ir.Value:
        """Index of the first of the two rows of the thread. The second row is 8 rows below."""
        return _add(_times(self.double_warp, 8), self.lane_row)


class _SkewedRows:
    """Layout of the buffer of `skew` with `keeps_rows`: 10 groups of 64 rows and 8 columns.

    Groups 1 to 8 of the buffer are the tile. Groups 0 and 9 receive entries outside of the tile.
    """

    wait = staticmethod(utils.warp_barrier)

    def store_base(self, thread: _Thread, i: int) -> ir.Value:
        difference = _subtract(thread.lane_row, _add(thread.lane_column, i))
        group = _add(_add(thread.double_warp, _shift_right(difference, 3)), 1)
        place = _place(_and(difference, 7), thread.lane_row)
        return _add(_add(_times(group, 8 * SIZE), _times(thread.row, 8)), place)

    def store_offset(self, group: int, half: int, part: int) -> tuple[int, int]:
        """Return two constants, `block` and `offset`, for the store of one register.

        The register holds two numbers of `lower` (part 0) or `upper` (part 1). They move to columns
        in group b = 2 warp + block of the tile, or in group b - 1. The tile has the groups 0 to 7,
        so the numbers are stored only if 0 <= b <= 8. `offset` is the part of their index in the
        buffer that is the same for all threads.
        """
        block = half - group + 8 * (1 - part)
        return block, block * 8 * SIZE + 64 * half

    def load_base(self, thread: _Thread, i: int) -> ir.Value:
        place = _place(_add(thread.lane_column, i), thread.lane_row)
        return _add(_add(_times(thread.row, 8), place), 8 * SIZE)

    def load_offset(self, group: int, half: int) -> int:
        return group * 8 * SIZE + 64 * half


class _SkewedColumns:
    """Layout of the buffer of `skew` without `keeps_rows`: 8 groups of 80 rows and 8 columns.

    Row 0 of the tile is row 8 of the buffer. The 8 rows before the tile, and the 8 rows after it,
    receive entries outside of the tile.
    """

    wait = staticmethod(utils.warpgroup_barrier)
    group_size = 8 * (SIZE + 16)

    def store_base(self, thread: _Thread, i: int) -> ir.Value:
        column = _add(thread.lane_column, i)
        total = _add(thread.lane_row, column)
        row = _add(_add(_times(thread.double_warp, 8), total), 8)
        return _add(_times(row, 8), _place(column, total))

    def store_offset(self, group: int, half: int, part: int) -> tuple[int, int]:
        """Return two constants, `block` and `offset`, for the store of one register.

        The register holds two numbers of `lower` (part 0) or `upper` (part 1). They move to rows in
        row group b = 2 warp + block of the tile, or in row group b - 1, where a row group has 8
        rows. The tile has the row groups 0 to 7, so the numbers are stored only if 0 <= b <= 8.
        `offset` is the part of their index in the buffer that is the same for all threads.
        """
        block = half + group - 8 * (1 - part)
        return block + 1, group * self.group_size + block * 64

    def load_base(self, thread: _Thread, i: int) -> ir.Value:
        place = _place(_add(thread.lane_column, i), thread.lane_row)
        return _add(_times(_add(thread.row, 8), 8), place)

    def load_offset(self, group: int, half: int) -> int:
        return group * self.group_size + 64 * half


class _UnskewedRows:
    """Layout of the buffer of `unskew` with `keeps_rows`: 16 groups of 64 rows and 8 columns."""

    wait = staticmethod(utils.warp_barrier)

    def store_base(self, thread: _Thread, i: int) -> ir.Value:
        difference = _subtract(thread.lane_row, _add(thread.lane_column, i))
        group = _add(_add(thread.double_warp, _shift_right(difference, 3)), 8)
        base = _add(_times(group, 8 * SIZE), _times(thread.row, 8))
        return _add(base, _and(difference, 7))

    def store_offset(self, group: int, half: int) -> int:
        return (half - group) * 8 * SIZE + 64 * half

    def load_offset(self, group: int, half: int, part: int) -> int:
        return (group + 8 * part) * 8 * SIZE + 64 * half


class _UnskewedColumns:
    """Layout of the buffer of `unskew` without `keeps_rows`: 8 groups of 128 rows and 8 columns."""

    wait = staticmethod(utils.warpgroup_barrier)

    def store_base(self, thread: _Thread, i: int) -> ir.Value:
        column = _add(thread.lane_column, i)
        return _add(_times(_add(_subtract(thread.row, column), SIZE), 8), column)

    def store_offset(self, group: int, half: int) -> int:
        return group * 16 * SIZE + 64 * (half - group)

    def load_offset(self, group: int, half: int, part: int) -> int:
        return group * 16 * SIZE + 64 * half + 8 * SIZE * part


def _load_base(thread: _Thread) -> ir.Value:
    """Return the index of the first entry that a thread loads from the buffer of `unskew`."""
    return _add(_times(thread.row, 8), thread.lane_column)


def _place(column: ir.Value, row: ir.Value) -> ir.Value:
    """Return the column of the buffer of `skew` in which an entry is stored, from 0 to 7.

    Columns 2n and 2n + 1 are exchanged in the rows 4 to 7 of every 8 rows, so that no two threads
    of a warp use the same bank.

    Args:
      column: Column of the entry in its group of 8 columns.
      row: Row of the entry.
    """
    return arith.xori(column, _and(_shift_right(row, 2), 1))


# Most diagonals of a warp lie outside of the tile, and are not written.
_STORE_IF = """{{
    .reg .pred p;
    .reg .s32 block;
    add.s32 block, $1, {block};
    setp.le.u32 p, block, 8;
    @p st.shared.f32 [$2 + {address}], $0;
}}"""


def _run(kind: Any, arguments: list[ir.Value], code: str, constraints: str) -> Any:
    """Emit inline PTX code. `kind` is the type of the result, or None if there is no result."""
    kind = ir.Type.parse("!llvm.void") if kind is None else kind
    return llvm.inline_asm(kind, arguments, code, constraints, has_side_effects=True)


def _shared_address(ref: Any) -> ir.Value:
    """Return the address of a buffer in shared memory in bytes, as int32."""
    return llvm.ptrtoint(ir.IntegerType.get_signless(32), utils.memref_ptr(ref))


def _extract(pair: ir.Value, i: int) -> ir.Value:
    return vector.extract(pair, dynamic_position=[], static_position=[i])


def _constant(number: int) -> ir.Value:
    return utils.c(number, ir.IntegerType.get_signless(32))


def _add(a: ir.Value, b: ir.Value | int) -> ir.Value:
    return arith.addi(a, _constant(b) if isinstance(b, int) else b)


def _subtract(a: ir.Value, b: ir.Value) -> ir.Value:
    return arith.subi(a, b)


def _times(a: ir.Value, number: int) -> ir.Value:
    return arith.muli(a, _constant(number))


def _and(a: ir.Value, number: int) -> ir.Value:
    return arith.andi(a, _constant(number))


def _shift_right(a: ir.Value, bits: int) -> ir.Value:
    return arith.shrsi(a, _constant(bits))
