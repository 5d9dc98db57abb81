"""Attention with the conventions of Flax: any number of batch axes and masks of any dtype."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from distattn_jax.attention import Attended, Variant, attention


def attention_over_batch_axes(
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
    """Call `attention` with all batch axes merged into one, and split this axis in the outputs.

    Args:
      query: Queries, shape (..., T, N, H).
      key: Keys, shape (..., S, N, H).
      value: Values, shape (..., S, N, E).
      variant: Attention variant.
      mask: Nonzero where a query may attend to a key, broadcastable to (..., N, T, S).
      query_lengths: Number of valid queries, broadcastable to the batch axes.
      key_lengths: Number of valid keys, broadcastable to the batch axes.
      query_offset: Position of the first query minus position of the first key, a scalar or
        broadcastable to the batch axes.
      **arguments: Other arguments of `attention`.
    """
    batch = query.shape[:-3]
    if mask is not None:
        mask = mask.astype(bool)
    if len(batch) != 1:
        query, key, value = (x.reshape(-1, *x.shape[-3:]) for x in (query, key, value))
        mask = _merge_batch_axes(mask, batch, trailing=3)
        query_lengths = _merge_batch_axes(query_lengths, batch, trailing=0)
        key_lengths = _merge_batch_axes(key_lengths, batch, trailing=0)
        if not isinstance(query_offset, int) and query_offset.ndim:
            query_offset = _merge_batch_axes(query_offset, batch, trailing=0)
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


def _merge_batch_axes(x: Any, batch: tuple[int, ...], trailing: int) -> Any:
    """Broadcast the batch axes of an array to the sizes `batch` and merge them into one axis.

    Args:
      x: Array whose batch axes may be missing or have size 1. None is returned unchanged.
      batch: Sizes of the batch axes.
      trailing: Number of axes after the batch axes.
    """
    if x is None or (x.ndim <= trailing and math.prod(batch) == 1):
        return x
    tail = x.shape[x.ndim - trailing :]
    return jnp.broadcast_to(x, (*batch, *tail)).reshape(-1, *tail)
