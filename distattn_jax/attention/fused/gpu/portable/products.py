"""Matrix products with `mma.sync`, which all NVIDIA GPUs since Ampere have.

The accumulator has the same layout in registers as that of WGMMA. A tile in this layout becomes the
first operand of a product without moving data: only the order of its registers changes.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.mosaic.gpu import FragmentedArray, utils

from distattn_jax.attention.fused.gpu import mosaic
from distattn_jax.attention.fused.interpreter import is_interpreted

MAX_WIDTH = 128  # columns of the first operand that are loaded at a time
STEP = 16  # rows of the second operand that are loaded at a time
Pair = tuple[Any, Any]


class MmaProducts:
    """Matrix products of a warpgroup: see `kernel_body.Products`."""

    is_asynchronous = False

    def multiply_transposed(
        self, *pairs: Pair, initial: tuple[jax.Array, ...] | None = None
    ) -> tuple[jax.Array, ...]:
        """Return the matrix product a bᵀ for each pair (a, b), as float32 tiles."""
        if initial is None:
            initial = tuple(mosaic.full((a.shape[0], b.shape[0]), 0.0) for a, b in pairs)
        return tuple(
            functools.reduce(_multiply_transposed, _split(a, b), total)
            for total, (a, b) in zip(initial, pairs, strict=True)
        )

    def accumulate(
        self, totals: Sequence[jax.Array], *operands: Sequence[Pair]
    ) -> tuple[jax.Array, ...]:
        """Add matrix products a @ b to each total, and return the new totals."""
        results = []
        for total, pairs in zip(totals, operands, strict=True):
            for a, b in pairs:
                total = _multiply(total, (a.astype(b.dtype), b), is_transposed=False)
            results.append(total)
        return tuple(results)


def _split(a: Any, b: Any) -> list[Pair]:
    """Return pairs of narrower matrices such that a bᵀ is the sum of their products.

    The rows of a are loaded into registers. Very wide rows would need too many of them.
    """
    width = a.shape[1]
    if width <= MAX_WIDTH:
        return [(a, b)]
    parts = [pl.ds(start, MAX_WIDTH) for start in range(0, width, MAX_WIDTH)]
    return [(a.at[:, part], b.at[:, part]) for part in parts]


def _multiply(total: jax.Array, pair: Pair, *, is_transposed: bool) -> jax.Array:
    """Return `total` + a @ b, or `total` + a @ bᵀ.

    A few rows of b are loaded at a time, so that they need few registers. The interpreter has no
    `mma.sync`. It multiplies the same numbers with `jnp.dot`.

    Args:
      pair: Matrix a in registers or in shared memory, and matrix b in shared memory.
      is_transposed: True for bᵀ.
    """
    a, b = pair
    if is_interpreted():
        right = b[...].T if is_transposed else b[...]
        return total + jnp.dot(a[...], right, preferred_element_type=jnp.float32)
    dtype, rows = jnp.dtype(b.dtype), b.shape[0]
    width = min(b.shape[1], mosaic.MAX_SWIZZLED_COLUMNS)
    transforms = mosaic.swizzle_transforms(width, dtype)
    layouts: Any = plgpu.Layout  # An old JAX lacks those of `mma.sync`.
    left_layout, right_layout = layouts.MMA_LHS(dtype), layouts.MMA_RHS(dtype)
    return_type = plgpu.ShapeDtypeStruct(total.shape, total.dtype, layout=plgpu.Layout.WGMMA)
    types = (plgpu.Layout.WGMMA, left_layout, plgpu.RefType(transforms))

    @plgpu.inline_mgpu(arg_types=types, return_type=return_type)
    def multiply(_, total, left, ref):
        total = total.copy()
        for start in range(0, rows, STEP):
            part = slice(start, start + STEP)
            tiles = utils.memref_slice(ref, (slice(start // 8, (start + STEP) // 8),))
            if is_transposed:
                tiles = utils.memref_transpose(tiles, (1, 0, 3, 2))
            right = FragmentedArray.load_tiled(
                tiles, width * dtype.itemsize, layout=right_layout.to_mgpu()
            )
            if is_transposed:
                total[:, part] = mgpu.mma(total[:, part], left, right)
            else:
                total = mgpu.mma(total, left[:, part], right)
        return total

    return multiply(total, _load_left(a), b)


_multiply_transposed = functools.partial(_multiply, is_transposed=True)


def _load_left(a: Any) -> jax.Array:
    """Return a matrix in the layout of the first operand of `plgpu.mma`.

    Args:
      a: Matrix in shared memory, or tile in registers.
    """
    layouts: Any = plgpu.Layout
    layout = layouts.MMA_LHS(jnp.dtype(a.dtype))
    if not isinstance(a, jax.Array):
        return mosaic.load(a, layout)
    return_type = plgpu.ShapeDtypeStruct(a.shape, a.dtype, layout=layout)

    @plgpu.inline_mgpu(arg_types=(plgpu.Layout.WGMMA,), return_type=return_type)
    def reorder(_, a):
        target = layout.to_mgpu()
        registers = a.registers.reshape(target.registers_shape(a.shape))
        return FragmentedArray(_registers=registers, _layout=target, _is_signed=None)

    return reorder(a)
