"""Matrix products with WGMMA, the matrix instructions of a Hopper GPU.

WGMMA multiplies asynchronously: a warpgroup starts a product, and waits for its result later. The
second operand is read from shared memory.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp

from distattn_jax.attention.fused.gpu import mosaic
from distattn_jax.attention.fused.interpreter import is_interpreted

Pair = tuple[Any, Any]


def operand_scratch(shape: tuple[int, ...], dtype: Any) -> Any:
    """Return the type of the buffer `WgmmaProducts.scratch`, or None on a GPU."""
    return mosaic.matrix_scratch(shape, dtype) if is_interpreted() else None


class WgmmaProducts(NamedTuple):
    """Matrix products of a warpgroup on a Hopper GPU: see `kernel_body.Products`.

    Attributes:
      scratch: Buffer in shared memory to which the interpreter copies a tile, because it cannot
        multiply a tile in registers. None on a GPU.
    """

    scratch: Any

    @property
    def is_asynchronous(self) -> bool:
        """True: a warpgroup can start several products before it waits for the first result."""
        return True

    def multiply_transposed(
        self, *pairs: Pair, initial: tuple[jax.Array, ...] | None = None
    ) -> tuple[jax.Array, ...]:
        """Return the matrix product a bᵀ for each pair (a, b), as float32 tiles.

        All products are started before the warpgroup waits for the first result.
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

    def accumulate(
        self, totals: Sequence[jax.Array], *operands: Sequence[Pair]
    ) -> tuple[jax.Array, ...]:
        """Add matrix products a @ b to each total, and return the new totals."""
        cast = tuple(tuple((a.astype(b.dtype), b) for a, b in pairs) for pairs in operands)
        if self.scratch is not None:
            results = []
            for total, pairs in zip(totals, cast, strict=True):
                for a, b in pairs:
                    total = _accumulate_through_scratch(total, a, b, self.scratch)
                results.append(total)
            return tuple(results)

        def multiply(accumulators):
            for accumulator, pairs in zip(accumulators, cast, strict=True):
                for a, b in pairs:
                    plgpu.wgmma(accumulator, a, b)

        return pl.run_state(multiply)(tuple(plgpu.ACC.init(total) for total in totals))


def _multiply_onto(
    initial: tuple[jax.Array, ...], pairs: tuple[tuple[Any, Any], ...]
) -> tuple[jax.Array, ...]:
    """Return tile + a bᵀ for each tile in `initial` and the pair (a, b) at the same index."""

    def multiply(accumulators):
        for accumulator, (a, b) in zip(accumulators, pairs, strict=True):
            plgpu.wgmma(accumulator, a, b.transpose((1, 0)))

    return pl.run_state(multiply)(tuple(plgpu.ACC.init(x) for x in initial))


def _accumulate_through_scratch(total: jax.Array, a: jax.Array, b: Any, scratch: Any) -> jax.Array:
    """Copy the tile `a` to the buffer `scratch`, and return `total` + `scratch` @ `b`."""
    if a.shape[1] < scratch.shape[1]:
        scratch = scratch.at[:, : a.shape[1]]
    scratch[...] = a
    plgpu.commit_smem()

    def multiply(accumulator):
        plgpu.wgmma(accumulator, scratch, b)
        return accumulator[...]

    return total + pl.run_scoped(multiply, plgpu.ACC((a.shape[0], b.shape[1]), jnp.float32))
