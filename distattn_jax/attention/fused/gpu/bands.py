"""Gather and scatter between a tile in registers and a matrix in global or shared memory.

Only the entries near the diagonal of the tile are moved. They form the band of the tile: see
`Band`. Mosaic GPU has no gather and no scatter, so these functions emit PTX code with one load or
one store per entry. Only a GPU can check the PTX code: the interpreter runs plain JAX instead.
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
    """Diagonal band of a tile: the entries whose query and key are less than k positions apart.

    k is the clip distance of the relations. The relation of a query and a key is a number from 0 to
    2k: see the module `relations` of the package `fused`. A matrix M in global or shared memory has
    one row per query of the tile and one column per relation. Each entry (i, j) of the tile is
    assigned to one element of M:

        M[i, first + j - i]    if the rows of the tile are queries
        M[j, first + i - j]    if the columns of the tile are queries

    The second index is called the matrix column of the entry. The band consists of the entries with
    a matrix column from 1 to 2k - 1. The entries before the band have a matrix column <= 0, and the
    entries after the band have a matrix column >= 2k.

    Attributes:
      first: Matrix column of entry (0, 0) of the tile.
      last: Index of the last column of M, which is 2k.
      is_transposed: True if the columns of the tile are queries and its rows are keys.
      absent: Number of columns of M that do not exist in memory: 0, or 1 if the first column of the
        memory is column 1 of M.
    """

    first: jax.Array
    last: int
    is_transposed: bool
    absent: int = 0

    def indices(self, shape: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
        """Return two tiles: the row index and the column index in M of each entry.

        M is the matrix in the description of this class. The second index may lie outside of M.
        Only the interpreter calls this function. On a GPU, the result would take too many
        registers.

        Args:
          shape: Number of rows and number of columns of the tile.
        """
        rows, columns = (lax.broadcasted_iota(jnp.int32, shape, axis) for axis in (0, 1))
        if self.is_transposed:
            return columns, self.first + rows - columns
        return rows, self.first + columns - rows


def gather_band(ref: Any, band: Band, *, before: jax.Array, after: jax.Array) -> jax.Array:
    """Return a tile whose entries in the band are loaded from a matrix, and converted to float32.

    The entries before the band and the entries after the band are copied from two other tiles.

    Args:
      ref: Matrix with one row per query of the tile and one column per relation. If it is in global
        memory, the kernel must not write to this matrix.
      band: Assigns a matrix column to each entry of the tile.
      before: Tile from which the entries with a matrix column <= 0 are copied.
      after: Tile from which the entries with a matrix column >= `band.last` are copied.
    """
    if is_interpreted():
        rows, columns = band.indices(before.shape)
        columns_in_memory = jnp.clip(columns - band.absent, 0, ref.shape[1] - 1)
        entries = ref[...][rows, columns_in_memory].astype(jnp.float32)
        entries = jnp.where(columns <= 0, before, entries)
        return jnp.where(columns >= band.last, after, entries)

    def load(ref, first, before, after):
        program, pointer = _complete(_LOAD_FROM_BAND, _LOADS, ref)
        return _map_band(program, f"=&f,f,f,r,{pointer}", band, first, (before, after), ref)

    return registers.map_registers(load, before.shape, ref, band.first, before, after)


def scatter_band(ref: Any, band: Band, tile: jax.Array) -> None:
    """Write the entries of a tile that are in the band to a matrix, in the dtype of the matrix.

    The other entries of the tile are not written.

    Args:
      ref: Matrix with one row per query of the tile and one column per relation. No other warpgroup
        may write to these rows.
      band: Assigns a matrix column to each entry of the tile.
      tile: Numbers to write, one for each entry.
    """
    if is_interpreted():
        rows, columns = band.indices(tile.shape)
        is_inside = (columns > 0) & (columns < band.last)
        # Entries outside of the band get an index that is out of bounds, and are dropped.
        columns = jnp.where(is_inside, columns - band.absent, ref.shape[1])
        ref[...] = ref[...].at[rows, columns].set(tile.astype(ref.dtype), mode="drop")
        return
    arguments = (ref, band.first, tile)

    @plgpu.inline_mgpu(arg_types=tuple(map(registers.argument_type, arguments)))
    def inlined(_, ref, first, tile):
        program, pointer = _complete(_STORE_TO_BAND, _STORES, ref)
        _map_band(program, f"f,r,{pointer}", band, first.registers, (tile.registers,), ref)

    inlined(*arguments)


def select_outside_band(tile: jax.Array, band: Band, *, before: bool) -> jax.Array:
    """Return a tile in which all entries are set to 0, except for those on one side of the band.

    Args:
      before: If True, keep the entries before the band, which have a matrix column <= 0 (see
        `Band`). If False, keep the entries after the band, which have a matrix
        column >= `band.last`.
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
    LOAD
}}"""
_STORE_TO_BAND = """{{
    .reg .pred p;
    .reg .s32 column;
    add.s32 column, $1, {column} - 1;
    setp.lt.u32 p, column, {last} - 1;
    STORE
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


# Instructions for each dtype of a matrix. SPACE stands for the memory that contains the matrix.
_LOADS = {
    "f32": "@p ld.SPACE.f32 $0, [$4 + {address}];",
    "bf16": ".reg .b16 h; @p ld.SPACE.b16 h, [$4 + {address}]; @p cvt.f32.bf16 $0, h;",
    "f16": ".reg .b16 h; @p ld.SPACE.b16 h, [$4 + {address}]; @p cvt.f32.f16 $0, h;",
}
_STORES = {
    "f32": "@p st.SPACE.f32 [$2 + {address}], $0;",
    "bf16": ".reg .b16 h; cvt.rn.bf16.f32 h, $0; @p st.SPACE.b16 [$2 + {address}], h;",
    "f16": ".reg .b16 h; cvt.rn.f16.f32 h, $0; @p st.SPACE.b16 [$2 + {address}], h;",
}


def _complete(program: str, instructions: dict[str, str], ref: ir.Value) -> tuple[str, str]:
    """Insert the instruction that accesses a matrix into PTX code.

    Args:
      program: PTX code with the placeholder LOAD or STORE.
      instructions: `_LOADS` or `_STORES`.
      ref: Matrix in global or shared memory.

    Returns:
      The completed code, and the LLVM constraint of an address in the memory of the matrix.
    """
    instruction = instructions[str(ir.MemRefType(ref.type).element_type)]
    if utils.is_smem_ref(ref):
        space, pointer = "shared", "r"
    else:
        space, pointer = "global.nc" if instructions is _LOADS else "global", "l"
    name = "LOAD" if instructions is _LOADS else "STORE"
    return program.replace(name, instruction.replace("SPACE", space)), pointer


def _map_band(
    program: str, constraints: str, band: Band, first: Any, tiles: Any, ref: ir.Value | None = None
) -> Any:
    """Emit PTX code for each entry of one or two tiles, and return the results of the code.

    The results are returned as the registers of a tile. If the code has no result, do not use the
    returned array.

    Args:
      program: Template of the PTX code for one entry. The operands of the code are its result (if
        it has one), the entry of each tile, and the numbers that `_first_entry` returns. The
        template has the fields {column}, {address} and {last}. The first two are the constants to
        add to the numbers of `_first_entry` to obtain those of the entry. The third is `Band.last`.
      constraints: Types of the operands in the syntax of LLVM inline assembly. It begins with "="
        if the code has a result.
      first: `Band.first`, as a NumPy array with one MLIR value.
      tiles: Registers of each tile, as NumPy arrays of MLIR values.
      ref: Matrix that the code reads or writes. None if there is no matrix.
    """
    has_result = constraints.startswith("=")
    size = 0 if ref is None else utils.bytewidth(ir.MemRefType(ref.type).element_type)
    kind = ir.F32Type.get() if has_result else ir.Type.parse("!llvm.void")
    stride = 0 if ref is None else ir.MemRefType(ref.type).get_strides_and_offset()[0][0]
    start = _first_entry(band, first.item(), ref, stride)
    result = np.empty_like(tiles[0])
    # Later code of the kernel may overwrite a matrix in shared memory.
    is_ordered = not has_result or (ref is not None and utils.is_smem_ref(ref))
    for position in np.ndindex(result.shape):
        entries: list[Any] = []
        for i in (0, 1):
            query = 64 * position[0] + 8 * position[4]
            key = registers.COLUMN_GROUP * position[1] + i
            if band.is_transposed:
                query, key = key, query
            column = key - query
            code = program.format(
                column=column, address=size * (query * stride + column), last=band.last
            )
            arguments = [*(_extract(tile[position], i) for tile in tiles), *start]
            entries.append(
                llvm.inline_asm(kind, arguments, code, constraints, has_side_effects=is_ordered)
            )
        if has_result:
            result[position] = vector.from_elements(tiles[0][position].type, entries)
    return result


def _first_entry(band: Band, first: ir.Value, ref: ir.Value | None, stride: int) -> list[ir.Value]:
    """Return the matrix column and the address that belong to the first entry of this thread.

    The first entry is the first of the two numbers in the first register of the thread. Its address
    is the address of the element of the matrix `ref` to which `Band` assigns the entry.

    Args:
      first: `Band.first`, as an MLIR value.
      ref: Matrix in global memory, whose address is a pointer, or in shared memory, whose address
        is an integer. If None, the returned list contains only the matrix column.
      stride: Difference between the addresses of two successive rows of `ref`, in array elements.
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
    index = arith.subi(index, utils.c(band.absent, index.type))
    kind = ir.MemRefType(ref.type).element_type
    if utils.is_smem_ref(ref):
        base = llvm.ptrtoint(index.type, utils.memref_ptr(ref))
        return [
            column,
            arith.addi(base, arith.muli(index, utils.c(utils.bytewidth(kind), base.type))),
        ]
    return [column, utils.getelementptr(utils.memref_ptr(ref), [index], kind)]


def _extract(pair: ir.Value, i: int) -> ir.Value:
    return vector.extract(pair, dynamic_position=[], static_position=[i])
