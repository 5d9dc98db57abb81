"""Matrix products with `mma.sync`, which all NVIDIA GPUs since Ampere have.

The accumulator has the same layout in registers as that of WGMMA. A tile in this layout becomes the
first operand of a product without moving data: only the order of its registers changes.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax.experimental.mosaic.gpu import FragmentedArray

from distattn_jax.attention.fused.gpu import mosaic
from distattn_jax.attention.fused.interpreter import is_interpreted

Pair = tuple[Any, Any]


class MmaProducts:
    """Matrix products of a warpgroup: see `kernel_body.Products`."""

    def multiply_transposed(
        self, *pairs: Pair, initial: tuple[jax.Array, ...] | None = None
    ) -> tuple[jax.Array, ...]:
        """Return the matrix product a bᵀ for each pair (a, b), as float32 tiles."""
        if initial is None:
            initial = tuple(mosaic.full((a.shape[0], b.shape[0]), 0.0) for a, b in pairs)
        return tuple(
            _multiply(total, a, b.transpose((1, 0)))
            for total, (a, b) in zip(initial, pairs, strict=True)
        )

    def accumulate(
        self, totals: Sequence[jax.Array], *operands: Sequence[Pair]
    ) -> tuple[jax.Array, ...]:
        """Add matrix products a @ b to each total, and return the new totals."""
        results = []
        for total, pairs in zip(totals, operands, strict=True):
            for a, b in pairs:
                total = _multiply(total, a.astype(b.dtype), b)
            results.append(total)
        return tuple(results)


def _multiply(total: jax.Array, a: Any, b: Any) -> jax.Array:
    """Return `total` + a @ b.

    The interpreter has no `mma.sync`. It multiplies the same numbers with `jnp.dot`.

    Args:
      a: Matrix in registers or in shared memory.
      b: Matrix in shared memory.
    """
    if is_interpreted():
        return total + jnp.dot(a[...], b[...], preferred_element_type=jnp.float32)
    right = mosaic.load(b, plgpu.Layout.MMA_RHS(jnp.dtype(b.dtype)))
    return plgpu.mma(total, _load_left(a), right)


def _load_left(a: Any) -> jax.Array:
    """Return a matrix in the layout of the first operand of `plgpu.mma`.

    Args:
      a: Matrix in shared memory, or tile in registers.
    """
    layout = plgpu.Layout.MMA_LHS(jnp.dtype(a.dtype))
    if not isinstance(a, jax.Array):
        return mosaic.load(a, layout)
    return_type = plgpu.ShapeDtypeStruct(a.shape, a.dtype, layout=layout)

    @plgpu.inline_mgpu(arg_types=(plgpu.Layout.WGMMA,), return_type=return_type)
    def reorder(_, a):
        target = layout.to_mgpu()
        registers = a.registers.reshape(target.registers_shape(a.shape))
        return FragmentedArray(_registers=registers, _layout=target, _is_signed=None)

    return reorder(a)
