"""Implementation "reference": the equations of the papers, with whole (T, S) arrays of weights."""

import functools

import jax
import jax.numpy as jnp

from distattn_jax.attention.arguments import Attended, AttentionCall, Head, Options
from distattn_jax.attention.softmax import QueryBlock, compute_outputs
from distattn_jax.attention.variants import compute_relative_positions, promote
from distattn_jax.attention.vmap_heads import vmap_heads


@functools.partial(jax.jit, inline=True)
def run(call: AttentionCall) -> Attended:
    """Compute attention as the papers write it, as a reference to test other implementations."""
    return vmap_heads(functools.partial(_attend_one_head, options=call.options), call)


def _attend_one_head(head: Head, options: Options) -> Attended:
    """Compute attention of one head of one example, in float32, or float64 for float64 queries."""
    dtype = promote(head.query.dtype)
    query, key, value = (x.astype(dtype) for x in (head.query, head.key, head.value))
    relative_positions = compute_relative_positions((query.shape[0], key.shape[0]), head.offset)
    weighted_values = functools.partial(
        head.variant.weighted_values, value=value, relative_positions=relative_positions
    )
    with jax.default_matmul_precision("highest"):
        scores = head.variant.scores(query, key, relative_positions, options.scale)
        block = QueryBlock(jnp.int32(0), query, head.mask, head.query_segments)
        return compute_outputs(scores, head, options, block, weighted_values)
