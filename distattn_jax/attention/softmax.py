"""Masked softmax, and the steps from the scores of one head to its outputs.

`reference` and `xla` compute scores in different ways and share these steps: softmax over the
visible keys, the variant's adjustment of the weights, dropout, weighted sum of values.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from distattn_jax.attention.arguments import Attended, Head, Options
from distattn_jax.attention.variants import compute_relative_positions


def compute_outputs(
    scores: Float[Array, "block S"],
    head: Head,
    options: Options,
    *,
    mask: Bool[Array, "#block #S"] | None,
    start: Int[Array, ""],
    weighted_values: Callable[[Float[Array, "block S"]], Float[Array, "block E"]],
) -> Attended:
    """Return the outputs of a block of consecutive queries of one head, computed from scores.

    Args:
      scores: Scores of the block.
      head: Arguments of the whole head.
      options: Arguments of `attention` that are Python values.
      mask: True where a query of the block may attend to a key. None masks no entry.
      start: Index of the first query of the block.
      weighted_values: Maps the weights of the block to its weighted sums of values.
    """
    visible = _visible_entries(head, mask, scores.shape, start, options.is_causal)
    weights = masked_softmax(scores, visible)
    relative_positions = compute_relative_positions(scores.shape, head.offset + start)
    adjusted = head.variant.adjust_weights(weights, relative_positions)
    if adjusted is not weights:
        weights = jnp.where(visible, adjusted, 0)
    kept = weights if head.dropout is None else head.dropout(weights, start)
    return Attended(
        weighted_values(kept).astype(head.value.dtype),
        weights.sum(axis=0) if options.received else None,
        weights if options.weights else None,
    )


def _visible_entries(
    head: Head,
    mask: Bool[Array, "#block #S"] | None,
    shape: tuple[int, ...],
    start: Int[Array, ""],
    is_causal: bool,
) -> Bool[Array, "#block #S"]:
    """Return a mask that is True where a query of the block may attend to a key.

    The first query of the block has index `start`. The last block may have padding rows after the
    last query. The mask is False in these rows.
    """
    queries, keys = shape
    row = start + jnp.arange(queries, dtype=jnp.int32)[:, None]
    column = jnp.arange(keys, dtype=jnp.int32)[None, :]
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
    """Return the softmax over the visible keys of each row.

    The result and the gradient of a row without a visible key are 0.

    Args:
      scores: Logits.
      visible: True where a key takes part in the softmax.
    """
    lowest = jnp.finfo(scores.dtype).min
    peak = jnp.max(scores, axis=-1, keepdims=True, initial=lowest, where=visible)
    weights = jnp.exp(jnp.where(visible, scores - peak, lowest))
    total = weights.sum(axis=-1, keepdims=True)
    return weights / jnp.where(total > 0, total, 1)


@masked_softmax.defjvp
def _masked_softmax_jvp(primals, tangents):
    """Return the softmax and its tangent. At masked keys the two arrays are 0."""
    weights = masked_softmax(*primals)
    change = weights * tangents[0]
    return weights, change - weights * change.sum(axis=-1, keepdims=True)
