"""Conversion of a tile between two arrangements: by row and column, and by diagonal.

The tile has 64 rows and 64 columns. The diagonal of entry (row, column) is d = row - column + 64,
from 1 to 127. An array by diagonal contains the entries of the tile in one of two forms:

    keeps_rows = True     array[row, d] = tile[row, column],       shape (64, 128)
    keeps_rows = False    array[d, column] = tile[row, column],    shape (128, 64)

The array is divided into two tiles: `lower` contains the diagonals 0 to 63, and `upper` contains
the diagonals 64 to 127. The function `skew` converts an array to a tile, and `unskew` converts a
tile to an array.

Each thread writes its entries to a buffer in shared memory, and then reads entries that other
threads have written. With `keeps_rows`, all entries of a row stay in one warp, which has its own
quarter of the buffer. All addresses of a thread are a base address plus constants, and no two
threads of a warp use the same bank. Only a GPU can check this code: the interpreter runs plain JAX
instead.
"""

import itertools
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
SKEW_ENTRIES = SIZE * SIZE  # of float32
UNSKEW_ENTRIES = 2 * SIZE * SIZE  # of the dtype of the tiles, which has 16 bits
COLUMNS = 8  # of a group


def skew(
    scratch: Any, lower: jax.Array, upper: jax.Array, *, keeps_rows: bool, is_halved: bool
) -> jax.Array:
    """Convert an array by diagonal to a tile of 64 rows and 64 columns.

    Let d = row - column + 64 be the diagonal of entry (row, column) of the tile. If `keeps_rows` is
    True, the array has shape (64, 128), and the entry is array[row, d]. If it is False, the array
    has shape (128, 64), and the entry is array[d, column]. The array is passed as two halves.

    Args:
      scratch: Buffer of `SKEW_ENTRIES` float32 numbers, which only this warpgroup uses. It has half
        as many numbers if `is_halved`.
      lower: Half of the array with the diagonals 0 to 63, shape (64, 64).
      upper: Half of the array with the diagonals 64 to 127, shape (64, 64).
      keeps_rows: True if the columns of the array are diagonals, False if its rows are diagonals.
      is_halved: If True, convert one half of the tile after the other, in a buffer of half the
        size. This requires `keeps_rows`.
    """
    if is_interpreted():
        entries = jnp.concatenate([lower, upper], axis=1 if keeps_rows else 0)
        rows, columns = _indices()
        if keeps_rows:
            return entries[rows, rows - columns + SIZE]
        return entries[rows - columns + SIZE, columns]
    layout = _SkewedRows(is_halved) if keeps_rows else _SkewedColumns()

    def exchange(scratch, lower, upper):
        thread = _Thread.current()
        address = _shared_address(scratch)
        blocks, bases = zip(*(layout.store_base(thread, i) for i in (0, 1)), strict=True)
        stores = [_add(address, _times(base, 4)) for base in bases]
        loads = [_add(address, _times(layout.load_base(thread, i), 4)) for i in (0, 1)]
        exchanged = np.empty_like(lower)
        for halves in ((0,), (1,)) if is_halved else ((0, 1),):
            positions = [x for x in np.ndindex(lower.shape) if x[4] in halves]
            layout.wait()
            for part, position in itertools.product((0, 1), positions):
                block, offset = layout.store_offset(position[1], position[4], part)
                for i in (0, 1):
                    number = _extract((lower, upper)[part][position], i)
                    code = _store_if("f32", block, 4 * offset)
                    _run(None, [number, blocks[i], stores[i]], code, "f,r,r")
            layout.wait()
            for position in positions:
                offset = layout.load_offset(position[1], position[4])
                code = f"ld.shared.f32 $0, [$1 + {4 * offset}];"
                entries = [_run(ir.F32Type.get(), [load], code, "=f,r") for load in loads]
                exchanged[position] = vector.from_elements(lower[position].type, entries)
        return exchanged

    return registers.map_registers(exchange, lower.shape, scratch, lower, upper)


def unskew(
    scratch: Any,
    tile: jax.Array,
    dtype: Any,
    *,
    keeps_rows: bool,
    is_cleared: bool,
    is_halved: bool,
) -> tuple[jax.Array, jax.Array]:
    """Convert a tile of 64 rows and 64 columns to an array by diagonal. Inverse of `skew`.

    Let d = row - column + 64 be the diagonal of entry (row, column) of the tile. If `keeps_rows` is
    True, the array has shape (64, 128), and the entry moves to array[row, d]. If it is False, the
    array has shape (128, 64), and the entry moves to array[d, column]. All other elements of the
    array are 0. Return two halves of the array: the diagonals 0 to 63, and the diagonals 64 to 127.

    Args:
      scratch: Buffer of `UNSKEW_ENTRIES` numbers of 16 bits, which only this warpgroup uses. It has
        half as many numbers if `is_halved`.
      dtype: Dtype of the result, with 16 bits.
      keeps_rows: True if the columns of the array are diagonals, False if its rows are diagonals.
      is_cleared: True if only `unskew` uses the buffer, and if `clear` was called once before its
        first use. If False, the buffer is filled with zeros first: it may be the buffer of `skew`.
      is_halved: If True, compute one half of the result after the other, in a buffer of half the
        size. This requires `keeps_rows`, and that `is_cleared` is False.
    """
    if is_interpreted():
        rows, columns = _indices()
        diagonals = rows - columns + SIZE
        index = (rows, diagonals) if keeps_rows else (diagonals, columns)
        shape = (SIZE, 2 * SIZE) if keeps_rows else (2 * SIZE, SIZE)
        entries = jnp.zeros(shape, tile.dtype).at[index].set(tile)
        lower, upper = jnp.split(entries, 2, axis=1 if keeps_rows else 0)
        return lower, upper
    layout = _UnskewedRows(is_halved) if keeps_rows else _UnskewedColumns()
    tile = tile.astype(dtype)

    def store(part: int | None) -> Callable:
        @plgpu.inline_mgpu(arg_types=(plgpu.RefType(), plgpu.Layout.WGMMA))
        def store_part(_, scratch, tile):
            thread, address = _Thread.current(), _shared_address(scratch)
            blocks, bases = zip(*(layout.store_base(thread, i) for i in (0, 1)), strict=True)
            stores = [_add(address, _times(base, 2)) for base in bases]
            layout.wait()
            if not is_cleared:
                _store_zeros(address, 2 * UNSKEW_ENTRIES // (1 + is_halved))
                layout.wait()
            for position, pair in np.ndenumerate(tile.registers):
                block, offset = layout.store_offset(position[1], position[4], part or 0)
                for i in (0, 1):
                    entry = arith.bitcast(ir.IntegerType.get_signless(16), _extract(pair, i))
                    if part is None:
                        code = f"st.shared.b16 [$1 + {2 * offset}], $0;"
                        _run(None, [entry, stores[i]], code, "h,r")
                    else:
                        code = _store_if("b16", block, 2 * offset)
                        _run(None, [entry, blocks[i], stores[i]], code, "h,r,r")
            layout.wait()

        return store_part

    def load(part: int) -> Callable:
        def load_part(scratch, like):
            thread = _Thread.current()
            base = _add(_shared_address(scratch), _times(layout.load_base(thread), 2))
            loaded = np.empty_like(like)
            for position in np.ndindex(loaded.shape):
                offset = layout.load_offset(position[1], position[4], part)
                code = f"ld.shared.b32 $0, [$1 + {2 * offset}];"
                word = _run(ir.IntegerType.get_signless(32), [base], code, "=r,r")
                loaded[position] = utils.bitcast(word, like[position].type)
            return loaded

        return load_part

    halves = []
    for part in (0, 1):
        if is_halved or part == 0:
            store(part if is_halved else None)(scratch, tile)
        halves.append(
            registers.map_registers(load(part), tile.shape, scratch, tile, dtype=tile.dtype)
        )
    return halves[0], halves[1]


def clear(scratch: Any) -> None:
    """Fill a buffer with zeros, before `unskew` uses it as `scratch` for the first time."""
    if is_interpreted():
        return

    @plgpu.inline_mgpu(arg_types=(plgpu.RefType(),))
    def store(_, scratch):
        _store_zeros(_shared_address(scratch), 2 * UNSKEW_ENTRIES)
        utils.warpgroup_barrier()

    store(scratch)


def _store_zeros(address: ir.Value, size: int) -> None:
    """Fill a buffer with zeros.

    Each warp fills one quarter of the buffer, which is the part that it uses if `keeps_rows`.

    Args:
      address: Address of the buffer in shared memory, in bytes.
      size: Number of bytes.
    """
    index = utils.thread_idx()
    warp, lane = _and(_shift_right(index, 5), 3), _and(index, 31)
    quarter = size // 4
    base = _add(address, _add(_times(warp, quarter), _times(lane, 16)))
    for start in range(0, quarter, 32 * 16):
        code = f"st.shared.v4.b32 [$0 + {start}], {{$1, $1, $1, $1}};"
        _run(None, [base, _constant(0)], code, "r,r")


def _indices() -> tuple[jax.Array, jax.Array]:
    """Return two tiles: the row index and the column index of each entry of a 64 x 64 tile."""
    rows, columns = (lax.broadcasted_iota(jnp.int32, (SIZE, SIZE), axis) for axis in (0, 1))
    return rows, columns


# The rest of this file describes where a thread finds the entries of a tile. A register of a thread
# contains the entries (row, column) and (row, column + 1) with
#     row = 16 warp + 8 half + lane_row,    column = 8 group + lane_column,
# where `half` is 0 or 1, and `group` is from 0 to 7. Buffers store groups of 8 columns: a row of a
# group is contiguous, and so are the rows of a group. Offsets and bases are numbers of entries. The
# base depends on the thread and on i, 0 or 1, which selects the entry of a register. The offset
# is a constant of the program.
#
# The buffer of `skew` has float32 numbers, so that rows r and r + 4 of a group would use the same
# banks. The lowest bit of their columns is therefore different: `_place` flips it.


class _Thread(NamedTuple):
    """Position of the entries that a thread holds in a tile of 64 rows and 64 columns.

    Warp w holds the rows 16 * w to 16 * w + 15 of the tile, which consist of blocks of 8 rows and 8
    columns. A thread holds two adjacent entries at the same place in each of these blocks.

    Attributes:
      double_warp: 2 * w, where w is the index of the warp, from 0 to 3.
      lane_row: Row of both entries in each block, from 0 to 7.
      lane_column: Column of the first of the two entries in each block: 0, 2, 4 or 6.
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
        """Index of the first of the two rows of the tile in which the thread holds entries.

        The index of the second row is larger by 8.
        """
        return _add(_times(self.double_warp, 8), self.lane_row)


class _SkewedRows:
    """Layout of the buffer in shared memory that `skew` uses if `keeps_rows` is True.

    Each warp has a quarter of the buffer for its 16 rows of the tile. A quarter consists of 8
    groups. A group has 16 rows and 8 columns: columns 0 to 7 of the tile are in group 0, and so on.
    The index of a number in the buffer is a base, which depends on the thread, plus an offset,
    which is a constant.

    If `is_halved`, a group has only 8 rows: those of one half of the registers of a thread.
    """

    wait = staticmethod(utils.warp_barrier)

    def __init__(self, is_halved: bool):
        self.half = 0 if is_halved else 8 * COLUMNS
        self.group = 8 * COLUMNS + self.half

    def store_base(self, thread: _Thread, i: int) -> tuple[ir.Value, ir.Value]:
        """Return two numbers of a thread: `block` and `base`. See `store_offset`."""
        difference = _subtract(thread.lane_row, _add(thread.lane_column, i))
        group = _shift_right(difference, 3)
        place = _place(_and(difference, 7), thread.lane_row)
        block = _add(thread.double_warp, group)
        return block, _add(self._base(thread), _add(_times(block, self.group), place))

    def store_offset(self, group: int, half: int, part: int) -> tuple[int, int]:
        """Return two constants for the store of one register: `block` and `offset`.

        The register holds two numbers of `lower` (part 0) or `upper` (part 1), in the columns
        8 * group to 8 * group + 7. The sum of this `block` and of the `block` of the thread is the
        group of 8 columns of the tile to which a number moves. The tile has the groups 0 to 7:
        numbers that belong to other groups are not stored. `offset` is the part of the index in the
        buffer that is the same for all threads.

        Args:
          group: Index of the group of 8 columns that contains the register, from 0 to 7.
          half: 0 if the register is in the first row of the thread, 1 if it is in the second row.
          part: 0 for `lower`, 1 for `upper`.
        """
        block = half - group + 8 * (1 - part)
        return block, block * self.group + half * self.half

    def load_base(self, thread: _Thread, i: int) -> ir.Value:
        place = _place(_add(thread.lane_column, i), thread.lane_row)
        return _add(self._base(thread), place)

    def load_offset(self, group: int, half: int) -> int:
        return group * self.group + half * self.half

    def _base(self, thread: _Thread) -> ir.Value:
        quarter = _times(thread.double_warp, 8 * self.group // 2)
        return _add(quarter, _times(thread.lane_row, COLUMNS))


class _SkewedColumns:
    """Layout of the buffer in shared memory that `skew` uses if `keeps_rows` is False.

    The buffer consists of 8 groups. A group has 64 rows and 8 columns: columns 0 to 7 of the tile
    are in group 0, and so on. The index of a number in the buffer is a base, which depends on the
    thread, plus an offset, which is a constant.
    """

    wait = staticmethod(utils.warpgroup_barrier)

    def store_base(self, thread: _Thread, i: int) -> tuple[ir.Value, ir.Value]:
        """Return two numbers of a thread: `block` and `base`. See `store_offset`."""
        column = _add(thread.lane_column, i)
        total = _add(thread.lane_row, column)
        row = _add(_times(thread.double_warp, 8), total)
        block = _add(thread.double_warp, _shift_right(total, 3))
        return block, _add(_times(row, 8), _place(column, total))

    def store_offset(self, group: int, half: int, part: int) -> tuple[int, int]:
        """Return two constants for the store of one register: `block` and `offset`.

        The register holds two numbers of `lower` (part 0) or `upper` (part 1), in the columns
        8 * group to 8 * group + 7. The sum of this `block` and of the `block` of the thread is the
        block of 8 rows of the tile to which a number moves. The tile has the blocks 0 to 7: numbers
        that belong to other blocks are not stored. `offset` is the part of the index in the buffer
        that is the same for all threads.

        Args:
          group: Index of the group of 8 columns that contains the register, from 0 to 7.
          half: 0 if the register is in the first row of the thread, 1 if it is in the second row.
          part: 0 for `lower`, 1 for `upper`.
        """
        block = half + group - 8 * (1 - part)
        return block, group * 8 * SIZE + block * 64

    def load_base(self, thread: _Thread, i: int) -> ir.Value:
        place = _place(_add(thread.lane_column, i), thread.lane_row)
        return _add(_times(thread.row, 8), place)

    def load_offset(self, group: int, half: int) -> int:
        return group * 8 * SIZE + 64 * half


class _UnskewedRows:
    """Layout of the buffer in shared memory that `unskew` uses if `keeps_rows` is True.

    The array has 64 rows and 128 diagonals. Each warp has a quarter of the buffer for its 16 rows.
    A quarter consists of 16 groups of 16 rows and 8 columns. The index of a number in the buffer is
    a base, which depends on the thread, plus an offset, which is a constant.

    If `is_halved`, a quarter consists of only 8 groups: those of one half of the diagonals.
    """

    wait = staticmethod(utils.warp_barrier)
    group = 16 * COLUMNS

    def __init__(self, is_halved: bool):
        self.groups = 8 if is_halved else 16

    def store_base(self, thread: _Thread, i: int) -> tuple[ir.Value, ir.Value]:
        """Return two numbers of a thread: `block` and `base`. See `store_offset`."""
        difference = _subtract(thread.lane_row, _add(thread.lane_column, i))
        block = _add(thread.double_warp, _shift_right(difference, 3))
        base = _add(_times(block, self.group), self._base(thread))
        return block, _add(base, _and(difference, 7))

    def store_offset(self, group: int, half: int, part: int) -> tuple[int, int]:
        """Return two constants for the store of one register: `block` and `offset`.

        The sum of this `block` and of the `block` of the thread is the group of diagonals to which
        a number moves, relative to the first group of the half `part`. If `is_halved`, it is stored
        only if this number is from 0 to 7. Otherwise, `part` is 0. `offset` is the part of the
        index in the buffer that is the same for all threads.
        """
        block = 8 * (1 - part) + half - group
        return block, block * self.group + half * 8 * COLUMNS

    def load_base(self, thread: _Thread) -> ir.Value:
        return _add(self._base(thread), thread.lane_column)

    def load_offset(self, group: int, half: int, part: int) -> int:
        first = 8 * part if self.groups == 16 else 0
        return (group + first) * self.group + half * 8 * COLUMNS

    def _base(self, thread: _Thread) -> ir.Value:
        quarter = _times(thread.double_warp, self.groups * self.group // 2)
        return _add(quarter, _times(thread.lane_row, COLUMNS))


class _UnskewedColumns:
    """Layout of the buffer in shared memory that `unskew` uses if `keeps_rows` is False.

    The buffer contains an array of 128 diagonals and 64 columns, as 8 groups of 128 rows and 8
    columns. The index of a number in the buffer is a base, which depends on the thread, plus an
    offset, which is a constant.
    """

    wait = staticmethod(utils.warpgroup_barrier)

    def store_base(self, thread: _Thread, i: int) -> tuple[ir.Value, ir.Value]:
        """Return two numbers of a thread. The first is not used: see `_UnskewedRows`."""
        column = _add(thread.lane_column, i)
        base = _add(_times(_add(_subtract(thread.row, column), SIZE), 8), column)
        return base, base

    def store_offset(self, group: int, half: int, part: int) -> tuple[int, int]:
        """Return two constants. The first is not used: see `_UnskewedRows`."""
        return 0, group * 16 * SIZE + 64 * (half - group)

    def load_base(self, thread: _Thread) -> ir.Value:
        return _add(_times(thread.row, 8), thread.lane_column)

    def load_offset(self, group: int, half: int, part: int) -> int:
        return group * 16 * SIZE + 64 * half + 8 * SIZE * part


def _place(column: ir.Value, row: ir.Value) -> ir.Value:
    """Return the column of the buffer of `skew` at which a number is stored, from 0 to 7.

    In rows 4 to 7 of every 8 rows, column 0 is exchanged with column 1, 2 with 3, 4 with 5, and 6
    with 7. No two threads of a warp then use the same bank.

    Args:
      column: Column of the number in its group of 8 columns.
      row: Row of the number.
    """
    return arith.xori(column, _and(_shift_right(row, 2), 1))


def _store_if(kind: str, block: int, offset: int) -> str:
    """Return PTX code that stores a number, if a block is inside of the buffer.

    The operands of the code are the number, the block of the thread, and an address.

    Args:
      kind: PTX type of the number.
      block: Constant part of the block. The sum of both parts must be from 0 to 7.
      offset: Constant part of the address, in bytes.
    """
    return f"""{{
        .reg .pred p;
        .reg .s32 block;
        add.s32 block, $1, {block};
        setp.le.u32 p, block, 7;
        @p st.shared.{kind} [$2 + {offset}], $0;
    }}"""


def _run(kind: Any, arguments: list[ir.Value], code: str, constraints: str) -> Any:
    """Emit inline PTX code, and return its result.

    Args:
      kind: MLIR type of the result. None if the code has no result.
      arguments: Operands of the code, after the result.
      code: PTX code. $0, $1, ... stand for the result (if there is one) and the arguments.
      constraints: Register types of the operands, in the syntax of LLVM inline assembly.
    """
    kind = ir.Type.parse("!llvm.void") if kind is None else kind
    return llvm.inline_asm(kind, arguments, code, constraints, has_side_effects=True)


def _shared_address(ref: Any) -> ir.Value:
    """Return the address of a shared-memory buffer as a 32-bit integer, in bytes."""
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
