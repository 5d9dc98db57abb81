"""What the kernels ask of Mosaic GPU: where a tile lies in registers, and its matrix products.

A tile has a multiple of 64 rows and belongs to one warpgroup, 128 threads. A vector of a tile has
one number per row or one per column, and lies where the tile's own entries need it.
"""

import contextlib
import contextvars
import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax

LANES = 64  # rows of a matrix unit; also the widest row that its swizzled memory takes
_load: Any = plgpu.load  # it took an index before JAX 0.11
_interpreted = contextvars.ContextVar("interpreted", default=False)


@contextlib.contextmanager
def interpreted() -> Iterator[None]:
    """Kernels traced in here run in Pallas's interpreter, which also tells races; for checking."""
    token = _interpreted.set(True)
    try:
        yield
    finally:
        _interpreted.reset(token)


def is_interpreted() -> bool:
    """Whether kernels are being traced for the interpreter."""
    return _interpreted.get()


def compiled_how() -> dict[str, Any]:
    """Keyword arguments of every kernel."""
    params = plgpu.CompilerParams(
        approx_math=True,  # exp2 and tanh of one instruction: enough for 16-bit inputs
        lowering_semantics=plgpu.LoweringSemantics.Warpgroup,
    )
    how: dict[str, Any] = {"compiler_params": params}
    if is_interpreted():
        how["interpret"] = plgpu.InterpretGPUParams(detect_races=True)  # type: ignore[attr-defined,unused-ignore]
    return how


def matrix_memory(shape: tuple[int, ...], dtype: Any) -> Any:
    """Shared memory for tiles that a matrix product reads."""
    width = min(shape[-1], LANES)
    swizzle = width * jnp.dtype(dtype).itemsize
    transforms = (plgpu.TilingTransform((8, width)), plgpu.SwizzleTransform(swizzle))
    return plgpu.SMEM(shape, dtype, transforms=transforms)


def vector_memory(shape: tuple[int, ...]) -> Any:
    """Shared memory for vectors of tiles."""
    return plgpu.SMEM(shape, jnp.float32)


def filled(shape: tuple[int, ...], number: Any) -> jax.Array:
    """A tile, or a vector of a tile's rows, with the same number everywhere."""
    layout = plgpu.Layout.WGMMA if len(shape) == 2 else plgpu.Layout.WGMMA.reduce(1)
    return plgpu.layout_cast(jnp.full(shape, number, jnp.float32), layout)


def row_numbers(count: int) -> jax.Array:
    """0, 1, ... for the rows of a tile."""
    return plgpu.broadcasted_iota(jnp.int32, (count,), 0, layout=plgpu.Layout.WGMMA.reduce(1))


def column_numbers(count: int) -> jax.Array:
    """0, 1, ... for the columns of a tile."""
    return plgpu.broadcasted_iota(jnp.int32, (count,), 0, layout=plgpu.Layout.WGMMA.reduce(0))


def load_rows(ref: Any) -> jax.Array:
    """A vector of the tile's rows."""
    return _load(ref, layout=plgpu.Layout.WGMMA.reduce(1))


def load_columns(ref: Any) -> jax.Array:
    """A vector of the tile's columns."""
    return _load(ref, layout=plgpu.Layout.WGMMA.reduce(0))


def fetch_columns(ref: Any) -> jax.Array:
    """A vector of the tile's columns, straight from global memory."""
    return _load(ref, layout=plgpu.Layout.WGMMA.reduce(0), optimized=False)


def by_row(vector: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """A tile that has vector[i] in all of row i."""
    vector = plgpu.layout_cast(vector, plgpu.Layout.WGMMA.reduce(1))
    return plgpu.layout_cast(lax.broadcast_in_dim(vector, shape, [0]), plgpu.Layout.WGMMA)


def by_column(vector: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """A tile that has vector[j] in all of column j."""
    vector = plgpu.layout_cast(vector, plgpu.Layout.WGMMA.reduce(0))
    return plgpu.layout_cast(lax.broadcast_in_dim(vector, shape, [1]), plgpu.Layout.WGMMA)


def product(a: Any, b: Any) -> jax.Array:
    """a bᵀ of two tiles in shared memory."""

    def multiply(accumulator):
        plgpu.wgmma(accumulator, a, b.transpose((1, 0)))
        return accumulator[...]

    return pl.run_scoped(multiply, plgpu.ACC((a.shape[0], b.shape[0]), jnp.float32))


def add_product(total: jax.Array, a: jax.Array, b: Any, stage: Any) -> jax.Array:
    """total + a b, of a tile in registers and one in shared memory.

    The interpreter multiplies nothing that is in registers: there, a goes by way of `stage`.
    """
    a = a.astype(b.dtype)
    if stage is None:
        add = functools.partial(plgpu.wgmma, a=a, b=b)
        return pl.run_state(add)(plgpu.ACC.init(total))
    stage[...] = a
    plgpu.commit_smem()

    def multiply(accumulator):
        plgpu.wgmma(accumulator, stage, b)
        return accumulator[...]

    return total + pl.run_scoped(multiply, plgpu.ACC((a.shape[0], b.shape[1]), jnp.float32))


def stage_memory(shape: tuple[int, ...], dtype: Any) -> Any:
    """The stage that `add_product` needs: none on a GPU."""
    return matrix_memory(shape, dtype) if is_interpreted() else None
