"""Dropout of the weights of one tile.

A hash of the indices of query i and key j decides whether dropout keeps the weight of entry (i, j):
see the module `distattn_jax.hash`. The hashes of queries and of keys are vectors, which are
computed outside of the kernels and copied like all other vectors. A tile combines them.

One combined word decides about four entries: those of two queries and two keys, whose indices
differ only in bit 3. All four are in registers of the same thread, because a tile has the layout of
a WGMMA accumulator, and because its first row and its first column are multiples of 16. (So are
the indices of query 0 and of key 0 in the whole sequence.) The thread
computes their word once. Only a GPU can check how the registers are selected: the interpreter runs
plain JAX instead.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.mosaic.gpu import utils
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith, llvm, vector
from jaxtyping import Array, UInt32

from distattn_jax import hash
from distattn_jax.attention.fused.gpu import mosaic, registers
from distattn_jax.attention.fused.gpu.kernel_body import Tile, WarpgroupContext
from distattn_jax.attention.fused.interpreter import is_interpreted
from distattn_jax.attention.fused.operands import Operands
from distattn_jax.attention.fused.score_map import Scalars, read_dropout_scale

HASH_NAMES = QUERY_HASH, KEY_HASH = "query_hash", "key_hash"  # names of vectors
WITHOUT_DROPOUT = ("received", "attention_given")  # kernels that sum weights before dropout
KEPT = 2.0  # factor of kept entries: as float32, it has only one bit set


def drops_weights(kernel: str, operands: Operands) -> bool:
    """Return True if a kernel drops weights, and therefore reads the vectors of `hash_vectors`."""
    return operands.dropout_words is not None and kernel not in WITHOUT_DROPOUT


def hash_vectors(operands: Operands) -> dict[str, UInt32[Array, "B N _"]]:
    """Return the hash of each query and of each key, or an empty dict without dropout."""
    if operands.dropout_words is None:
        return {}
    words = jnp.moveaxis(operands.dropout_words, -1, 0)[..., None]
    query_word, key_word, first_query, first_key, _ = words

    def hash_length(word, first, length, shift):
        indices = first.astype(jnp.int32) + jnp.arange(length, dtype=jnp.int32)[None, None, :]
        return hash.hash_indices(word, indices, shift=shift)[0]

    return {
        QUERY_HASH: hash_length(query_word, first_query, operands.query.shape[1], 16),
        KEY_HASH: hash_length(key_word, first_key, operands.key.shape[1], 8),
    }


def drop(context: WarpgroupContext, tile: Tile, entries: jax.Array) -> jax.Array:
    """Return `entries` with the entries that dropout drops set to 0.

    The entries that dropout keeps are not scaled. Without dropout, return `entries` unchanged. If
    the numbers have 16 bits, one instruction masks two of them.

    Args:
      entries: One number for each entry of the tile, of 32 or 16 bits.
    """
    if not context.score_map.has_dropout:
        return entries
    flags = _flag_kept_words(context, tile)
    if is_interpreted():
        return jnp.where(_select_flags(context, flags), entries, 0).astype(entries.dtype)
    find_byte = _byte_finder(context)

    def apply_masks(flags, entries):
        word_type = ir.IntegerType.get_signless(32)
        masked = np.empty_like(entries)
        for position, pair in np.ndenumerate(entries):
            first, second = _extract_words(flags, position)
            byte = find_byte(position)
            if entries.flat[0].type.element_type.width == 16:
                # Selectors 8 to 15 of `prmt` repeat the highest bit of a byte 8 times.
                sign = 8 + byte
                selector = sign | sign << 4 | (sign + 4) << 8 | (sign + 4) << 12
                word = utils.bitcast(pair, word_type)
                mask = _permute_bytes(first, second, selector)
                masked[position] = utils.bitcast(arith.andi(word, mask), pair.type)
                continue
            numbers = []
            for i, flag in enumerate((first, second)):
                number = vector.extract(pair, dynamic_position=[], static_position=[i])
                mask = _permute_bytes(flag, flag, 0x1111 * (8 + byte))
                word = arith.andi(arith.bitcast(word_type, number), mask)
                numbers.append(arith.bitcast(number.type, word))
            masked[position] = vector.from_elements(pair.type, numbers)
        return masked

    return registers.map_registers(apply_masks, tile.shape, flags, entries, dtype=entries.dtype)


def kept_factors(context: WarpgroupContext, tile: Tile) -> jax.Array | None:
    """Return a float32 tile: `KEPT` for each entry that dropout keeps, and 0 for all others.

    Without dropout, return None.
    """
    if not context.score_map.has_dropout:
        return None
    flags = _flag_kept_words(context, tile)
    if is_interpreted():
        return jnp.where(_select_flags(context, flags), KEPT, 0.0)
    find_byte = _byte_finder(context)
    # The float32 number 2 has only bit 30 set. Make each byte 0 or the highest byte of 2.
    flags = (flags >> 1) & jnp.uint32(0x40404040)

    def expand_bytes(flags, like):
        factors = np.empty_like(like)
        for position in np.ndindex(factors.shape):
            selector = find_byte(position) << 12 | 0x444  # selector 4 reads the second word, 0
            zero = utils.c(0, ir.IntegerType.get_signless(32))
            numbers = [
                arith.bitcast(ir.F32Type.get(), _permute_bytes(word, zero, selector))
                for word in _extract_words(flags, position)
            ]
            factors[position] = vector.from_elements(like[position].type, numbers)
        return factors

    like = mosaic.full(tile.shape, 0.0)
    return registers.map_registers(expand_bytes, tile.shape, flags, like)


def gradient_unit(scalars: Scalars) -> jax.Array | float:
    """Return the unit of the score gradients of a kernel: 1 without dropout.

    With dropout, the gradient of a kept weight is the product dO · V times the dropout scale c. The
    kernels compute it as `kept_factors` times dO · V, and thus in units of c / 2. This saves a
    multiplication for each entry.
    """
    if "dropout_scale" not in scalars:
        return 1.0
    # If all weights are dropped, c is 0, but the unit must not be.
    return jnp.maximum(read_dropout_scale(scalars), 1.0) / KEPT


def _flag_kept_words(context: WarpgroupContext, tile: Tile) -> jax.Array:
    """Return a tile of the words of `hash.flag_kept_bytes`."""
    *_, threshold = context.scalars["dropout_words"]
    rows, columns = QUERY_HASH, KEY_HASH
    if context.score_map.is_transposed:
        rows, columns = columns, rows
    if context.score_map.has_moving_rows:
        row_hash = tile.load_row_vector(rows)
    else:
        row_hash = context.vectors[rows]
    row_hash = mosaic.expand_per_row(row_hash, tile.shape)
    column_hash = mosaic.expand_per_column(tile.load_vector(columns), tile.shape)
    return hash.flag_kept_bytes(row_hash ^ column_hash, threshold)


def _select_flags(context: WarpgroupContext, flags: jax.Array) -> jax.Array:
    """Return a boolean tile: True for the entries that dropout keeps. For the interpreter."""
    rows, columns = (lax.broadcasted_iota(jnp.uint32, flags.shape, axis) >> 3 for axis in (0, 1))
    if context.score_map.is_transposed:
        rows, columns = columns, rows
    byte = 2 * (rows & 1) + (columns & 1)
    return (flags >> (8 * byte + 7)) & 1 > 0


def _byte_finder(context: WarpgroupContext):
    """Return a function from the position of a register to the byte that decides about it.

    The position is an index of the registers of a tile: see the module `registers`.
    """

    def find_byte(position: tuple[int, ...]) -> int:
        query_bit, key_bit = position[4], position[1] % 2
        if context.score_map.is_transposed:
            query_bit, key_bit = key_bit, query_bit
        return 2 * query_bit + key_bit

    return find_byte


def _extract_words(flags: np.ndarray, position: tuple[int, ...]) -> list[ir.Value]:
    """Return the words for the two entries of a register.

    The words of four registers are equal. They are computed only for the first of these registers:
    the compiler removes the code for the others.
    """
    group, half = 1, 4  # axes of the array of registers
    first = list(position)
    first[group], first[half] = position[group] - position[group] % 2, 0
    pair = flags[tuple(first)]
    return [vector.extract(pair, dynamic_position=[], static_position=[i]) for i in (0, 1)]


def _permute_bytes(first: ir.Value, second: ir.Value, selector: int) -> Any:
    """Return a word of four bytes that `selector` picks from two words (PTX `prmt`)."""
    return llvm.inline_asm(
        ir.IntegerType.get_signless(32),
        [first, second],
        f"prmt.b32 $0, $1, $2, {selector:#x};",
        "=r,r,r",
        has_side_effects=False,
    )
