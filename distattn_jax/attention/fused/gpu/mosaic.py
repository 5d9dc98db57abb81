"""Operations on tiles in Mosaic GPU: register layouts, shared memory and matrix products.

A tile belongs to one warpgroup of 128 threads and has a multiple of 64 rows. Tiles have the layout
of a WGMMA accumulator. A per-row vector has one number for each row of a tile, and a per-column
vector has one number for each column. A thread that stores entries of row i also stores number i of
every per-row vector, and likewise for columns. Expanding a vector to a tile thus moves no data.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.mosaic.gpu import FragmentedArray, utils
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith, llvm, memref, vector

from distattn_jax.attention.fused.distance_functions import COLUMN_GROUP
from distattn_jax.attention.fused.interpreter import is_interpreted

MAX_SWIZZLED_COLUMNS = 64  # 16-bit numbers in the widest swizzle, which has 128 bytes
_load: Any = plgpu.load  # untyped, because its signature changed with JAX 0.11


def kernel_options() -> dict[str, Any]:
    """Return the keyword arguments of `plgpu.kernel` that all kernels share."""
    params = plgpu.CompilerParams(
        approx_math=True,  # one instruction for exp2: accurate enough for 16-bit inputs
        # Each thread runs the operations on its own registers, in the layouts that the functions
        # below choose. The other semantics search for layouts, which takes up to 30 seconds.
        lowering_semantics=plgpu.LoweringSemantics.Lane,
    )
    options: dict[str, Any] = {"compiler_params": params}
    if is_interpreted():
        options["interpret"] = plgpu.InterpretGPUParams(detect_races=True)  # type: ignore[attr-defined,unused-ignore]
    return options


def matrix_scratch(shape: tuple[int, ...], dtype: Any) -> Any:
    """Return the type of a shared-memory buffer in the layout that matrix products require."""
    width = min(shape[-1], MAX_SWIZZLED_COLUMNS)
    swizzle = width * jnp.dtype(dtype).itemsize
    transforms = (plgpu.TilingTransform((8, width)), plgpu.SwizzleTransform(swizzle))
    return plgpu.SMEM(shape, dtype, transforms=transforms)


def plain_scratch(shape: tuple[int, ...], dtype: Any) -> Any:
    """Return the type of a shared-memory buffer that no matrix product reads."""
    return plgpu.SMEM(shape, dtype)


def operand_scratch(shape: tuple[int, ...], dtype: Any) -> Any:
    """Return the buffer type that `accumulate_products` needs in the interpreter, else None."""
    return matrix_scratch(shape, dtype) if is_interpreted() else None


def full(shape: tuple[int, ...], number: Any) -> jax.Array:
    """Return a tile (if `shape` has two axes) or a per-row vector, filled with `number`."""
    layout = plgpu.Layout.WGMMA if len(shape) == 2 else plgpu.Layout.WGMMA.reduce(1)
    return plgpu.layout_cast(jnp.full(shape, number, jnp.float32), layout)


def row_indices(count: int) -> jax.Array:
    """Return 0, 1, ..., count - 1 as a per-row vector."""
    return plgpu.broadcasted_iota(jnp.int32, (count,), 0, layout=plgpu.Layout.WGMMA.reduce(1))


def column_indices(count: int) -> jax.Array:
    """Return 0, 1, ..., count - 1 as a per-column vector."""
    return plgpu.broadcasted_iota(jnp.int32, (count,), 0, layout=plgpu.Layout.WGMMA.reduce(0))


def load_tile(ref: Any) -> jax.Array:
    """Load a tile from shared memory as float32."""
    return _load(ref, layout=plgpu.Layout.WGMMA).astype(jnp.float32)


def load_operand(ref: Any) -> Any:
    """Load a matrix from shared memory as the first operand of matrix products.

    The interpreter cannot multiply a tile in registers, and gets the reference.
    """
    return ref if is_interpreted() else _load(ref, layout=plgpu.Layout.WGMMA)


def copy_operand(operand: Any, index: jax.Array) -> Any:
    """Return a copy of a matrix that `load_operand` returned, for the products of one tile.

    ptxas 13.0 keeps an operand that all tiles of a loop share in registers which the same loop
    overwrites. The copy therefore depends on the tile: its bits are combined with `index` >> 31,
    which is 0.

    Args:
      operand: Matrix in registers.
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


def load_entries(ref: Any) -> jax.Array:
    """Load a tile from a buffer of type `plain_scratch`, as int32."""
    return _load(ref, layout=plgpu.Layout.WGMMA, optimized=False).astype(jnp.int32)


def load_per_row(ref: Any) -> jax.Array:
    """Load a per-row vector from shared memory."""
    return _load(ref, layout=plgpu.Layout.WGMMA.reduce(1))


def load_per_column(ref: Any) -> jax.Array:
    """Load a per-column vector from shared memory."""
    return _load(ref, layout=plgpu.Layout.WGMMA.reduce(0))


def load_per_column_from_global(ref: Any) -> jax.Array:
    """Load a per-column vector from global memory."""
    return _load(ref, layout=plgpu.Layout.WGMMA.reduce(0), optimized=False)


def sum_rows(tile: jax.Array) -> jax.Array:
    """Return the sum of each row of a tile as a per-row vector."""
    return plgpu.layout_cast(tile.sum(axis=1), plgpu.Layout.WGMMA.reduce(1))


def expand_per_row(vector: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Return a tile whose entry (i, j) is vector[i]."""
    vector = plgpu.layout_cast(vector, plgpu.Layout.WGMMA.reduce(1))
    return plgpu.layout_cast(lax.broadcast_in_dim(vector, shape, [0]), plgpu.Layout.WGMMA)


def expand_per_column(vector: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Return a tile whose entry (i, j) is vector[j]."""
    vector = plgpu.layout_cast(vector, plgpu.Layout.WGMMA.reduce(0))
    return plgpu.layout_cast(lax.broadcast_in_dim(vector, shape, [1]), plgpu.Layout.WGMMA)


# The next five functions index the registers of a tile directly; only a GPU can check them. Axis 1
# of the array of registers numbers groups of COLUMN_GROUP columns. Axis 4 has two entries, for the
# rows i and i + 8, where 8 is also COLUMN_GROUP. A register holds two adjacent entries of a row.


def reciprocal(tile: jax.Array) -> jax.Array:
    """Return 1 / tile with one instruction per entry. The result is 0 for entries above 2¹²⁶."""
    if is_interpreted():
        return 1 / tile

    def invert(tile):
        registers = np.empty_like(tile)
        for index, pair in np.ndenumerate(tile):
            for i in range(2):
                x = vector.extract(pair, dynamic_position=[], static_position=[i])
                x = llvm.inline_asm(x.type, [x], "rcp.approx.ftz.f32 $0, $1;", "=f,f")
                pair = vector.insert(x, pair, dynamic_position=[], static_position=[i])
            registers[index] = pair
        return registers

    return map_registers(invert, tile.shape, tile)


def gather(ref: Any, *indices: jax.Array) -> jax.Array:
    """Return a tile whose entry (i, j) is ref[indices[0][i, j], indices[1][i, j], ...], as float32.

    Each thread loads its entries one by one. Entries that `share_diagonals` replaces are not
    loaded. If the memory warpgroup will overwrite the buffer, call `plgpu.commit_smem()` before the
    buffer is released, so that all loads are complete.

    Args:
      ref: Buffer in shared memory without a tiled or swizzled layout, such as `plain_scratch`.
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
    """Load one number from shared memory. Its indices are entry `i` of each pair of indices."""
    entries = [vector.extract(pair, dynamic_position=[], static_position=[i]) for pair in pairs]
    return memref.load(ref, [arith.index_cast(ir.IndexType.get(), entry) for entry in entries])


def load_diagonals(ref: Any, shape: tuple[int, int]) -> jax.Array:
    """Return a tile whose entry (i, j) is ref[i - j + columns], as float32.

    A thread loads each of its diagonals once. The addresses of a thread have constant differences,
    so that they take one register. This is faster than `gather`.

    Args:
      ref: Vector in shared memory with as many numbers as the tile has rows and columns together.
      shape: Number of rows and number of columns of the tile.
    """
    rows = expand_per_row(row_indices(shape[0]), shape)
    diagonals = rows - expand_per_column(column_indices(shape[1]), shape) + shape[1]
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

    Entry (i + 8, j + 8) of the tile equals entry (i, j), and the two entries are in registers of
    the same thread. This function copies the register of (i, j) to (i + 8, j + 8). The compiler
    then removes the code that computes (i + 8, j + 8), because its result is not used.

    Args:
      tile: Tile in which entry (i, j) depends on i - j alone (a Toeplitz tile).
    """
    if is_interpreted():
        return tile

    def copy_registers(tile):
        tile = tile.copy()
        tile[:, 1:, :, :, 1] = tile[:, :-1, :, :, 0]
        return tile

    return map_registers(copy_registers, tile.shape, tile)


def extend_geometric(
    nearest: jax.Array, factor: jax.Array, columns: int, *, is_increasing: bool
) -> jax.Array:
    """Return a tile with the entries c b^R, where R is the distance |i - j| of query i and key j.

    The numbers b and c are constant in the tile. The columns are divided into groups of
    `COLUMN_GROUP` columns. Only the entries of the group with the smallest distances are given.
    Each further group is the previous group times `factor`.

    Args:
      nearest: Entries of the group with the smallest distances, which is the first group of the
        tile if `is_increasing` is True, otherwise the last group.
      factor: The number b^COLUMN_GROUP.
      columns: Number of columns of the tile.
      is_increasing: True if the distance increases with the column index.
    """

    def extend(nearest, factor):
        upper, lower = nearest[0, 0, 0, 0, :, 0, 0, 0, 0]  # rows i and i + 8
        factor = vector.broadcast(upper.type, factor.item())
        # Moving 8 rows down is the same as moving 8 columns to the left. One sequence of groups
        # therefore serves both halves of the rows, shifted by one group.
        groups = [lower, upper] if is_increasing else [upper, lower]
        while len(groups) < columns // COLUMN_GROUP + 1:
            groups.append(arith.mulf(groups[-1], factor))
        if not is_increasing:
            groups.reverse()
        registers = np.stack([groups[1:], groups[:-1]], axis=-1)  # rows i, and i + 8
        return registers.reshape(1, -1, 1, 1, 2, 1, 1, 1, 1)

    return map_registers(extend, (nearest.shape[0], columns), nearest, factor)


def map_registers(
    function: Callable, shape: tuple[int, ...], *arguments: Any, dtype: Any = jnp.float32
) -> jax.Array:
    """Return a tile whose registers are a function of the registers of the arguments.

    Args:
      function: Returns the registers of the tile, given the arguments as arrays of MLIR values. For
        a reference, it receives the reference as one MLIR value.
      shape: Shape of the tile.
      *arguments: Tiles, scalars or references to shared memory.
      dtype: Dtype of the tile.
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
    """Return the type that `plgpu.inline_mgpu` needs for a tile, a scalar or a reference."""
    if not isinstance(argument, jax.Array):
        return plgpu.RefType()
    return plgpu.Layout.WGMMA if argument.ndim else plgpu.Layout.WG_SPLAT(())


def multiply_transposed(
    *pairs: tuple[Any, Any], initial: tuple[jax.Array, ...] | None = None
) -> tuple[jax.Array, ...]:
    """Return a bᵀ for each pair (a, b) of matrices.

    All products are started before the warpgroup waits for the first result.

    Args:
      *pairs: Matrix a in shared memory or in registers, and matrix b in shared memory.
      initial: Tiles that are added to the products. None adds nothing.
    """
    if initial is not None and not is_interpreted():
        return _multiply_onto(initial, pairs)

    def multiply(*accumulators):
        for accumulator, (a, b) in zip(accumulators, pairs, strict=True):
            plgpu.wgmma(accumulator, a, b.transpose((1, 0)))
        return tuple(accumulator[...] for accumulator in accumulators)

    shapes = (plgpu.ACC((a.shape[0], b.shape[0]), jnp.float32) for a, b in pairs)
    products = pl.run_scoped(multiply, *shapes)
    if initial is None:
        return products
    return tuple(a + b for a, b in zip(initial, products, strict=True))


def _multiply_onto(
    initial: tuple[jax.Array, ...], pairs: tuple[tuple[Any, Any], ...]
) -> tuple[jax.Array, ...]:
    """Return initial + a bᵀ for each pair (a, b) of matrices in shared memory."""

    def multiply(accumulators):
        for accumulator, (a, b) in zip(accumulators, pairs, strict=True):
            plgpu.wgmma(accumulator, a, b.transpose((1, 0)))

    return pl.run_state(multiply)(tuple(plgpu.ACC.init(x) for x in initial))


def accumulate_products(
    totals: tuple[jax.Array, ...], *operands: Sequence[tuple[jax.Array, Any]], scratch: Any
) -> tuple[jax.Array, ...]:
    """Return total + Σ a b for each total, summed over its pairs (a, b).

    Args:
      totals: Accumulators in registers.
      *operands: Pairs of each total: tile a in registers, and matrix b in shared memory.
      scratch: Buffer in shared memory. The interpreter copies a to this buffer, because it cannot
        multiply a tile in registers. `scratch` is None on a GPU.
    """
    cast = tuple(tuple((a.astype(b.dtype), b) for a, b in pairs) for pairs in operands)
    if scratch is not None:
        results = []
        for total, pairs in zip(totals, cast, strict=True):
            for a, b in pairs:
                total = _accumulate_through_scratch(total, a, b, scratch)
            results.append(total)
        return tuple(results)

    def multiply(accumulators):
        for accumulator, pairs in zip(accumulators, cast, strict=True):
            for a, b in pairs:
                plgpu.wgmma(accumulator, a, b)

    return pl.run_state(multiply)(tuple(plgpu.ACC.init(total) for total in totals))


def _accumulate_through_scratch(total: jax.Array, a: jax.Array, b: Any, scratch: Any) -> jax.Array:
    """Return `total` + `a` @ `b`, after copying the tile `a` to the buffer `scratch`."""
    scratch[...] = a
    plgpu.commit_smem()

    def multiply(accumulator):
        plgpu.wgmma(accumulator, scratch, b)
        return accumulator[...]

    return total + pl.run_scoped(multiply, plgpu.ACC((a.shape[0], b.shape[1]), jnp.float32))
