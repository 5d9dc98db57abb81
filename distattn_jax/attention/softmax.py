"""Masked softmax, and the steps from the scores of one head to its outputs.

The implementations "reference" and "xla" compute scores in different ways. They share these steps:
softmax over the visible keys, the variant's adjustment of the weights, dropout, weighted sum of
values.
"""

import functools
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from distattn_jax.attention.arguments import Attended, Head, Options
from distattn_jax.attention.variants import compute_relative_positions
from distattn_jax.attention.variants.variant import store_as


class QueryBlock(NamedTuple):
    """Block of consecutive queries of one head. The last block may end with padding queries.

    Attributes:
      start: Index of the first query of the block.
      query: Queries of the block, after `Variant.prepare`.
      mask: True where a query of the block may attend to a key. None means no mask.
      segments: Segment number of each query of the block. None means one segment.
    """

    start: Int[Array, ""]
    query: Float[Array, "block _"]
    mask: Bool[Array, "#block #S"] | None
    segments: Int[Array, " block"] | None


def compute_outputs(
    scores: Float[Array, "block S"],
    head: Head,
    options: Options,
    block: QueryBlock,
    weighted_values: Callable[[Float[Array, "block S"]], Float[Array, "block E"]],
    stored_dtype: Any = None,
) -> Attended:
    """Compute the outputs of attention for a block of queries of one head, given the scores.

    The outputs have no head axis: for example, `values` has the shape (block, E).

    Args:
      scores: Scores of the queries of the block with all keys of the head.
      head: Arguments of the whole head.
      options: Arguments of `attention` that are Python values.
      block: Queries of the block, with their mask and segments.
      weighted_values: Function that maps the attention weights of the block to the weighted sum of
        values for each query of the block.
      stored_dtype: See `masked_softmax`.
    """
    relative_positions = compute_relative_positions(scores.shape, head.offset + block.start)
    visible = _visible_entries(head, options, block, relative_positions)
    weights, logsumexp = masked_softmax(scores, visible, stored_dtype)
    adjusted = head.variant.adjust_weights(weights, relative_positions)
    if adjusted is not weights:
        weights = adjusted if visible is None else jnp.where(visible, adjusted, 0)
    kept = weights if head.dropout is None else head.dropout(weights, block.start)
    return Attended(
        values=weighted_values(kept).astype(head.value.dtype),
        received=weights.sum(axis=0) if options.received else None,
        weights=weights if options.weights else None,
        logsumexp=logsumexp if options.logsumexp else None,
    )


def _visible_entries(
    head: Head, options: Options, block: QueryBlock, relative_positions: Int[Array, "block S"]
) -> Bool[Array, "#block #S"] | None:
    """Return a mask that is True where a query of the block may attend to a key.

    The mask is False for padding queries. The result is None if every query may attend to every
    key: the softmax is then one fused operation on a GPU.

    Args:
      head: Arguments of the whole head.
      options: Arguments of `attention` that are Python values.
      block: Queries of the block, with their mask and segments.
      relative_positions: Position of query i of the block minus the position of key j, for all i
        and j.
    """
    (queries, keys), length = relative_positions.shape, head.query.shape[0]
    masks = []
    if head.query_length is not None or (queries != length and length % queries):
        row = block.start + jnp.arange(queries, dtype=jnp.int32)[:, None]
        masks.append(row < (length if head.query_length is None else head.query_length))
    if block.mask is not None:
        masks.append(block.mask)
    if head.key_length is not None:
        masks.append(jnp.arange(keys, dtype=jnp.int32)[None, :] < head.key_length)
    if options.is_causal:
        masks.append(relative_positions >= 0)
    if options.window is not None:
        left, right = options.window
        masks.append((relative_positions <= left) & (relative_positions >= -right))
    if block.segments is not None:
        assert head.key_segments is not None, "queries and keys both have segments, or neither"
        masks.append(block.segments[:, None] == head.key_segments[None, :])
    return functools.reduce(operator.and_, masks) if masks else None


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def masked_softmax(
    scores: Float[Array, "*rows S"],
    visible: Bool[Array, "*#rows #S"] | None,
    stored_dtype: Any = None,
) -> tuple[Float[Array, "*rows S"], Float[Array, "*rows"]]:
    """Return the softmax of each row over its visible keys, and the logsumexp over the same keys.

    In a row without a visible key, the softmax is 0, the logsumexp is -inf, and both gradients are
    0.

    Args:
      scores: Logits. Each row has the S keys of one query.
      visible: True for visible keys. The softmax of all other keys is 0. None means that all keys
        are visible.
      stored_dtype: If the softmax is differentiated, it is rounded to this dtype and stored. The
        derivative and the caller read the stored softmax. None means that it is not rounded, and
        that the compiler may compute it again in each operation that reads it.
    """
    lowest = jnp.finfo(scores.dtype).min
    if visible is not None:
        scores = jnp.where(visible, scores, lowest)
    # XLA fuses the whole softmax on a GPU if only constants are combined with the peak and the
    # total. In a row without a visible key, all weights are exp(lowest / 2) = 0. In other rows, the
    # total is at least 1.
    peak = jnp.maximum(scores.max(axis=-1, keepdims=True), lowest / 2)
    weights = jnp.exp(scores - peak)
    total = weights.sum(axis=-1, keepdims=True)
    logsumexp = jnp.where(total > 0, peak + jnp.log(total), -jnp.inf)
    return weights / jnp.maximum(total, 1), logsumexp.squeeze(-1)


@masked_softmax.defjvp
def _masked_softmax_jvp(stored_dtype, primals, tangents):
    """Return the outputs of `masked_softmax`, and their tangents.

    The softmax is 0 at keys that are not visible. The tangent is therefore 0 there as well, so that
    no mask is needed here.
    """
    weights, logsumexp = masked_softmax(*primals)
    total: Any = 1
    if stored_dtype is not None:
        weights = store_as(weights, stored_dtype)
        # The gradients of the scores of a row must sum to 0. Rounded weights do not sum to 1: hence
        # the division.
        total = weights.sum(axis=-1, keepdims=True)
        total = jnp.where(total > 0, total, 1)
    change = weights * tangents[0]
    mean = change.sum(axis=-1, keepdims=True) / total
    return (weights, logsumexp), (change - weights * mean, mean.squeeze(-1))
