"""Operands of the fused kernels: the arrays of a call, padded, and masks of each kind."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Num

from distattn_jax.attention import fused, gpu_inputs
from distattn_jax.attention.arguments import AttentionCall
from distattn_jax.attention.dropout import drop_threshold, kept_scale, make_head_words
from distattn_jax.attention.fused.visible_columns import UNBOUNDED, Window
from distattn_jax.attention.kernel_scoring import (
    clip_distances,
    make_coefficients,
    make_tables,
    stack,
    uses_tables,
)
from distattn_jax.attention.variants import (
    DistanceBias,
    RelativePosition,
    T5Buckets,
    TransformerXL,
)
from distattn_jax.attention.variants.sinusoid import sinusoid

LENGTH_MULTIPLE = 8
MASK_MULTIPLE = 16  # bytes: the copy engine needs aligned rows


def make_operands(call: AttentionCall, widths: Sequence[int]) -> fused.Operands:
    """Return the operands of the kernels. Query, key and value are padded.

    Args:
      call: Arguments of attention.
      widths: Widths of heads that the kernels support, in ascending order.
    """
    batch, queries, heads, _ = call.query.shape
    keys = call.key.shape[1]
    dropout_words = dropout_scale = None
    if call.dropout_rate is not None:
        assert call.dropout_words is not None, "a dropout rate comes with words"
        threshold = drop_threshold(call.dropout_rate)
        head_words = make_head_words(
            call.dropout_words,
            jnp.arange(batch, dtype=jnp.int32)[:, None],
            jnp.arange(heads, dtype=jnp.int32)[None, :],
        )
        dropout_words = stack((*head_words, threshold), (batch, heads))
        dropout_scale = jnp.broadcast_to(kept_scale(call.dropout_rate), (batch, heads, 1))
    query = _make_query(call, widths)
    key, value = _pad(call.key, widths), _pad(call.value, widths)
    if uses_tables(call.variant):
        coefficients, tables = make_tables(call, query.shape[1], key.shape[1])
    else:
        coefficients, tables = make_coefficients(call), ()
    return fused.Operands(
        query=query,
        key=key,
        value=value,
        coefficients=coefficients,
        tables=tables,
        query_lengths=gpu_inputs.fill_lengths(call.query_lengths, batch, queries),
        key_lengths=gpu_inputs.fill_lengths(call.key_lengths, batch, keys),
        offset=jnp.broadcast_to(call.offset, (batch,)),
        query_segments=_pad_segments(call.query_segments),
        key_segments=_pad_segments(call.key_segments),
        **_make_masks(call)._asdict(),
        dropout_words=dropout_words,
        dropout_scale=dropout_scale,
        **_make_relation_tables(call, widths),
        **_make_positions(call, query.shape[1], key.shape[1], widths),
    )


class _Masks(NamedTuple):
    """Masks of a call: of keys, of queries, and of pairs of a query and a key."""

    key_mask: Bool[Array, "#B #N S"] | None = None
    query_mask: Bool[Array, "#B #N T"] | None = None
    mask: Num[Array, "#B #N _ _"] | None = None


def _split_mask(call: AttentionCall) -> _Masks:
    """Return the mask of a call as a key mask, a query mask or a mask of pairs."""
    if call.mask is None:
        return _Masks()
    if call.mask.shape[2] == 1:
        shape = (*call.mask.shape[:2], call.key.shape[1])
        return _Masks(key_mask=jnp.broadcast_to(call.mask[:, :, 0], shape))
    if call.mask.shape[3] == 1:
        return _Masks(query_mask=call.mask[..., 0])
    return _Masks(mask=call.mask)


def _make_masks(call: AttentionCall) -> _Masks:
    """Pad the masks for the kernels. The key mask also hides the keys beyond `key_lengths`."""
    masks = _split_mask(call)
    queries, keys = (x.shape[1] + -x.shape[1] % LENGTH_MULTIPLE for x in (call.query, call.key))
    if masks.key_mask is not None:
        key_mask = _pad_last(masks.key_mask, keys)
        if call.key_lengths is not None:
            key_mask &= jnp.arange(keys)[None, None, :] < call.key_lengths[:, None, None]
        return masks._replace(key_mask=key_mask)
    if masks.query_mask is not None:
        return masks._replace(query_mask=_pad_last(masks.query_mask, queries))
    if masks.mask is not None:
        padding = [-length % MASK_MULTIPLE for length in masks.mask.shape[2:]]
        widths = ((0, 0), (0, 0), (0, padding[0]), (0, padding[1]))
        return masks._replace(mask=jnp.pad(masks.mask.astype(jnp.int8), widths))
    return masks


def _pad_last(x: Bool[Array, "#B #N L"], length: int) -> Bool[Array, "#B #N {length}"]:
    """Pad the last axis with False."""
    return jnp.pad(x, ((0, 0), (0, 0), (0, length - x.shape[-1])))


def _pad_segments(segments: Int[Array, "B L"] | None) -> Int[Array, "B _"] | None:
    """Pad the segments to a length that the kernels support, by repeating the last segment."""
    if segments is None:
        return None
    return jnp.pad(segments, ((0, 0), (0, -segments.shape[1] % LENGTH_MULTIPLE)), mode="edge")


def make_window(call: AttentionCall) -> Window:
    """Return the limits of the distance to visible keys, from the window and the causal mask."""
    # A larger limit would overflow when a position is added to it.
    limits = call.options.window or (UNBOUNDED, UNBOUNDED)
    window = Window(*(limit if limit < UNBOUNDED else None for limit in limits))
    return window._replace(right=0) if call.options.is_causal else window


def _make_relation_tables(
    call: AttentionCall, widths: Sequence[int]
) -> dict[str, Float[Array, "..."]]:
    """Return the tables of relative position attention, as wide as the padded keys and values.

    For the buckets of T5, return one number for each relation.
    """
    variant = call.variant
    if isinstance(variant, DistanceBias) and isinstance(variant.function, T5Buckets):
        distance = variant.function.max_distance
        relative_positions = jnp.arange(distance, -distance - 1, -1)
        bias = jax.vmap(variant.function, (None, 0))(relative_positions, variant.parameters)
        return {"relation_bias": bias / call.options.scale}
    if not isinstance(variant, RelativePosition) or not clip_distances(variant):
        return {}
    clip_distance = max(1, *clip_distances(variant))
    tables = {"key_table": variant.keys, "value_table": variant.values}
    resized = {}
    for name, table in tables.items():
        if table is not None:
            padding = _padded_width(table.shape[-1], widths) - table.shape[-1]
            table = fused.resize_table(table, clip_distance)
            resized[name] = jnp.pad(table, ((0, 0), (0, 0), (0, padding)))
    return resized


def _make_query(call: AttentionCall, widths: Sequence[int]) -> Float[Array, "B T N H"]:
    """Return the padded queries that are multiplied by keys."""
    if isinstance(call.variant, TransformerXL):
        return _add_bias(call.query, call.variant.content_bias, widths)
    return _pad(call.query, widths)


def _add_bias(
    query: Float[Array, "B T N H"], bias: Float[Array, "#N H"], widths: Sequence[int]
) -> Array:
    """Add a vector of each head to the queries, round to their dtype, and pad them."""
    return _pad((query + bias[None, None]).astype(query.dtype), widths)


def _make_positions(
    call: AttentionCall, queries: int, keys: int, widths: Sequence[int]
) -> dict[str, Array]:
    """Return the position queries and position vectors of Transformer-XL attention.

    Args:
      call: Arguments of attention.
      queries: Number of queries after padding.
      keys: Number of keys after padding.
      widths: Widths of heads that the kernels support, in ascending order.
    """
    variant = call.variant
    if not isinstance(variant, TransformerXL):
        return {}
    relative = call.offset[:, None] + jnp.arange(-keys, queries + 1, dtype=jnp.int32)[None]
    _, width, head_width = variant.projection.shape
    sinusoids = sinusoid(relative.reshape(-1), width, variant.projection.dtype)
    sinusoids = sinusoids.reshape(*relative.shape, width)
    positions = jnp.einsum("bpd,ndh->bpnh", sinusoids, variant.projection)
    return {
        "position_query": _add_bias(call.query, variant.position_bias, widths),
        "positions": gpu_inputs.pad_rows(
            positions.astype(call.query.dtype),
            length_multiple=1,
            width=_padded_width(head_width, widths),
        ),
    }


def _pad(x: Float[Array, "B L N W"], widths: Sequence[int]) -> Float[Array, "B _ N _"]:
    """Pad x with zeros to a width and a length that the kernels support."""
    width = _padded_width(x.shape[-1], widths)
    return gpu_inputs.pad_rows(x, length_multiple=LENGTH_MULTIPLE, width=width)


def _padded_width(width: int, widths: Sequence[int]) -> int:
    """Return the smallest of the ascending `widths` that is at least `width`."""
    return next(supported for supported in widths if supported >= width)
