"""What the kernels ask of Mosaic GPU: where a tile lies in registers, and its matrix products.

A tile has a multiple of 64 rows and belongs to one warpgroup, 128 threads. A vector of a tile has
one number per row or one per column, and lies where the tile's own entries need it.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.mosaic.gpu import FragmentedArray
from jaxlib.mlir.dialects import arith, llvm, vector

from distattn_jax.attention.fused.scoring import STRIDE

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


def load_tile(ref: Any) -> jax.Array:
    """A tile, as float32."""
    return _load(ref, layout=plgpu.Layout.WGMMA).astype(jnp.float32)


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


# By hand, of the registers of a tile: axis 1 numbers groups of STRIDE columns, axis 4 rows i and
# i + STRIDE; each holds two entries of a row. The interpreter has no registers: a GPU checks these.


def inverse(tile: jax.Array) -> jax.Array:
    """1 / tile, by one instruction; what is larger than 2¹²⁶ has the inverse 0."""
    if is_interpreted():
        return 1 / tile

    def inverted(tile):
        registers = np.empty_like(tile)
        for place, pair in np.ndenumerate(tile):
            for i in range(2):
                x = vector.extract(pair, dynamic_position=[], static_position=[i])
                x = llvm.inline_asm(x.type, [x], "rcp.approx.ftz.f32 $0, $1;", "=f,f")
                pair = vector.insert(x, pair, dynamic_position=[], static_position=[i])
            registers[place] = pair
        return registers

    return _by_hand(inverted, tile.shape, tile)


def toeplitz(tile: jax.Array) -> jax.Array:
    """The same tile, which must depend on i - j alone: nearly half of it is not computed.

    Entries STRIDE rows below and STRIDE columns to the right are the same, and in the same thread.
    """
    if is_interpreted():
        return tile

    def shared(tile):
        tile = tile.copy()
        tile[:, 1:, :, :, 1] = tile[:, :-1, :, :, 0]
        return tile

    return _by_hand(shared, tile.shape, tile)


def geometric(edge: jax.Array, step: jax.Array, columns: int, *, rising: bool) -> jax.Array:
    """A tile that depends on i - j alone, with a factor `step` from STRIDE columns to the next.

    Made of its first STRIDE columns or, if it is not `rising`, backwards of its last.
    """

    def continued(edge, step):
        upper, lower = edge[0, 0, 0, 0, :, 0, 0, 0, 0]
        step = vector.broadcast(upper.type, step.item())
        groups = [lower, upper] if rising else [upper, lower]
        while len(groups) < columns // STRIDE + 1:
            groups.append(arith.mulf(groups[-1], step))
        if not rising:
            groups.reverse()
        registers = np.stack([groups[1:], groups[:-1]], axis=-1)  # of rows i, and i + STRIDE
        return registers.reshape(1, -1, 1, 1, 2, 1, 1, 1, 1)

    return _by_hand(continued, (edge.shape[0], columns), edge, step)


def _by_hand(function: Callable, shape: tuple[int, ...], *arguments: jax.Array) -> jax.Array:
    """A tile made by a function of registers, of tiles or of single numbers."""
    layout = plgpu.Layout.WGMMA
    given = plgpu.ShapeDtypeStruct(shape, jnp.float32, layout=layout)

    @plgpu.inline_mgpu(arg_types=(layout,) * len(arguments), return_type=given)
    def inlined(_, *arguments):
        return FragmentedArray(
            _registers=function(*(x.registers for x in arguments)),
            _layout=layout.to_mgpu(),
            _is_signed=None,
        )

    return inlined(*arguments)


def products(*pairs: tuple[Any, Any]) -> tuple[jax.Array, ...]:
    """a bᵀ of pairs of tiles in shared memory, all under way before the first is waited for."""

    def multiply(*accumulators):
        for accumulator, (a, b) in zip(accumulators, pairs, strict=True):
            plgpu.wgmma(accumulator, a, b.transpose((1, 0)))
        return tuple(accumulator[...] for accumulator in accumulators)

    shapes = (plgpu.ACC((a.shape[0], b.shape[0]), jnp.float32) for a, b in pairs)
    return pl.run_scoped(multiply, *shapes)


def add_products(
    totals: tuple[jax.Array, ...], *pairs: tuple[jax.Array, Any], stage: Any
) -> tuple[jax.Array, ...]:
    """total + a b, of totals and tiles a in registers, and tiles b in shared memory.

    The interpreter multiplies nothing that is in registers: there, a goes by way of `stage`.
    """
    pairs = tuple((a.astype(b.dtype), b) for a, b in pairs)
    if stage is not None:
        return tuple(
            _add_staged(total, a, b, stage) for total, (a, b) in zip(totals, pairs, strict=True)
        )

    def multiply(accumulators):
        for accumulator, (a, b) in zip(accumulators, pairs, strict=True):
            plgpu.wgmma(accumulator, a, b)

    return pl.run_state(multiply)(tuple(plgpu.ACC.init(total) for total in totals))


def _add_staged(total: jax.Array, a: jax.Array, b: Any, stage: Any) -> jax.Array:
    stage[...] = a
    plgpu.commit_smem()

    def multiply(accumulator):
        plgpu.wgmma(accumulator, stage, b)
        return accumulator[...]

    return total + pl.run_scoped(multiply, plgpu.ACC((a.shape[0], b.shape[1]), jnp.float32))


def stage_memory(shape: tuple[int, ...], dtype: Any) -> Any:
    """The stage that `add_products` needs: none on a GPU."""
    return matrix_memory(shape, dtype) if is_interpreted() else None
