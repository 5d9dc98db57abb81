"""`attention` with Flax's conventions: any number of batch axes, masks of any dtype."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from distattn_jax.attention import Attended, Variant, attention


def attention_over_batches(
    query: Float[Array, "*batch T N H"],
    key: Float[Array, "*batch S N H"],
    value: Float[Array, "*batch S N E"],
    variant: Variant,
    *,
    mask: Array | None = None,
    query_lengths: Array | None = None,
    key_lengths: Array | None = None,
    query_offset: int | Array = 0,
    **arguments: Any,
) -> Attended:
    """`attention` over the batch axes taken together, which every output gets back."""
    batch = query.shape[:-3]
    if mask is not None:
        mask = mask.astype(bool)
    if len(batch) != 1:
        query, key, value = (x.reshape(-1, *x.shape[-3:]) for x in (query, key, value))
        mask = _merged(mask, batch, own=3)
        query_lengths = _merged(query_lengths, batch, own=0)
        key_lengths = _merged(key_lengths, batch, own=0)
        if not isinstance(query_offset, int) and query_offset.ndim:
            query_offset = _merged(query_offset, batch, own=0)
    attended = attention(
        query,
        key,
        value,
        variant,
        mask=mask,
        query_lengths=query_lengths,
        key_lengths=key_lengths,
        query_offset=query_offset,
        **arguments,
    )
    if len(batch) == 1:
        return attended
    return jax.tree.map(lambda x: x.reshape(*batch, *x.shape[1:]), attended)


def _merged(x: Any, batch: tuple[int, ...], own: int) -> Any:
    """x with its batch axes as one; an axis of size 1 or none at all stands for every example."""
    if x is None or (x.ndim <= own and math.prod(batch) == 1):
        return x
    tail = x.shape[x.ndim - own :]
    return jnp.broadcast_to(x, (*batch, *tail)).reshape(-1, *tail)
