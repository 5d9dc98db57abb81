"""One head of one example, from scores to outputs: as printed, or in blocks of queries.

Both ways are the same five steps: scores, softmax over the visible keys, what the variant does to
the weights, dropout, values.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from distattn_jax.attention.dropout import Dropout
from distattn_jax.attention.variant import Variant, counted, gaps, wide


class Attended(NamedTuple):
    """What attention gives: values always, the rest when asked for (before dropout).

    Attributes:
      values: in the dtype of `value`.
      received: the attention each key receives, summed over the queries.
      weights: the attention map.
    """

    values: Float[Array, "*B T N E"]
    received: Float[Array, "*B N S"] | None = None
    weights: Float[Array, "*B N T S"] | None = None


class Head(NamedTuple):
    """The arrays of one head. `offset` is the position of query 0 minus that of key 0."""

    query: Float[Array, "T H"]
    key: Float[Array, "S H"]
    value: Float[Array, "S E"]
    variant: Variant
    mask: Bool[Array, "#T #S"] | None
    query_length: Int[Array, ""] | None
    key_length: Int[Array, ""] | None
    offset: Int[Array, ""]
    dropout: Dropout | None


class Options(NamedTuple):
    """What is decided before tracing. `aligned`: query_offset is the number 0."""

    is_causal: bool
    aligned: bool
    received: bool
    weights: bool


def as_printed(head: Head, options: Options) -> Attended:
    """The variant's equations, term by term, on whole (T, S) maps."""
    dtype = wide(head.query.dtype)
    query, key, value = (x.astype(dtype) for x in (head.query, head.key, head.value))
    gap = gaps((query.shape[0], key.shape[0]), head.offset)
    with jax.default_matmul_precision("highest"):
        scores = head.variant.scores(query, key, gap)
        mix = functools.partial(head.variant.mix, value=value, gap=gap)
        return _finish(head, scores, head.mask, jnp.int32(0), mix, options)


def in_blocks(head: Head, options: Options, rows: int, recompute: bool) -> Attended:
    """The variant's algebraic form, `rows` queries at a time.

    With `recompute`, a block is computed again in the backward pass instead of kept, so that never
    more than one block of the (T, S) map exists: memory linear in length.
    """
    length = head.query.shape[0]
    if rows >= length:
        query, prepared = head.variant.prepare(head.query, head.key, head.offset)
        return _block(head, options, prepared, query, head.mask, jnp.int32(0))

    blocks = -(-length // rows)
    padding = ((0, blocks * rows - length), (0, 0))
    query, prepared = head.variant.prepare(jnp.pad(head.query, padding), head.key, head.offset)
    query, row_masks, shared_mask = query.reshape(blocks, rows, -1), None, head.mask
    if head.mask is not None and head.mask.shape[0] > 1:
        row_masks, shared_mask = jnp.pad(head.mask, padding).reshape(blocks, rows, -1), None

    def step(received, block):
        start, query, row_mask = block
        mask = shared_mask if row_mask is None else row_mask
        attended = _block(head, options, prepared, query, mask, start)
        if options.received:
            received += attended.received
        return received, (attended.values, attended.weights)

    received = jnp.zeros_like(head.key[:, 0], wide(head.query.dtype)) if options.received else None
    received, stacked = jax.lax.scan(
        jax.checkpoint(step) if recompute else step,
        received,
        (counted(blocks) * rows, query, row_masks),
    )
    values, weights = jax.tree.map(
        lambda x: x.reshape(blocks * rows, x.shape[-1])[:length], stacked
    )
    return Attended(values, received, weights)


def _block(head, options, prepared, query, mask, start):
    offset = head.offset + start
    scores = head.variant.block_scores(query, prepared, offset, start)
    mix = functools.partial(head.variant.block_mix, value=head.value, offset=offset)
    return _finish(head, scores, mask, start, mix, options)


def _finish(head, scores, mask, start, mix, options) -> Attended:
    """From the scores of the block that begins at query `start` to its outputs."""
    visible = _visible(head, mask, scores.shape, start, options.is_causal)
    weights = masked_softmax(scores, visible)
    reweighed = head.variant.reweigh(weights, gaps(scores.shape, head.offset + start))
    if reweighed is not weights:
        weights = jnp.where(visible, reweighed, 0)
    kept = weights if head.dropout is None else head.dropout(weights, start)
    return Attended(
        mix(kept).astype(head.value.dtype),
        weights.sum(axis=0) if options.received else None,
        weights if options.weights else None,
    )


def _visible(head, mask, shape, start, is_causal) -> Bool[Array, "#T #S"]:
    """Whether query i of the block may attend to key j. Padding rows of a last block may not."""
    queries, keys = shape
    row = start + counted(queries)[:, None]
    column = counted(keys)[None, :]
    length = head.query.shape[0] if head.query_length is None else head.query_length
    visible = row < length
    if mask is not None:
        visible &= mask
    if head.key_length is not None:
        visible &= column < head.key_length
    if is_causal:
        visible &= column <= row + head.offset
    return visible


@jax.custom_jvp
def masked_softmax(
    scores: Float[Array, "*rows S"], visible: Bool[Array, "*#rows #S"]
) -> Float[Array, "*rows S"]:
    """Softmax over the visible keys; a row that sees none is 0, and so is its gradient."""
    lowest = jnp.finfo(scores.dtype).min
    peak = jnp.max(scores, axis=-1, keepdims=True, initial=lowest, where=visible)
    weights = jnp.exp(jnp.where(visible, scores - peak, lowest))
    total = weights.sum(axis=-1, keepdims=True)
    return weights / jnp.where(total > 0, total, 1)


@masked_softmax.defjvp
def _masked_softmax_jvp(primals, tangents):
    weights = masked_softmax(*primals)
    change = weights * tangents[0]
    return weights, change - weights * change.sum(axis=-1, keepdims=True)
