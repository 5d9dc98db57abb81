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

from distattn_jax.attention.fused.gpu import mosaic, registers
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
        return _map_band(_LOAD, band, first, (before, after), ref=ref)

    return registers.map_registers(load, before.shape, ref, band.first, before, after)


def gather_ends(band: Band, *, before: jax.Array, after: jax.Array) -> jax.Array:
    """Return a tile like `gather_band`, but with undefined entries in the band."""
    if is_interpreted():
        _, columns = band.indices(before.shape)
        return jnp.where(columns >= band.last, after, before)

    def select(first, before, after):
        return _map_band(_SELECT_END, band, first, (before, after))

    return registers.map_registers(select, before.shape, band.first, before, after)


def load_band(ref: Any, band: Band, shape: tuple[int, int]) -> jax.Array:
    """Load the entries of a tile that are in the band from a matrix with 16-bit numbers.

    The result is only for `replace_band`: on a GPU, its entries have the bits of the numbers. The
    loads begin before the matrix products that follow in the program, and are complete when
    `replace_band` uses the result.

    Args:
      ref: Matrix with one row per query of the tile and one column per relation.
      band: Assigns a matrix column to each entry of the tile.
      shape: Number of rows and number of columns of the tile.
    """
    zeros = mosaic.full(shape, 0.0)
    if is_interpreted():
        return gather_band(ref, band, before=zeros, after=zeros)

    def load(ref, first, zeros):
        return _map_band(_LOAD_BITS, band, first, (), ref=ref, like=zeros)

    return registers.map_registers(load, shape, ref, band.first, zeros)


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
        _map_band(_STORE, band, first.registers, (tile.registers,), ref=ref, has_result=False)

    inlined(*arguments)


def replace_band(tile: jax.Array, band: Band, inside: jax.Array, dtype: Any) -> jax.Array:
    """Return `tile` with its entries in the band replaced by numbers that `load_band` has loaded.

    Args:
      tile: One float32 number for each entry.
      band: Assigns a matrix column to each entry of the tile.
      inside: Result of `load_band`.
      dtype: Dtype of the matrix from which the numbers were loaded.
    """
    if is_interpreted():
        _, columns = band.indices(tile.shape)
        return jnp.where((columns > 0) & (columns < band.last), inside, tile)
    program = _REPLACE[jnp.dtype(dtype).name]

    def replace(first, tile, inside):
        return _map_band(program, band, first, (tile, inside))

    return registers.map_registers(replace, tile.shape, band.first, tile, inside)


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
        return _map_band(_SELECT_BEFORE if before else _SELECT_AFTER, band, first, (tile,))

    return registers.map_registers(select, tile.shape, band.first, tile)


# PTX code for one entry of a tile, with names in angle brackets. <result>, <first> and <second>:
# result, and entries of up to two tiles. <address>: address of the entry in the matrix. <space>:
# memory of the matrix. <last>: `Band.last`. <load> and <store>: see `_LOADS` and `_STORES`. The
# register `column` contains the matrix column of the entry. The predicate `inside` is True for an
# entry in the band. `p`, `h` and `word` are free registers. Predicates avoid branches: code that
# skips 8 rows and 8 columns outside of the band by a branch was slower.
_SELECT_END = "setp.ge.s32 p, column, <last>; selp.f32 <result>, <second>, <first>, p;"
_LOAD = f"{_SELECT_END} <load>"
_LOAD_BITS = "mov.b32 <result>, 0; @inside ld.<space>.u16 <result>, [<address>];"
_STORE = "<store>"
_REPLACE = {
    "bfloat16": "mov.b32 word, <second>; shl.b32 word, word, 16; mov.f32 <result>, <first>;"
    "@inside mov.b32 <result>, word;",
    "float16": "mov.b32 word, <second>; cvt.u16.u32 h, word; mov.f32 <result>, <first>;"
    "@inside cvt.f32.f16 <result>, h;",
}
_SELECT_BEFORE = "setp.le.s32 p, column, 0; selp.f32 <result>, <first>, 0f00000000, p;"
_SELECT_AFTER = "setp.ge.s32 p, column, <last>; selp.f32 <result>, <first>, 0f00000000, p;"
# Instructions <load> and <store> for each dtype of a matrix.
_LOADS = {
    "f32": "@inside ld.<space>.f32 <result>, [<address>];",
    "bf16": "@inside ld.<space>.b16 h, [<address>]; @inside cvt.f32.bf16 <result>, h;",
    "f16": "@inside ld.<space>.b16 h, [<address>]; @inside cvt.f32.f16 <result>, h;",
}
_STORES = {
    "f32": "@inside st.<space>.f32 [<address>], <first>;",
    "bf16": "cvt.rn.bf16.f32 h, <first>; @inside st.<space>.b16 [<address>], h;",
    "f16": "cvt.rn.f16.f32 h, <first>; @inside st.<space>.b16 [<address>], h;",
}


def _map_band(
    program: str,
    band: Band,
    first: Any,
    tiles: Any,
    *,
    ref: ir.Value | None = None,
    has_result: bool = True,
    like: Any = None,
) -> Any:
    """Emit PTX code for each entry of one or two tiles, and return the results of the code.

    The results are returned as the registers of a tile. If the code has no result, do not use the
    returned array.

    Args:
      program: Code for one entry, with names in angle brackets.
      first: `Band.first`, as a NumPy array with one MLIR value.
      tiles: Registers of each tile, as NumPy arrays of MLIR values.
      ref: Matrix that the code reads or writes. None if there is no matrix.
      has_result: False if the code only writes to the matrix.
      like: Array with the shape of the registers, if there is no tile. The results are then bits,
        and the compiler keeps the order of this code and of matrix products.
    """
    f32, is_shared = ir.F32Type.get(), ref is not None and utils.is_smem_ref(ref)
    has_bits = like is not None
    size, stride = 0, 0
    if ref is not None:
        element = ir.MemRefType(ref.type).element_type
        size, stride = utils.bytewidth(element), _find_stride(ref)
        program = program.replace("<load>", _LOADS[str(element)])
        program = program.replace("<store>", _STORES[str(element)])
    space = "shared" if is_shared else "global.nc" if has_result else "global"
    program = program.replace("<space>", space)
    kind: Any = ir.IntegerType.get_signless(32) if has_bits else f32
    constraints = ["=&r" if has_bits else "=&f"] * has_result
    constraints += ["f"] * len(tiles) + ["r"] + ["r" if is_shared else "l"] * (ref is not None)
    start = _first_entry(band, first.item(), ref, stride)
    # Later code of the kernel may overwrite a matrix in shared memory.
    is_ordered = has_bits or is_shared or not has_result
    result = np.empty_like(like if has_bits else tiles[0])
    for position in np.ndindex(result.shape):
        entries: list[Any] = []
        for i in (0, 1):
            query = 64 * position[0] + 8 * position[4]
            key = registers.COLUMN_GROUP * position[1] + i
            if band.is_transposed:
                query, key = key, query
            column = key - query
            address = size * (query * stride + column)
            code = _write_code(program, band.last, has_result, len(tiles), column, address)
            entry: Any = llvm.inline_asm(
                kind if has_result else ir.Type.parse("!llvm.void"),
                [*(_extract(tile[position], i) for tile in tiles), *start],
                code,
                ",".join(constraints),
                has_side_effects=is_ordered,
            )
            entries.append(arith.bitcast(f32, entry) if has_bits else entry)
        if has_result:
            result[position] = vector.from_elements(ir.VectorType.get((2,), f32), entries)
    return result


def _write_code(
    program: str, last: int, has_result: bool, tiles: int, column: int, address: int
) -> str:
    """Return the PTX code for one entry.

    The code receives the column and the address of the first entry of a thread. The differences to
    the entry in question are constants of the code, so that few registers are required. The
    comparison of unsigned integers is True for entries in the band.

    Args:
      program: Code for one entry, with names in angle brackets.
      last: `Band.last`.
      has_result: True if the first operand of the code is its result.
      tiles: Number of tiles whose entries are the next operands. The last operands are the numbers
        that `_first_entry` returns.
      column: Number to add to the column of the first entry.
      address: Number of bytes to add to the address of the first entry.
    """
    operands = has_result + tiles
    names = {
        "result": "$0",
        "first": f"${int(has_result)}",
        "second": f"${has_result + 1}",
        "address": f"${operands + 1} + {address}",
        "last": str(last),
    }
    for name, text in names.items():
        program = program.replace(f"<{name}>", text)
    lines = [
        ".reg .pred p, inside;",
        ".reg .s32 column;",
        ".reg .b32 word;",
        ".reg .b16 h;",
        f"add.s32 column, ${operands}, {column};",
        program,
    ]
    if "inside" in program:
        test = f"sub.s32 word, column, 1; setp.lt.u32 inside, word, {last - 1};"
        lines.insert(-1, test)
    return "{\n" + "\n".join(lines) + "\n}"


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
        offset = arith.muli(index, utils.c(utils.bytewidth(kind), base.type))
        return [column, arith.addi(base, offset)]
    return [column, utils.getelementptr(utils.memref_ptr(ref), [index], kind)]


def _find_stride(ref: ir.Value) -> int:
    """Return the difference between the addresses of successive rows of a matrix, in elements."""
    return ir.MemRefType(ref.type).get_strides_and_offset()[0][0]


def _extract(pair: ir.Value, i: int) -> ir.Value:
    return vector.extract(pair, dynamic_position=[], static_position=[i])
