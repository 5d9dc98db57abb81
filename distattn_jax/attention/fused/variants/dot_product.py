"""Dot-product attention in the kernels, and variants that can be written as dot products."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from distattn_jax.attention.fused.kernel_view import (
    Block,
    KernelForm,
    KernelView,
    broadcast_heads,
    register,
)
from distattn_jax.attention.fused.scoring import DotProductScoring
from distattn_jax.attention.variants import DotProduct


@register(DotProduct)
class DotProductView(KernelView):
    """`KernelView` of dot-product attention."""

    def make_form(self, variant, block):
        return KernelForm(DotProductScoring(block.scale), block.query, block.key)


class AsDotProductView(KernelView):
    """`KernelView` of any variant that defines `as_dot_product`, such as `Adapted`."""

    def make_form(self, variant, block):
        query, key = write_as_dot_product(variant, block)
        return KernelForm(
            DotProductScoring(block.scale),
            query,
            key,
            trained_key_width=block.key.shape[-1] if variant.appends_constants else None,
        )


def write_as_dot_product(variant: Any, block: Block) -> tuple[Array, Array]:
    """Return queries and keys whose dot products, times the scale, are the scores of a variant.

    Their shapes are (B, T, N, W) and (B, S, K, W). The width W may be larger than the width H of
    the queries and keys of the call.
    """
    heads, dtype = block.query.shape[2], block.query.dtype
    group_size = heads // block.key.shape[2]
    key = jnp.repeat(block.key, group_size, axis=2) if group_size > 1 else block.key
    # Examples with one offset share the terms that depend on positions alone.
    is_shared = block.offset.shape[0] == 1
    offset, offset_axis = (block.offset[0], None) if is_shared else (block.offset, 0)

    def one_head(variant, query, key, offset):
        return variant.as_dot_product(query, key, offset)

    per_head = jax.vmap(one_head, (0, 1, 1, None), out_axes=1)
    per_example = jax.vmap(per_head, (None, 0, 0, offset_axis))
    query, key = per_example(broadcast_heads(variant, heads), block.query, key, offset)
    key = key[:, :, ::group_size]  # equal for all query heads of a group
    return query.astype(dtype), key.astype(dtype)


def written_width(variant: Any, query: Float[Array, "B T N H"]) -> int:
    """Return the width of the queries and keys that `write_as_dot_product` returns.

    Return H if the variant cannot be written as dot-product attention.
    """
    if variant.as_dot_product is None:
        return query.shape[-1]
    one_head = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), variant)
    vector = jax.ShapeDtypeStruct((1, query.shape[-1]), query.dtype)
    offset = jax.ShapeDtypeStruct((), jnp.int32)
    written, _ = jax.eval_shape(type(variant).as_dot_product, one_head, vector, vector, offset)
    return written.shape[-1]
