"""Sums of the entries of a tile along its diagonals, added up over all tiles of a warpgroup.

A function of the relative position has one number for each diagonal of the score map: see
`TableScoring`. The gradient of this number is the sum of the gradients of all entries of the
diagonal. Each warpgroup adds up the diagonals of its tiles in an array of its own in global memory,
so that the order of the additions is fixed and there are no atomic operations. The caller adds up
the arrays of all warpgroups of a head.

Entry (row, column) of a tile of 64 rows and n columns is on diagonal row - column + n of the tile.
In each group of 8 columns, a thread has two adjacent columns of the rows r and r + 8. Entries
(r, c) and (r + 8, c + 8) are on the same diagonal, so the thread first adds up such entries. The
threads of a warp then exchange their sums. Each of the four warps writes the sums over its 16 rows
to its own part of shared memory, and `add` adds up the four parts. If there are two tables, they
use the same part of shared memory, one after the other. Only a GPU can check this code: the
interpreter runs plain JAX instead.
"""

import functools
import operator
from collections.abc import Iterable
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.mosaic.gpu import utils
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith, llvm, memref, vector

from distattn_jax.attention.fused.gpu import mosaic, registers
from distattn_jax.attention.fused.gpu.kernel_body import Tile, WarpgroupContext
from distattn_jax.attention.fused.interpreter import is_interpreted

THREADS = 128  # of a warpgroup
WARPS = 4  # of a warpgroup
WARP_ROWS = 16  # of a tile, which belong to one warp
ROW_STEP = 8  # between the two rows of a thread
SLACK = 16  # The last sums of a warp, which are zeros, may lie behind its window.
Value = Any  # MLIR value
SCRATCH = "diagonal_sums"
Tables = dict[str, jax.Array]  # by name: see `Scoring.table_names`


def count_diagonals(columns: int) -> int:
    """Return the length of the array of diagonal sums of a tile of 64 rows, a multiple of 128.

    The tile uses the indices 1 to 63 + `columns`. The other elements are padding, so that each
    thread of the warpgroup adds up the same number of elements.
    """
    return 64 + columns + -(64 + columns) % THREADS


def scratch_buffers(columns: int) -> dict[str, tuple[tuple[int, ...], Any]]:
    """Return {name: (shape, dtype)} of the buffer in shared memory that `add` needs.

    Args:
      columns: Number of columns of a tile.
    """
    return {SCRATCH: ((WARPS * (count_diagonals(columns) + SLACK),), jnp.float32)}


def fill_with_zeros(ref: Any) -> None:
    """Fill a vector in global memory with zeros. Its length is a multiple of 128."""

    def step(i, _):
        ref[pl.ds(i * THREADS, THREADS)] = _zeros(THREADS)

    lax.fori_loop(0, ref.shape[0] // THREADS, step, None)


def clear_buffer(context: WarpgroupContext) -> None:
    """Fill the buffer in shared memory with zeros.

    The warps write to fixed parts of the buffer. The other parts stay zero.
    """
    buffer = context.scratch[SCRATCH]
    if is_interpreted():
        buffer[...] = jnp.zeros(buffer.shape, buffer.dtype)
        return
    for start in range(0, buffer.shape[0], THREADS):
        count = min(THREADS, buffer.shape[0] - start)
        window = pl.ds(start + count - THREADS, THREADS)  # The last two windows may overlap.
        buffer[window] = _zeros(THREADS)
    mosaic.wait_for_threads()


def read(context: WarpgroupContext, tile: Tile, names: Iterable[str]) -> Tables:
    """Load the sums of the diagonals of a tile, as the earlier tiles have left them.

    The dict has one array for each of the tables in `names`. A kernel calls this function long
    before `add`, because global memory is slow.
    """
    return {name: mosaic.load_per_thread(_locate_diagonals(context, tile, name)) for name in names}


def read_factors(context: WarpgroupContext, tile: Tile, name: str) -> jax.Array:
    """Load one number for each diagonal of a tile from a vector of `KernelInputs.gathered`."""
    count = count_diagonals(tile.shape[1])
    return mosaic.load_per_thread(context.global_rows(name, tile.diagonal, count))


def add(
    context: WarpgroupContext,
    tile: Tile,
    sums: Tables,
    entries: Tables,
    factors: jax.Array | None = None,
) -> None:
    """Add the entries of a tile to the sums of their diagonals, and store the sums.

    All threads of the warpgroup must pass a barrier before the next call of `read` or `add`.

    Args:
      sums: Result of `read` for the tile.
      entries: One number for each entry of the tile, for each table.
      factors: Result of `read_factors`: numbers by which the entries are multiplied. None means 1.
    """
    count = count_diagonals(tile.shape[1])
    for i, (name, total) in enumerate(sums.items()):
        if is_interpreted():
            added = _sum_diagonals(entries[name], count)
        else:
            buffer = context.scratch[SCRATCH]
            if i > 0:  # All threads must have read the sums of the previous table.
                mosaic.wait_for_threads()
            _write_warp_sums(buffer, entries[name], count + SLACK)
            parts = [buffer.at[pl.ds(warp * (count + SLACK), count)] for warp in range(WARPS)]
            added = functools.reduce(operator.add, map(mosaic.load_per_thread, parts))
        total += added if factors is None else added * factors
        _locate_diagonals(context, tile, name)[...] = total


def _locate_diagonals(context: WarpgroupContext, tile: Tile, name: str) -> Any:
    """Return a reference to the sums of the diagonals of a tile for a table in global memory."""
    return context.summed[name].at[pl.ds(tile.diagonal, count_diagonals(tile.shape[1]))]


def _zeros(count: int) -> jax.Array:
    return plgpu.layout_cast(jnp.zeros((count,), jnp.float32), mosaic.per_thread_layout(count))


def _sum_diagonals(entries: jax.Array, count: int) -> jax.Array:
    """Return the sum of the entries of each diagonal of a tile, in plain JAX."""
    rows, columns = entries.shape
    diagonal = jnp.arange(rows)[:, None] - jnp.arange(columns)[None, :] + columns
    return jnp.zeros((count,), entries.dtype).at[diagonal].add(entries)


def _write_warp_sums(buffer: Any, entries: jax.Array, stride: int) -> None:
    """Write the sum of the entries of each diagonal to shared memory, separately for each warp.

    Args:
      buffer: Buffer with `stride` numbers for each warp.
      entries: Tile of 64 rows.
      stride: Length of the part of the buffer that belongs to one warp.
    """
    assert entries.shape[0] == WARPS * WARP_ROWS, "a warpgroup has 64 rows"
    arguments = (buffer, entries)

    @plgpu.inline_mgpu(arg_types=tuple(map(registers.argument_type, arguments)))
    def inlined(_, buffer, entries):
        threads = _Threads()
        sums = threads.exchange(_sum_within_thread(entries.registers))
        for i, number in enumerate(sums):
            memref.store(number, buffer, [threads.locate(i, stride)])
        utils.warpgroup_barrier()

    inlined(*arguments)


def _sum_within_thread(tile: Any) -> list[Value]:
    """Return the sums of the entries of a thread that are on the same diagonal.

    A register holds two entries in adjacent columns. Count the diagonals from the first row and the
    first column of the thread. For a tile of n columns, element k of the result is the sum of all
    registers on diagonal 8 k - n. The first and the last element are zeros.

    Args:
      tile: Registers of the tile, a NumPy array.
    """
    groups = tile.shape[1]
    pair_type = tile.flat[0].type
    zero = utils.c(0.0, pair_type)
    sums: list[Any] = [None] * (groups + 3)
    for position in np.ndindex(tile.shape):
        k = groups + position[4] - position[1]
        sums[k] = tile[position] if sums[k] is None else arith.addf(sums[k], tile[position])
    return [zero if x is None else x for x in sums]


class _Threads:
    """Position of a thread in its warp, and the exchange of sums within the warp.

    Thread 4 r + q of a warp has row r and the columns c = 2 q and c = 2 q + 1 of each group of 8
    columns. Its sum k (see `_sum_within_thread`) thus belongs to diagonal 8 k + r - c, apart from a
    constant.
    """

    def __init__(self):
        self.integer = ir.IntegerType.get_signless(32)
        thread = utils.thread_idx()
        self.lane = arith.andi(thread, self._integer(31))
        self.warp = arith.andi(arith.shrui(thread, self._integer(5)), self._integer(3))
        self.row = arith.shrui(self.lane, self._integer(2))
        self.column = arith.andi(self.lane, self._integer(3))

    def exchange(self, pairs: list[Value]) -> list[Value]:
        """Return the sums of the diagonals of the warp, of which each thread gets a part.

        Write the index of a diagonal as 8 k + x, with x from 0 to 7. Column c of a thread has
        x = (r - c) mod 8. If r < c, element k + 1 of the thread holds the sum of diagonal 8 k + x.
        In each of three steps, a thread adds sums that another thread sends. Both sums have the
        same x: the rows and the columns of the two threads differ by the same number, modulo 8. The
        first step adds up the two columns of a pair. In each of the last two steps, a thread keeps
        half of its sums and sends the other half. In the end, thread 4 r + q has the sums
        k = 4 i + q, with x = (r - 2 q) mod 8.

        Args:
          pairs: Result of `_sum_within_thread`. Each element has two sums, one for each column.
        """
        first, second = ([_extract(pair, i) for pair in pairs] for i in (0, 1))
        columns = arith.muli(self.column, self._integer(2))
        is_left = [
            arith.cmpi(arith.CmpIPredicate.slt, self.row, arith.addi(columns, self._integer(i)))
            for i in (0, 1)
        ]
        next_row = self._shift_lane(self._integer(4))
        sums = []
        for k in range(len(pairs) - 1):
            own, other = (
                arith.select(is_left[i], x[k + 1], x[k]) for i, x in enumerate((first, second))
            )
            sums.append(arith.addf(own, _shuffle(other, next_row)))
        is_odd = self._has_bit(self.column, 1)
        step = arith.select(is_odd, self._integer(-9), self._integer(9))
        sums = self._halve(sums, is_odd, self._shift_lane(step))
        partner = arith.xori(self.lane, self._integer(18))
        return self._halve(sums, self._has_bit(self.column, 2), partner)

    def locate(self, i: int, stride: int) -> Value:
        """Return the index in shared memory of sum i of the result of `exchange`."""
        shift = arith.subi(self.row, arith.muli(self.column, self._integer(2)))
        x = arith.andi(shift, self._integer(7))
        index = arith.addi(x, arith.muli(self.column, self._integer(8)))
        # The first row of warp w is row 16 w of the tile, so that its diagonals begin at 16 w.
        start = arith.muli(self.warp, self._integer(stride + WARP_ROWS))
        index = arith.addi(arith.addi(index, start), self._integer(32 * i))
        return arith.index_cast(ir.IndexType.get(), index)

    def _halve(self, sums: list[Any], keeps_second: Value, partner: Value) -> list[Value]:
        """Keep one of each two sums, send the other to a partner, and add what the partner sends.

        Args:
          sums: Sums of the thread. A missing last element counts as 0.
          keeps_second: True if the thread keeps the second of each two sums.
          partner: Index of the partner in the warp.
        """
        if len(sums) % 2:
            sums = [*sums, utils.c(0.0, sums[0].type)]
        halves = []
        for a, b in zip(sums[::2], sums[1::2], strict=True):
            kept = arith.select(keeps_second, b, a)
            sent = arith.select(keeps_second, a, b)
            halves.append(arith.addf(kept, _shuffle(sent, partner)))
        return halves

    def _shift_lane(self, step: Value) -> Value:
        return arith.andi(arith.addi(self.lane, step), self._integer(31))

    def _has_bit(self, number: Value, bit: int) -> Value:
        masked = arith.andi(number, self._integer(bit))
        return arith.cmpi(arith.CmpIPredicate.ne, masked, self._integer(0))

    def _integer(self, number: int) -> Value:
        return utils.c(number, self.integer)


def _shuffle(number: Value, lane: Value) -> Value:
    """Return the float32 number of another thread of the warp."""
    code = "shfl.sync.idx.b32 $0, $1, $2, 0x1f, 0xffffffff;"
    return llvm.inline_asm(number.type, [number, lane], code, "=f,f,r", has_side_effects=True)


def _extract(pair: Value, i: int) -> Value:
    return vector.extract(pair, dynamic_position=[], static_position=[i])
