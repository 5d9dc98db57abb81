"""Map a function of one head over the heads and the batch, with two vmaps.

If all heads or all examples share an array, the array has an axis of size 1. This axis is removed
and not mapped, so that the array is not copied. Under a mesh with Explicit axes, `vmap` requires
that all mapped arrays are sharded alike. All arrays are therefore first resharded like the query.
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
    """Array that `vmap` maps over the batch and the heads, with the indices of these axes.

    Attributes:
      array: The array, or None if the argument was not passed.
      batch_axis: Index of the batch axis. None if all examples share the array.
      head_axis: Index of the head axis. None if all heads share the array.
    """

    array: Any
    batch_axis: int | None = None
    head_axis: int | None = None


def vmap_heads(one_head: Callable[[Head], Any], call: AttentionCall, head_axes: Any) -> Any:
    """Apply a function of one head to every head of every example.

    Args:
      one_head: Function of the arguments of one head of one example.
      call: Arguments of all heads and examples.
      head_axes: Index of the head axis in each output of one example. The outputs of all examples
        have the batch axis as an additional first axis.
    """
    leaves, structure = jax.tree.flatten(call.variant)
    batch, _, heads, _ = call.query.shape
    arguments = [
        _Argument(call.query, batch_axis=0, head_axis=2),
        _Argument(call.key, batch_axis=0, head_axis=2),
        _Argument(call.value, batch_axis=0, head_axis=2),
        _Argument(call.mask, batch_axis=0, head_axis=1),
        _Argument(call.query_lengths, batch_axis=0),
        _Argument(call.key_lengths, batch_axis=0),
        _Argument(call.offset, batch_axis=0),
        _Argument(jnp.arange(batch, dtype=jnp.int32), batch_axis=0),
        _Argument(jnp.arange(heads, dtype=jnp.int32), head_axis=0),
        *(_Argument(leaf, head_axis=0) for leaf in leaves),
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
        _remove_shared_axes(_shard_like(call.query, argument), batch, heads)
        for argument in arguments
    ]
    over_heads = jax.vmap(one, [argument.head_axis for argument in arguments], head_axes)
    over_batch = jax.vmap(over_heads, [argument.batch_axis for argument in arguments])
    return over_batch(*(argument.array for argument in arguments))


def _remove_shared_axes(argument: _Argument, batch: int, heads: int) -> _Argument:
    """Remove each axis, batch or head, that has size 1 because the array is shared.

    Args:
      argument: Array with the indices of its batch and head axes. A shared axis has size 1.
      batch: Number of examples of the query. If it is 1, the batch axis is kept.
      heads: Number of heads of the query. If it is 1, the head axis is kept.

    Returns:
      The array with the indices of its remaining axes. The head index does not count the batch
      axis, because the outer vmap removes the batch axis before the inner vmap uses the index.
    """
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


def _shard_like(query: Array, argument: _Argument) -> _Argument:
    """Shard batch and heads of an array as in the query, and replicate all other axes.

    Without Explicit axes in the query's mesh, return the argument unchanged: the compiler then
    chooses the sharding.
    """
    array, *axes = argument
    sharding = jax.typeof(query).sharding
    if array is None or AxisType.Explicit not in sharding.mesh.axis_types:
        return argument
    names = [None] * array.ndim
    for axis, query_axis in zip(axes, (0, 2), strict=True):
        if axis is not None and array.shape[axis] == query.shape[query_axis]:
            names[axis] = sharding.spec[query_axis]
    return argument._replace(
        array=reshard(array, NamedSharding(sharding.mesh, PartitionSpec(*names)))
    )
