"""XLA implementation: plain JAX operations, in blocks of queries if the (T, S) map is large."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from distattn_jax.attention.arguments import Attended, AttentionCall, Head, Options
from distattn_jax.attention.softmax import compute_outputs
from distattn_jax.attention.variants import promote
from distattn_jax.attention.vmap_heads import OUTPUT_HEAD_AXES, vmap_heads

LARGEST_MAP = 256 * 2**20  # bytes of the (B, N, T, S) map that may be stored for a backward pass
LARGEST_BLOCK = 64 * 2**20  # bytes of the map that are computed at once
FEWEST_ROWS = 16  # queries of a block, even if they exceed LARGEST_BLOCK


def run(call: AttentionCall) -> Attended:
    """Compute attention with plain JAX operations, in blocks of queries if T times S is large."""
    batch, queries, heads, _ = call.query.shape
    row_bytes = batch * heads * call.key.shape[1] * promote(call.query.dtype).itemsize
    rows = max(FEWEST_ROWS, 2 ** math.floor(math.log2(max(1, LARGEST_BLOCK / row_bytes))))
    one_head = functools.partial(
        _attend_in_blocks,
        options=call.options,
        rows=rows,
        recompute=row_bytes * queries > LARGEST_MAP,
    )
    return vmap_heads(one_head, call, OUTPUT_HEAD_AXES)


def _attend_in_blocks(head: Head, options: Options, rows: int, recompute: bool) -> Attended:
    """Compute attention of one head of one example, `rows` queries at a time.

    Args:
      head: Arguments of the head.
      options: Arguments of `attention` that are Python values.
      rows: Number of queries of a block.
      recompute: If True, compute every block again in the backward pass instead of storing it. At
        most one block of the (T, S) map then exists at a time: memory is linear in length.
    """
    length = head.query.shape[0]
    if rows >= length:
        query, prepared = head.variant.prepare(head.query, head.key, head.offset)
        return _attend_block(head, options, prepared, query, head.mask, jnp.int32(0))

    blocks = -(-length // rows)
    padding = ((0, blocks * rows - length), (0, 0))
    query, prepared = head.variant.prepare(jnp.pad(head.query, padding), head.key, head.offset)
    query, row_masks, shared_mask = query.reshape(blocks, rows, -1), None, head.mask
    if head.mask is not None and head.mask.shape[0] > 1:
        row_masks, shared_mask = jnp.pad(head.mask, padding).reshape(blocks, rows, -1), None

    def step(received, block):
        start, query, row_mask = block
        mask = shared_mask if row_mask is None else row_mask
        attended = _attend_block(head, options, prepared, query, mask, start)
        if options.received:
            received += attended.received
        return received, (attended.values, attended.weights)

    dtype = promote(head.query.dtype)
    received = jnp.zeros_like(head.key[:, 0], dtype) if options.received else None
    received, stacked = jax.lax.scan(
        jax.checkpoint(step) if recompute else step,
        received,
        (jnp.arange(blocks, dtype=jnp.int32) * rows, query, row_masks),
    )
    values, weights = jax.tree.map(
        lambda x: x.reshape(blocks * rows, x.shape[-1])[:length], stacked
    )
    return Attended(values, received, weights)


def _attend_block(
    head: Head,
    options: Options,
    prepared: Any,
    query: Float[Array, "block _"],
    mask: Bool[Array, "#block #S"] | None,
    start: Int[Array, ""],
) -> Attended:
    """Compute attention of the block of queries that begins at query `start`.

    Args:
      head: Arguments of the whole head.
      options: Arguments of `attention` that are Python values.
      prepared: Second output of `Variant.prepare`, shared by all blocks.
      query: Rows of the block from the first output of `Variant.prepare`.
      mask: True where a query of the block may attend to a key. None masks no entry.
      start: Index of the first query of the block.
    """
    offset = head.offset + start
    return compute_outputs(
        head.variant.block_scores(query, prepared, offset, start),
        head,
        options,
        mask=mask,
        start=start,
        weighted_values=functools.partial(
            head.variant.block_weighted_values, value=head.value, offset=offset
        ),
    )
