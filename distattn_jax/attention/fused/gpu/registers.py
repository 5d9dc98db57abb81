"""Operations on single registers of a tile in Mosaic GPU. Only a GPU can check this code.

A tile has the layout of a WGMMA accumulator (see `mosaic`). Mosaic GPU represents the registers of
a thread as a NumPy array of MLIR values. This code uses three axes of the array. The index on axis
0 selects a group of 64 rows of the tile. The index on axis 1 selects a group of 8 columns
(COLUMN_GROUP). The index on axis 4 is 0 for a row i and 1 for row i + 8. A register holds two
adjacent entries of a row.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.mosaic.gpu import FragmentedArray, utils
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith, memref, vector

from distattn_jax.attention.fused.gpu import mosaic
from distattn_jax.attention.fused.interpreter import is_interpreted

COLUMN_GROUP = 8  # columns of a tile that neighbouring threads hold in the same register


def map_registers(
    function: Callable, shape: tuple[int, ...], *arguments: Any, dtype: Any = jnp.float32
) -> jax.Array:
    """Call a function with the registers of the arguments, and return its result as a tile.

    Args:
      function: Function of as many arguments as there are in `arguments`. It receives the registers
        of each tile or scalar as a NumPy array of MLIR values, and each reference as one MLIR
        value. It returns the registers of the result as a NumPy array of MLIR values.
      shape: Shape of the resulting tile.
      *arguments: Tiles, scalars, or references to shared or global memory.
      dtype: Dtype of the resulting tile.
    """
    layout = plgpu.Layout.WGMMA
    return_type = plgpu.ShapeDtypeStruct(shape, dtype, layout=layout)

    @plgpu.inline_mgpu(arg_types=tuple(map(argument_type, arguments)), return_type=return_type)
    def inlined(_, *arguments):
        return FragmentedArray(
            _registers=function(*(getattr(x, "registers", x) for x in arguments)),
            _layout=layout.to_mgpu(),
            _is_signed=None,
        )

    return inlined(*arguments)


def argument_type(argument: Any) -> Any:
    """Return the type of an argument, as `plgpu.inline_mgpu` expects it in `arg_types`.

    Args:
      argument: Tile, scalar, or reference to memory.
    """
    if not isinstance(argument, jax.Array):
        return plgpu.RefType()
    return plgpu.Layout.WGMMA if argument.ndim else plgpu.Layout.WG_SPLAT(())


def copy_operand(operand: Any, index: jax.Array) -> Any:
    """Return a copy of a matrix in registers, for the matrix products of one tile.

    The copy avoids a bug of ptxas 13.0: if all tiles of a loop use the same matrix in registers,
    ptxas keeps it in registers that the loop overwrites. The copy is therefore made to depend on
    the tile: its bits are combined (XOR) with `index` >> 31, which is always 0. In the interpreter,
    return `operand` unchanged.

    Args:
      operand: Result of `mosaic.load_operand`.
      index: Index of the tile, at least 0.
    """
    if is_interpreted():
        return operand

    def combine(registers, zero):
        copied = np.empty_like(registers)
        for position, pair in np.ndenumerate(registers):
            word = utils.bitcast(pair, ir.IntegerType.get_signless(32))
            copied[position] = utils.bitcast(arith.xori(word, zero.item()), pair.type)
        return copied

    zero = lax.shift_right_arithmetic(index, jnp.int32(31))
    return map_registers(combine, operand.shape, operand, zero, dtype=operand.dtype)


def gather(ref: Any, *indices: jax.Array) -> jax.Array:
    """Return a tile whose entry (i, j) is ref[indices[0][i, j], indices[1][i, j], ...], as float32.

    Each thread loads its entries one by one. If the result is passed to `share_diagonals`, the
    compiler removes the loads of entries that `share_diagonals` replaces. If a later copy
    overwrites the buffer, call `plgpu.commit_smem()` before the buffer is released, so that all
    loads are complete.

    Args:
      ref: Buffer in shared memory without a tiled or swizzled layout, such as
        `mosaic.plain_scratch`.
      *indices: One tile of int32 indices for each axis of the buffer. They must lie inside the
        buffer: nothing checks them.
    """
    indices = tuple(plgpu.layout_cast(index, plgpu.Layout.WGMMA) for index in indices)
    if is_interpreted():
        return ref[...][indices].astype(jnp.float32)

    def load(ref, *indices):
        registers = np.empty_like(indices[0])
        pair_type = ir.VectorType.get((2,), ref.type.element_type)
        for position in np.ndindex(registers.shape):
            entries = [_load_entry(ref, [index[position] for index in indices], i) for i in (0, 1)]
            registers[position] = vector.from_elements(pair_type, entries)
        return registers

    tile = map_registers(load, indices[0].shape, ref, *indices, dtype=ref.dtype)
    return tile.astype(jnp.float32)


def _load_entry(ref: ir.Value, pairs: list[ir.Value], i: int) -> ir.Value:
    """Load one number from shared memory.

    Args:
      ref: Buffer in shared memory.
      pairs: One register for each axis of the buffer. Each register holds two indices on this axis.
      i: 0 or 1, which selects one of the two indices of each register.
    """
    entries = [vector.extract(pair, dynamic_position=[], static_position=[i]) for pair in pairs]
    return memref.load(ref, [arith.index_cast(ir.IndexType.get(), entry) for entry in entries])


def load_diagonals(ref: Any, shape: tuple[int, int]) -> jax.Array:
    """Return a tile whose entry (i, j) is ref[i - j + columns], as float32.

    `rows` and `columns` are the two numbers in `shape`. The tile is constant along each diagonal,
    so that a thread loads only one number per diagonal. All addresses of a thread are one base
    address plus constants, so that they take one register. This is faster than `gather`.

    Args:
      ref: Vector of rows + columns numbers in shared memory.
      shape: Number of rows and number of columns of the tile.
    """
    rows = mosaic.expand_per_row(mosaic.row_indices(shape[0]), shape)
    diagonals = rows - mosaic.expand_per_column(mosaic.column_indices(shape[1]), shape) + shape[1]
    if is_interpreted():
        return gather(ref, diagonals)

    def load(ref, diagonals):
        first = vector.extract(diagonals.flat[0], dynamic_position=[], static_position=[0])
        first = arith.index_cast(ir.IndexType.get(), first)
        registers = np.empty_like(diagonals)
        pair_type = ir.VectorType.get((2,), ref.type.element_type)
        loaded = {}
        for position in np.ndindex(registers.shape):
            row_group, column_group, half = position[0], position[1], position[4]
            step = 64 * row_group + COLUMN_GROUP * (half - column_group)
            for i in (step, step - 1):
                if i not in loaded:
                    loaded[i] = memref.load(ref, [arith.addi(first, arith.constant(first.type, i))])
            registers[position] = vector.from_elements(pair_type, [loaded[step], loaded[step - 1]])
        return registers

    return map_registers(load, shape, ref, diagonals, dtype=ref.dtype).astype(jnp.float32)


def share_diagonals(tile: jax.Array) -> jax.Array:
    """Return the tile unchanged, but let the compiler compute only about half of its entries.

    The tile must be constant along each diagonal (a Toeplitz tile). Entry (i + 8, j + 8) then
    equals entry (i, j), and both are in registers of the same thread. This function copies the
    register of (i, j) to that of (i + 8, j + 8). The compiler then removes the code that computed
    entry (i + 8, j + 8), because its result is not used.
    """
    if is_interpreted():
        return tile

    def copy_registers(tile):
        tile = tile.copy()
        tile[:, 1:, :, :, 1] = tile[:, :-1, :, :, 0]
        return tile

    return map_registers(copy_registers, tile.shape, tile)


def sum_diagonals(tile: jax.Array) -> jax.Array:
    """Add pairs of entries on the same diagonal, so that fewer entries are left to be summed.

    Entries (i, j) and (i + 8, j + 8) are in registers of the same thread. This function adds entry
    (i + 8, j + 8) to entry (i, j). Of the result, use only the entries that `sum_columns` sums with
    `are_diagonals_summed`. In the interpreter, return `tile` unchanged.
    """
    if is_interpreted():
        return tile

    def add_registers(tile):
        tile = tile.copy()
        for position in np.ndindex(tile.shape):
            following = list(position)
            following[1], following[4] = position[1] + 1, 1
            if position[4] == 0 and following[1] < tile.shape[1]:
                tile[position] = _add(tile[position], tile[tuple(following)])
        return tile

    return map_registers(add_registers, tile.shape, tile)


def sum_columns(tile: jax.Array, *, are_diagonals_summed: bool) -> jax.Array:
    """Return a tile of 8 columns, whose column j is the sum of the columns j, j + 8, j + 16, ...

    Each thread adds its own registers, so that no data is exchanged between threads.

    Args:
      are_diagonals_summed: True if the tile is a result of `sum_diagonals`, or if its entries were
        computed from such a result entry by entry. The sum then omits the entries that
        `sum_diagonals` has added to others. The sums of single rows are wrong, but the sum of all
        rows is correct.
    """
    shape = (tile.shape[0], COLUMN_GROUP)
    if is_interpreted():
        return tile.reshape(tile.shape[0], -1, COLUMN_GROUP).sum(axis=1)

    def add_registers(tile):
        total = tile[:, :1].copy()
        for position in np.ndindex(total.shape):
            if position[4] == 1 and are_diagonals_summed:
                continue
            for group in range(1, tile.shape[1]):
                term = tile[(position[0], group, *position[2:])]
                total[position] = _add(total[position], term)
        return total

    return map_registers(add_registers, shape, tile)


def subtract_rounded(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return a - b for two tiles. If a is a product, it is rounded before the subtraction.

    The compiler usually computes a product and a difference in one instruction. If the product is
    needed for something else as well, this keeps both factors in registers instead of the product.
    """
    if is_interpreted():
        return a - b

    def subtract(a, b):
        difference = np.empty_like(a)
        for position in np.ndindex(a.shape):
            difference[position] = arith.subf(a[position], b[position])
        return difference

    return map_registers(subtract, a.shape, a, b)


def widen(tile: jax.Array) -> jax.Array:
    """Convert a tile from bfloat16 to float32.

    This reads the bits of two numbers at once. The compiler would otherwise convert the numbers to
    bfloat16 one by one, with slow instructions.
    """
    assert tile.dtype == jnp.bfloat16, "the upper half of a float32 number is a bfloat16 number"
    if is_interpreted():
        return tile.astype(jnp.float32)

    def widen_registers(tile):
        word_type, number_type = ir.IntegerType.get_signless(32), ir.F32Type.get()
        pair_type = ir.VectorType.get((2,), number_type)
        widened = np.empty_like(tile)
        for position, pair in np.ndenumerate(tile):
            word = utils.bitcast(pair, word_type)
            words = (
                arith.shli(word, utils.c(16, word_type)),
                arith.andi(word, utils.c(-(1 << 16), word_type)),
            )
            numbers = [utils.bitcast(x, number_type) for x in words]
            widened[position] = vector.from_elements(pair_type, numbers)
        return widened

    return map_registers(widen_registers, tile.shape, tile)


def _add(a: ir.Value, b: ir.Value) -> ir.Value:
    """Return a + b. One instruction may compute the sum and a product in it."""
    return arith.addf(a, b, fastmath=arith.FastMathFlags.contract)
