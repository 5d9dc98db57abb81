"""Operations on tiles in Mosaic GPU: register layouts and shared memory.

A tile is a matrix in the registers of one warpgroup (128 threads). It has a multiple of 64 rows,
and the layout of a WGMMA accumulator. A per-row vector has one number for each row of a tile, and a
per-column vector has one number for each column. Vectors are in registers, too. A thread that holds
entries of row i of a tile also holds number i of every per-row vector. The same is true for
columns. Expanding a vector to a tile thus moves no data.
"""

import math
from typing import Any

import jax
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax
from jax.experimental.mosaic.gpu import utils

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
    """Return the type of a shared-memory buffer that matrix products can read.

    The buffer has the tiled and swizzled layout that WGMMA requires.
    """
    return _swizzled_scratch(shape, dtype, min(shape[-1], MAX_SWIZZLED_COLUMNS))


def table_scratch(shape: tuple[int, ...], dtype: Any) -> Any:
    """Return the type of a shared-memory buffer of matrices, of which products can sum the rows.

    Like `matrix_scratch`, but the number of rows may be any multiple of 16. A matrix product that
    sums over the rows needs a swizzle as wide as a divisor of their number.
    """
    return _swizzled_scratch(shape, dtype, math.gcd(*shape[-2:], MAX_SWIZZLED_COLUMNS))


def _swizzled_scratch(shape: tuple[int, ...], dtype: Any, width: int) -> Any:
    return plgpu.SMEM(shape, dtype, transforms=swizzle_transforms(width, dtype))


def swizzle_transforms(width: int, dtype: Any) -> tuple[Any, ...]:
    """Return the transforms of a buffer whose tiles have 8 rows and `width` columns."""
    swizzle = width * jnp.dtype(dtype).itemsize
    return plgpu.TilingTransform((8, width)), plgpu.SwizzleTransform(swizzle)


def round_up_width(width: int) -> int:
    """Round `width` up to a multiple of `MAX_SWIZZLED_COLUMNS`.

    If only some columns of a `matrix_scratch` buffer are read, their number must be such a
    multiple.
    """
    return width + -width % MAX_SWIZZLED_COLUMNS


def plain_scratch(shape: tuple[int, ...], dtype: Any) -> Any:
    """Return the type of a shared-memory buffer with rows in plain order, without a swizzle.

    No matrix product reads such a buffer.
    """
    return plgpu.SMEM(shape, dtype)


def full(shape: tuple[int, ...], number: Any) -> jax.Array:
    """Return a float32 array in registers, filled with `number`.

    Args:
      shape: (rows, columns) for a tile, (rows,) for a vector with one number per row of a tile.
    """
    layout = plgpu.Layout.WGMMA if len(shape) == 2 else plgpu.Layout.WGMMA.reduce(1)
    return plgpu.layout_cast(jnp.full(shape, number, jnp.float32), layout)


def row_indices(count: int) -> jax.Array:
    """Return 0, 1, ..., count - 1 as a vector with one number per row of a tile."""
    return plgpu.broadcasted_iota(jnp.int32, (count,), 0, layout=plgpu.Layout.WGMMA.reduce(1))


def column_indices(count: int) -> jax.Array:
    """Return 0, 1, ..., count - 1 as a vector with one number per column of a tile."""
    return plgpu.broadcasted_iota(jnp.int32, (count,), 0, layout=plgpu.Layout.WGMMA.reduce(0))


def load_tile(ref: Any) -> jax.Array:
    """Load a tile from shared memory into registers, and convert it to float32.

    Args:
      ref: Reference to shared memory, or a result of `load_operand`, which is in registers already.
    """
    if isinstance(ref, jax.Array):
        return ref.astype(jnp.float32)
    return _load(ref, layout=plgpu.Layout.WGMMA).astype(jnp.float32)


def load_operand(ref: Any) -> Any:
    """Load a matrix from shared memory into registers, as the first operand of a matrix product.

    The interpreter cannot multiply a matrix in registers. In the interpreter, return `ref`
    unchanged.
    """
    return ref if is_interpreted() else _load(ref, layout=plgpu.Layout.WGMMA)


def wait_for_threads() -> None:
    """Wait until all threads of the warpgroup have reached this point.

    All numbers that they have written to shared memory before can then be read, but not by the copy
    engine (TMA) of a Hopper GPU, which needs `plgpu.commit_smem`.
    """
    if is_interpreted():
        plgpu.commit_smem()
        return

    @plgpu.inline_mgpu()
    def wait(_):
        utils.warpgroup_barrier()

    wait()


def load(ref: Any, layout: Any) -> jax.Array:
    """Load a matrix from shared memory into registers with the given layout."""
    return _load(ref, layout=layout)


def load_rows(ref: Any) -> jax.Array:
    """Load a tile from a `plain_scratch` buffer into registers, and convert it to float32."""
    return _load(ref, layout=plgpu.Layout.WGMMA, optimized=False).astype(jnp.float32)


def store_rows(ref: Any, tile: jax.Array) -> None:
    """Write a tile from registers to global memory or to a `plain_scratch` buffer.

    The tile is converted to the dtype of `ref`.
    """
    tile = tile.astype(ref.dtype)
    if is_interpreted():
        ref[...] = tile
        return

    @plgpu.inline_mgpu(arg_types=(plgpu.RefType(), plgpu.Layout.WGMMA))
    def store(_, ref, tile):
        tile.store_untiled(ref, optimized=False)

    store(ref, tile)


def load_entries(ref: Any) -> jax.Array:
    """Load a tile of a mask from shared memory into registers, and convert it to int32.

    Args:
      ref: Reference to a buffer that was made with `plain_scratch`.
    """
    return _load(ref, layout=plgpu.Layout.WGMMA, optimized=False).astype(jnp.int32)


def load_per_row(ref: Any) -> jax.Array:
    """Load a vector with one number per row of a tile, from shared memory into registers."""
    return _load(ref, layout=plgpu.Layout.WGMMA.reduce(1))


def load_per_column(ref: Any) -> jax.Array:
    """Load a vector with one number per column of a tile, from shared memory into registers."""
    return _load(ref, layout=plgpu.Layout.WGMMA.reduce(0))


def load_per_thread(ref: Any) -> jax.Array:
    """Load a vector, with neighbouring numbers in neighbouring threads of the warpgroup.

    Args:
      ref: Vector in shared or global memory. Its length is a multiple of 128.
    """
    return _load(ref, layout=per_thread_layout(ref.shape[0]), optimized=False)


def per_thread_layout(count: int) -> Any:
    """Return the layout of a vector whose neighbouring numbers are in neighbouring threads."""
    return plgpu.Layout.WG_STRIDED((count,), vec_size=1)


def load_per_column_from_global(ref: Any) -> jax.Array:
    """Load a vector with one number per column of a tile, from global memory into registers."""
    return _load(ref, layout=plgpu.Layout.WGMMA.reduce(0), optimized=False)


def sum_rows(tile: jax.Array) -> jax.Array:
    """Return the sum of the entries in each row of a tile, one number per row."""
    return plgpu.layout_cast(tile.sum(axis=1), plgpu.Layout.WGMMA.reduce(1))


def expand_per_row(vector: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Return a tile of the given shape whose entry (i, j) is vector[i]."""
    vector = plgpu.layout_cast(vector, plgpu.Layout.WGMMA.reduce(1))
    return plgpu.layout_cast(lax.broadcast_in_dim(vector, shape, [0]), plgpu.Layout.WGMMA)


def expand_per_column(vector: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Return a tile of the given shape whose entry (i, j) is vector[j]."""
    vector = plgpu.layout_cast(vector, plgpu.Layout.WGMMA.reduce(0))
    return plgpu.layout_cast(lax.broadcast_in_dim(vector, shape, [1]), plgpu.Layout.WGMMA)
