"""Matrix products of the TPU kernels."""

import jax
import jax.numpy as jnp
from jax import lax

from distattn_jax.attention.fused.operands import select_precision


def multiply(left: jax.Array, right: jax.Array, axes: tuple[int, int]) -> jax.Array:
    """Multiply two matrices, and return the product in float32.

    Args:
      left: First matrix.
      right: Second matrix, of the same dtype.
      axes: Axis of each matrix over which the products are summed.
    """
    return lax.dot_general(
        left,
        right,
        (((axes[0],), (axes[1],)), ((), ())),
        precision=select_precision(left.dtype),
        preferred_element_type=jnp.float32,
    )
