"""From one head to all: two vmaps, over the heads and over the batch, in this one place.

What is shared is not copied: an axis of size 1 is dropped and not mapped. Under a mesh with
Explicit axes, all that is mapped together is first sharded like the query, as `vmap` demands.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec, reshard
from jaxtyping import Array

from distattn_jax.attention.arguments import Attended, AttentionCall, Head
from distattn_jax.attention.dropout import Dropout

# Axis of the heads in the outputs of one example.
OUTPUT_HEAD_AXES = Attended(values=1, received=0, weights=0)  # type: ignore[arg-type]


class _Argument(NamedTuple):
    """An array and which of its axes are the batch and the heads (None: it has no such axis)."""

    array: Any
    batch: int | None = None
    heads: int | None = None


def vmap_heads(one_head: Callable[[Head], Any], call: AttentionCall, head_axes: Any) -> Any:
    """`one_head` for every head of every example; `head_axes`: where its outputs get the heads."""
    leaves, structure = jax.tree.flatten(call.variant)
    batch, _, heads, _ = call.query.shape
    arguments = [
        _Argument(call.query, batch=0, heads=2),
        _Argument(call.key, batch=0, heads=2),
        _Argument(call.value, batch=0, heads=2),
        _Argument(call.mask, batch=0, heads=1),
        _Argument(call.query_lengths, batch=0),
        _Argument(call.key_lengths, batch=0),
        _Argument(call.offset, batch=0),
        _Argument(jnp.arange(batch, dtype=jnp.int32), batch=0),
        _Argument(jnp.arange(heads, dtype=jnp.int32), heads=0),
        *(_Argument(leaf, heads=0) for leaf in leaves),
    ]

    def one(query, key, value, mask, query_length, key_length, offset, example, head, *leaves):
        dropout = None
        if call.dropout_rate is not None:
            dropout = Dropout(call.dropout_rate, call.dropout_words, example, head)
        variant = jax.tree.unflatten(structure, leaves)
        return one_head(
            Head(query, key, value, variant, mask, query_length, key_length, offset, dropout)
        )

    arguments = [
        _unshared(_sharded_like(call.query, argument), batch, heads) for argument in arguments
    ]
    over_heads = jax.vmap(one, [argument.heads for argument in arguments], head_axes)
    over_batch = jax.vmap(over_heads, [argument.batch for argument in arguments])
    return over_batch(*(argument.array for argument in arguments))


def _unshared(argument: _Argument, batch: int, heads: int) -> _Argument:
    """Without the axes of size 1 that the query has more of; `heads` as seen by the inner vmap."""
    array, batch_axis, head_axis = argument
    if array is None:
        return _Argument(None)
    if head_axis is not None and array.shape[head_axis] < heads:
        array, head_axis = array.squeeze(head_axis), None
    if batch_axis is not None:
        head_axis = None if head_axis is None else head_axis - 1
        if array.shape[batch_axis] < batch:
            array, batch_axis = array.squeeze(batch_axis), None
    return _Argument(array, batch_axis, head_axis)


def _sharded_like(query: Array, argument: _Argument) -> _Argument:
    """Its batch and head axes sharded as the query's, its other axes not at all.

    Only where the query's mesh has Explicit axes: elsewhere the compiler decides.
    """
    array, *axes = argument
    sharding = jax.typeof(query).sharding
    if array is None or AxisType.Explicit not in sharding.mesh.axis_types:
        return argument
    names = [None] * array.ndim
    for axis, of_query in zip(axes, (0, 2), strict=True):
        if axis is not None and array.shape[axis] == query.shape[of_query]:
            names[axis] = sharding.spec[of_query]
    return argument._replace(
        array=reshard(array, NamedSharding(sharding.mesh, PartitionSpec(*names)))
    )
