"""Loads and stores of the diagonal band of a tile, one entry at a time, in global memory.

The band consists of the entries near the diagonal: see `Band`. Mosaic GPU has no gather and no
scatter, so these functions emit one instruction per entry. Only a GPU can check this code: the
interpreter runs plain JAX instead.
"""

from typing import Any, NamedTuple

import jax
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.mosaic.gpu import FragmentedArray, utils
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith, llvm, vector

from distattn_jax.attention.fused.gpu import registers
from distattn_jax.attention.fused.interpreter import is_interpreted


class Band(NamedTuple):
    """Diagonal band of a tile: the entries whose query and key are closer than the clip distance k.

    A matrix in global memory has one row per query and one column per relation, from column 0 to
    column `last` = 2k: see `relations`. Entry (i, j) of the tile uses row i and column
    first + j - i of the matrix. If the tile is transposed, entry (i, j) uses row j and column
    first + i - j. The band consists of the entries that use one of the columns 1 to last - 1.

    Attributes:
      first: Column of the matrix that entry (0, 0) of the tile uses.
      last: Index of the last column of the matrix.
      is_transposed: True if the columns of the tile are queries.
    """

    first: jax.Array
    last: int
    is_transposed: bool

    def indices(self, shape: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
        """Return two tiles: the row and the column of the matrix that each entry uses.

        Only the interpreter calls this function. On a GPU, the result would take too many
        registers.
        """
        rows, columns = (lax.broadcasted_iota(jnp.int32, shape, axis) for axis in (0, 1))
        if self.is_transposed:
            return columns, self.first + rows - columns
        return rows, self.first + columns - rows


def gather_band(ref: Any, band: Band, *, before: jax.Array, after: jax.Array) -> jax.Array:
    """Return a tile whose entries in the band are loaded from a matrix in global memory.

    Args:
      ref: Float32 matrix in global memory: the rows that belong to the queries of the tile. The
        kernel must not write to this matrix.
      before: Tile from which the entries before the band (matrix column <= 0) are copied.
      after: Tile from which the entries after the band (matrix column >= `band.last`) are copied.
    """
    if is_interpreted():
        rows, columns = band.indices(before.shape)
        entries = ref[...][rows, jnp.clip(columns, 0, band.last)]
        entries = jnp.where(columns <= 0, before, entries)
        return jnp.where(columns >= band.last, after, entries)

    def load(ref, first, before, after):
        return _map_band(_LOAD_FROM_BAND, "=&f,f,f,r,l", band, first, (before, after), ref)

    return registers.map_registers(load, before.shape, ref, band.first, before, after)


def scatter_band(ref: Any, band: Band, tile: jax.Array) -> None:
    """Write the entries of a tile that are in the band to a matrix in global memory.

    Args:
      ref: Float32 matrix in global memory: the rows that belong to the queries of the tile. No
        other warpgroup may write to these rows.
    """
    if is_interpreted():
        rows, columns = band.indices(tile.shape)
        is_inside = (columns > 0) & (columns < band.last)
        columns = jnp.where(is_inside, columns, ref.shape[1])  # out of bounds, therefore dropped
        ref[...] = ref[...].at[rows, columns].set(tile, mode="drop")
        return
    arguments = (ref, band.first, tile)

    @plgpu.inline_mgpu(arg_types=tuple(map(registers.argument_type, arguments)))
    def inlined(_, ref, first, tile):
        _map_band(_STORE_TO_BAND, "f,r,l", band, first.registers, (tile.registers,), ref)

    inlined(*arguments)


def select_outside_band(tile: jax.Array, band: Band, *, before: bool) -> jax.Array:
    """Set all entries of a tile to 0, except for the entries on one side of the band.

    Args:
      before: If True, keep the entries before the band (matrix column <= 0). If False, keep the
        entries after the band (matrix column >= `band.last`).
    """
    if is_interpreted():
        _, columns = band.indices(tile.shape)
        return jnp.where(columns <= 0 if before else columns >= band.last, tile, 0.0)

    def select(first, tile):
        program = _SELECT_BEFORE if before else _SELECT_AFTER
        return _map_band(program, "=f,f,r", band, first, (tile,))

    return registers.map_registers(select, tile.shape, band.first, tile)


# This PTX code receives the column and the address of the first entry of a thread. The differences
# to the entry in question are constants of the code, so that few registers are required.
# Predicates avoid branches. The comparison of unsigned integers is True for entries in the band.
_LOAD_FROM_BAND = """{{
    .reg .pred p;
    .reg .s32 column;
    add.s32 column, $3, {column};
    setp.ge.s32 p, column, {last};
    selp.f32 $0, $2, $1, p;
    sub.s32 column, column, 1;
    setp.lt.u32 p, column, {last} - 1;
    @p ld.global.nc.f32 $0, [$4 + {address}];
}}"""
_STORE_TO_BAND = """{{
    .reg .pred p;
    .reg .s32 column;
    add.s32 column, $1, {column} - 1;
    setp.lt.u32 p, column, {last} - 1;
    @p st.global.f32 [$2 + {address}], $0;
}}"""
_SELECT_BEFORE = """{{
    .reg .pred p;
    setp.le.s32 p, $2, 0 - {column};
    selp.f32 $0, $1, 0f00000000, p;
}}"""
_SELECT_AFTER = """{{
    .reg .pred p;
    setp.ge.s32 p, $2, {last} - {column};
    selp.f32 $0, $1, 0f00000000, p;
}}"""


def _map_band(
    program: str, constraints: str, band: Band, first: Any, tiles: Any, ref: ir.Value | None = None
) -> Any:
    """Run PTX code for each entry of one or two tiles, and return the registers of the results.

    Args:
      program: PTX code for one entry. Its arguments are the entry of each tile, and the result of
        `_first_entry`.
      constraints: Register types of the result, if there is one, and of the arguments. The type of
        a result begins with "=".
      first: `Band.first`, as an array with one MLIR value.
      tiles: Registers of each tile.
      ref: Matrix in global memory that the code reads or writes, or None.
    """
    has_result = constraints.startswith("=")
    kind = ir.F32Type.get() if has_result else ir.Type.parse("!llvm.void")
    stride = 0 if ref is None else ir.MemRefType(ref.type).get_strides_and_offset()[0][0]
    start = _first_entry(band, first.item(), ref, stride)
    result = np.empty_like(tiles[0])
    for position in np.ndindex(result.shape):
        entries: list[Any] = []
        for i in (0, 1):
            query = 64 * position[0] + 8 * position[4]
            key = registers.COLUMN_GROUP * position[1] + i
            if band.is_transposed:
                query, key = key, query
            column = key - query
            code = program.format(
                column=column, address=4 * (query * stride + column), last=band.last
            )
            arguments = [*(_extract(tile[position], i) for tile in tiles), *start]
            entries.append(
                llvm.inline_asm(kind, arguments, code, constraints, has_side_effects=not has_result)
            )
        if has_result:
            result[position] = vector.from_elements(tiles[0][position].type, entries)
    return result


def _first_entry(band: Band, first: ir.Value, ref: ir.Value | None, stride: int) -> list[ir.Value]:
    """Return the column and the address of the matrix element of the first entry of this thread.

    Args:
      ref: Matrix in global memory. If None, return the column only.
      stride: Distance between two rows of the matrix, in entries.
    """
    row, column = (
        _extract(
            FragmentedArray.broadcasted_iota(
                first.type,
                (64, registers.COLUMN_GROUP),
                axis,
                layout=plgpu.Layout.WGMMA.to_mgpu(),
                is_signed=True,
            ).registers.flat[0],
            0,
        )
        for axis in (0, 1)
    )
    query, key = (column, row) if band.is_transposed else (row, column)
    column = arith.addi(first, arith.subi(key, query))
    if ref is None:
        return [column]
    index = arith.addi(arith.muli(query, utils.c(stride, query.type)), column)
    kind = ir.MemRefType(ref.type).element_type
    return [column, utils.getelementptr(utils.memref_ptr(ref), [index], kind)]


def _extract(pair: ir.Value, i: int) -> ir.Value:
    return vector.extract(pair, dynamic_position=[], static_position=[i])
